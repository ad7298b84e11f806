from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest

from embedlib.config import Similarity
from embedlib.errors import SinkError
from embedlib.indexing.searches.searching import counted_state, held_state
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.protocol import SinkState, SparseModel, UnstorableRowsError
from embedlib.testing import check_sink
from embedlib_pgvector import extension
from embedlib_pgvector.connection import DatabaseSession
from embedlib_pgvector.extension import find_vector_types
from embedlib_pgvector.table import resolve_schema


def stored(pg: Any, table: str) -> list[tuple[Any, ...]]:
    """Number and digest of every row that has one."""
    return pg.fetch(
        "SELECT (langchain_metadata->>'number')::int, embedlib_digest FROM {} ORDER BY 1", table
    )


def expected(pg: Any, start: int, stop: int) -> list[tuple[Any, ...]]:
    return [(row.metadata["number"], row.digest) for row in pg.rows(start, stop)]


def test_it_keeps_what_every_sink_promises(pg: Any, pg_table: str) -> None:
    check_sink(lambda: pg.sink(pg_table))


def test_odd_names_are_quoted(pg: Any) -> None:
    schema, name = 'sch"ema', 'we"ird täble; drop %s {} --'
    pg.fetch("DROP SCHEMA IF EXISTS {} CASCADE", schema)
    try:
        sink = pg.sink(f"{schema}.{name}")
        with pytest.raises(SinkError, match="create the schema first"):
            sink.begin(pg.target(), pg.lines.append)
        pg.fetch("CREATE SCHEMA {}", schema)
        check_sink(lambda: pg.sink(f"{schema}.{name}"))
    finally:
        pg.fetch("DROP SCHEMA IF EXISTS {} CASCADE", schema)


@pytest.mark.parametrize("is_halfvec", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_scores(pg: Any, pg_table: str, similarity: Similarity, is_halfvec: bool) -> None:
    rows = pg.rows(0, 60)
    vectors = pg.vectors(rows)
    sink = pg.begun(pg_table, pg.target(similarity=similarity), is_halfvec=is_halfvec)
    sink.write(rows, vectors)
    sink.finish()
    query = np.array([1, -2, 0.5, 3, 0.25, 1], np.float32)
    scores = {
        "cosine": vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query),
        "dot": vectors @ query,
        "euclidean": -np.linalg.norm(vectors - query, axis=1),
        "manhattan": -np.abs(vectors - query).sum(axis=1),
    }[similarity]
    order = np.argsort(-scores)[:50]
    hits = sink.search(query, 50)
    assert [hit.score for hit in hits] == pytest.approx(scores[order], abs=1e-2, rel=1e-3)
    assert hits[0].text == rows[order[0]].text
    plan = pg.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = '" + pg_table + "'")
    ops = {"cosine": "cosine", "dot": "ip", "euclidean": "l2", "manhattan": "l1"}[similarity]
    assert any(f"{'halfvec' if is_halfvec else 'vector'}_{ops}_ops" in line for line in plan)


def test_the_score_of_a_vector_of_zeros_is_a_number(pg: Any, pg_table: str) -> None:
    rows = pg.rows(0, 3)
    vectors = np.zeros((3, 6), np.float32)
    vectors[:2, 0] = 1, -1
    sink = pg.begun(pg_table, index=None)
    sink.write(rows, vectors)
    hits = sink.search(vectors[0], 3)
    assert [(hit.text, hit.score) for hit in hits] == [
        (rows[0].text, 1.0),
        (rows[2].text, 0.0),
        (rows[1].text, -1.0),
    ]


@pytest.mark.parametrize("most_scanned", [20_000, 1], ids=["scan goes on", "scan ends"])
def test_a_search_finds_enough_after_many_deletions(
    pg: Any, pg_table: str, most_scanned: int
) -> None:
    rows = pg.rows(0, 600)
    # So few rows would be searched without the index.
    options = f"-c enable_sort=off -c enable_seqscan=off -c hnsw.max_scan_tuples={most_scanned}"
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options=options)
    sink = pg.begun(pg_table, conninfo=dsn)
    sink.write(rows, pg.vectors(rows))
    sink.finish()
    query = pg.vectors(rows[:1])[0]
    near = [hit.id for hit in sink.search(query, 300)]
    assert len(near) == 300
    sink.delete(near)
    assert len(sink.search(query, 250)) == 250


@pytest.mark.parametrize(
    ("options", "target", "version", "message"),
    [
        ({}, {}, (0, 4, 4), r"hnsw needs pgvector 0\.5 or newer.* has 0\.4\.4; .* add index=none"),
        ({"index": None}, {}, (0, 4, 4), None),
        ({}, {}, (0, 5, 0), None),
        (
            {"is_halfvec": True},
            {},
            (0, 6),
            r"halfvec needs pgvector 0\.7 .* leave out halfvec=true",
        ),
        ({}, {"dim": 2_001}, (0, 6), r"halfvec needs pgvector 0\.7 .* or truncate the vectors"),
        ({}, {"similarity": "manhattan"}, (0, 6, 2), r"<\+> needs .* choose another similarity"),
        ({}, {"similarity": "manhattan"}, (0, 7, 0), None),
        (
            {},
            {"sparse": SparseModel(model="s", fingerprint="s", dim=9)},
            (0, 6),
            "sparsevec needs .* without --sparse",
        ),
    ],
)
def test_an_older_pgvector_is_refused_before_the_load(
    pg: Any,
    pg_table: str,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    target: dict[str, Any],
    version: tuple[int, ...],
    message: str | None,
) -> None:
    monkeypatch.setattr(extension, "_version", lambda connection: version)
    with nullcontext() if message is None else pytest.raises(SinkError, match=message):
        pg.begun(pg_table, replace(pg.target(), **target), **options)


def test_a_search_of_nothing_says_so(pg: Any, pg_table: str) -> None:
    with pytest.raises(SinkError, match="there is no such table; load it with embedlib index"):
        pg.sink(pg_table).search(np.ones(6, np.float32), 3)
    pg.begun(pg_table)
    with pytest.raises(SinkError, match=r"holds vectors of 6 dimensions, the query has shape \(5,"):
        pg.sink(pg_table).search(np.ones(5, np.float32), 3)


def test_a_table_that_is_dropped_during_a_load_is_told(pg: Any, pg_table: str) -> None:
    """Of a load without a changed row nothing else asks for the table."""
    sink = pg.begun(pg_table)
    pg.fetch("DROP TABLE {}", pg_table)
    with pytest.raises(SinkError, match="the table was dropped during the load"):
        list(sink.scan())


def test_calls_before_begin_are_refused(pg: Any, pg_table: str) -> None:
    with pytest.raises(SinkError, match=r"begin was not called"):
        pg.sink(pg_table).finish()
    assert pg.sink(pg_table).digests([pg.row(0).id]) == {}


def test_a_batch_is_written_whole_or_not_at_all(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    rows = pg.rows(0, 3)
    vectors = pg.vectors(rows)
    vectors[1, 1] = np.inf
    with pytest.raises(SinkError, match="vector 1 of the batch holds NaN or infinity"):
        sink.write(rows, vectors)
    with pytest.raises(SinkError, match="a row is given twice in one call"):
        sink.write([*rows, rows[0]], pg.vectors([*rows, rows[0]]))
    assert stored(pg, pg_table) == []
    assert pg.waits == []  # waiting cures none of these
    sink.write(rows, pg.vectors(rows))
    assert stored(pg, pg_table) == expected(pg, 0, 3)


@pytest.fixture
def latin1(pg: Any) -> Iterator[str]:
    """A database that has no Chinese."""
    name = "embedlib_test_latin1"
    pg.fetch("DROP DATABASE IF EXISTS {}", name)
    pg.fetch("CREATE DATABASE {} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0", name)
    yield psycopg.conninfo.make_conninfo(pg.dsn, dbname=name, client_encoding="UTF8")
    for sink in pg.sinks:
        sink.close()
    pg.fetch("DROP DATABASE {}", name)


def test_a_row_that_the_database_cannot_store_is_one_bad_row(pg: Any, latin1: str) -> None:
    rows = [pg.row(number, f"text {number} é") for number in range(9)]
    sink = pg.begun("docs", conninfo=latin1)
    sink.write(rows, pg.vectors(rows))
    bad, zero = pg.row(10, "漢"), pg.row(4, "text 4 é", changed="a\0")
    more = [pg.row(9, "text 9"), bad, pg.row(11, "text 11"), pg.row(12, "text 12")]
    with pytest.raises(UnstorableRowsError, match="cannot store 1 of these rows") as caught:
        sink.write(more, pg.vectors(more))
    assert str(caught.value).endswith(
        ": it cannot be stored: character with byte sequence 0xe6 0xbc 0xa2 in encoding "
        '"UTF8" has no equivalent in encoding "LATIN1"; the database is not in UTF-8; make one '
        "with ENCODING 'UTF8' for the rows, or correct the text"
    )
    assert [(each.id, each.place) for each in caught.value.bad_rows] == [
        ("document 3", "'document 3', chunk 1")
    ]
    with pytest.raises(UnstorableRowsError, match=r"invalid byte sequence .*: 0x00"):
        sink.write([pg.row(13, "a\0")], pg.vectors([pg.row(13)]))
    changed = [pg.row(number, f"text {number} é", changed=number) for number in range(3)]
    with pytest.raises(UnstorableRowsError, match=r"\\u0000 cannot be converted to text"):
        sink.write_metadata([changed[0], zero, *changed[1:]])
    with psycopg.connect(latin1) as connection:
        found = connection.execute(
            "SELECT content, langchain_metadata->'changed' FROM docs ORDER BY source_id, chunk"
        ).fetchall()
    assert found[:5] == [(row.text, row.metadata.get("changed")) for row in [*changed, *rows[3:5]]]
    assert [text for text, _ in found[5:]] == [row.text for row in [*rows[5:], more[0], *more[2:]]]
    assert pg.waits == []


def test_rows_that_an_index_of_the_user_does_not_take_are_bad_rows(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    pg.fetch("CREATE INDEX ON {} (content)", pg_table)
    long = random.Random(0).randbytes(20_000).hex()
    rows = [pg.row(number, long if number in (1, 2, 5) else None) for number in range(6)]
    with pytest.raises(UnstorableRowsError, match="cannot store 3 of these rows") as caught:
        sink.write(rows, pg.vectors(rows))
    assert all("index row" in each.reason for each in caught.value.bad_rows)
    assert [each.place for each in caught.value.bad_rows] == [
        "'document 0', chunk 1",
        "'document 0', chunk 2",
        "'document 1', chunk 2",
    ]
    assert stored(pg, pg_table) == [row for row in expected(pg, 0, 6) if row[0] not in (1, 2, 5)]


def test_deletes_and_digests_of_many_ids_go_in_slices(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.reading.IDS_PER_STATEMENT", 7)
    monkeypatch.setattr("embedlib_pgvector.reading.SCAN_PAGES", 2)
    rows = pg.rows(0, 500)
    sink = pg.begun(pg_table)
    sink.write(rows, pg.vectors(rows))
    assert len(sink.digests([row.id for row in rows])) == 500
    assert {key.id for key in sink.scan()} == {row.id for row in rows}
    sink.delete([row.id for row in rows[:450]])
    assert stored(pg, pg_table) == expected(pg, 450, 500)


FOREIGN = {
    "a table": "CREATE TABLE {} (id int)",
    "one of LangChain": (
        "CREATE TABLE {} (langchain_id uuid PRIMARY KEY, content text NOT NULL,"
        " embedding vector(6) NOT NULL, langchain_metadata json)"
    ),
    "one like ours": "CREATE TABLE {} (embedlib_digest bytea, embedding vector(6))",
    "a view": "CREATE VIEW {} AS SELECT 1 AS embedding",
    "a comment of others": (
        "CREATE TABLE {0} (embedlib_digest bytea); COMMENT ON COLUMN {0}.embedlib_digest IS '[3]'"
    ),
}


@pytest.mark.parametrize("statement", FOREIGN.values(), ids=FOREIGN)
def test_what_embedlib_did_not_make_is_left_alone(pg: Any, pg_table: str, statement: str) -> None:
    pg.fetch("CREATE EXTENSION IF NOT EXISTS vector")
    pg.fetch(statement, pg_table)
    for act in (
        lambda: pg.begun(pg_table),
        lambda: pg.begun(pg_table, pg.target(recreate=True)),
        lambda: pg.sink(pg_table).inspect(),
    ):
        with pytest.raises(SinkError, match="embedlib did not create the table of this name"):
            act()
    assert pg.fetch("SELECT count(*) FROM {}", pg_table) == [1 if "VIEW" in statement else 0]
    if "VIEW" in statement:
        pg.fetch("DROP VIEW {}", pg_table)


def test_a_table_of_a_later_version_is_left_alone(pg: Any, pg_table: str) -> None:
    pg.begun(pg_table).close()
    pg.fetch(
        "COMMENT ON COLUMN {}.embedlib_digest IS "
        '\'{{"embedlib_format": 2, "similarity": "cosine", "model": "", "fingerprint": ""}}\'',
        pg_table,
    )
    with pytest.raises(SinkError, match=r"another version of embedlib \(format 2, this one"):
        pg.begun(pg_table, pg.target(recreate=True))


def test_a_table_of_another_model_is_refused(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    sink.write(pg.rows(0, 2), pg.vectors(pg.rows(0, 2)))
    sink.close()
    with pytest.raises(SinkError, match="was made by 'fake/model' with fingerprint f1"):
        pg.begun(pg_table, pg.target(fingerprint="f2"))
    assert stored(pg, pg_table) == expected(pg, 0, 2)
    # The lock went with the failure.
    pg.begun(pg_table, pg.target(fingerprint="f2", recreate=True))
    assert stored(pg, pg_table) == []
    assert pg.lines == []


def test_a_table_that_its_own_load_reads_is_not_dropped(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query's transaction is open until the last row is read, after the table was dropped."""
    monkeypatch.setattr("embedlib_pgvector.table.DROP_WAIT_MS", 50)
    sink = pg.begun(pg_table)
    sink.write(pg.rows(0, 9), pg.vectors(pg.rows(0, 9)))
    sink.close()
    with pg.connect() as source, source.transaction():
        source.execute(f"SELECT * FROM {pg_table}")
        with pytest.raises(SinkError, match=r"such as the query of this load \(--sql\)"):
            pg.begun(pg_table, pg.target(recreate=True))
    assert stored(pg, pg_table) == expected(pg, 0, 9)
    pg.begun(pg_table, pg.target(recreate=True))
    assert stored(pg, pg_table) == []


def test_a_second_writer_is_refused_and_a_reader_is_not(pg: Any, pg_table: str) -> None:
    first = pg.begun(pg_table)
    first.write(pg.rows(0, 4), pg.vectors(pg.rows(0, 4)))
    with pytest.raises(SinkError, match=r"another writer is active \(embedlib, server process \d"):
        pg.begun(pg_table, pg.target(recreate=True))
    assert sum(pg.waits) < 5
    reader = pg.sink(pg_table)
    assert reader.inspect() == SinkState(
        num_rows=4,
        dim=6,
        similarity="cosine",
        fingerprint="f1",
        model="fake/model",
        index="none, exact scan",
    )
    assert len(reader.search(np.ones(6, np.float32), 3)) == 3
    pg.begun(f"{pg_table}_other").close()  # another table is another lock
    pg.fetch("DROP TABLE {}", f"{pg_table}_other")
    first.close()
    pg.begun(pg_table)


def test_rows_are_counted_neither_to_begin_a_load_nor_to_search(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count them the server reads the whole table."""

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            statements.append(query if isinstance(query, str) else query.as_string(None))
            return super().execute(query, *args, **options)

    def connect(session: DatabaseSession) -> Any:
        connection = connect_before(session)
        connection.cursor_factory = Cursor
        return connection

    statements: list[str] = []
    connect_before = DatabaseSession.connect
    sink = pg.begun(pg_table, index=None)
    sink.write(pg.rows(0, 4), pg.vectors(pg.rows(0, 4)))
    sink.close()
    monkeypatch.setattr(DatabaseSession, "connect", connect)
    pg.begun(pg_table, index=None).close()
    searched = pg.sink(pg_table)
    assert held_state(searched).fingerprint == "f1"
    assert len(searched.search(np.ones(6, np.float32), 3)) == 3
    assert statements
    assert not [each for each in statements if "count(" in each]
    assert counted_state(searched, held_state(searched)).num_rows == 4
    assert [each for each in statements if "count(" in each]


def test_shards_are_written_side_by_side_and_the_last_one_builds_the_index(
    pg: Any, pg_table: str
) -> None:
    first = pg.begun(pg_table, replace(pg.target(), shard="1/2"))
    second = pg.begun(pg_table, replace(pg.target(), shard="2/2"))
    for target in (replace(pg.target(), shard="2/2"), pg.target()):
        with pytest.raises(SinkError, match="another writer is active"):
            pg.begun(pg_table, target)
    first.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    first.finish()
    first.finish()  # it has let go of the table already
    assert len(pg.lines) == 2
    assert all("other shards are still being written" in line for line in pg.lines)
    assert pg.sink(pg_table).inspect().index == "none, exact scan"
    second.write(pg.rows(3, 6), pg.vectors(pg.rows(3, 6)))
    first.close()
    with pytest.raises(SinkError, match="another writer is active"):
        pg.begun(pg_table)  # all of it, while a shard is being written
    second.finish()
    second.close()
    assert stored(pg, pg_table) == expected(pg, 0, 6)
    assert "hnsw" in pg.sink(pg_table).inspect().index


def test_of_shards_that_end_together_one_builds_the_index(pg: Any, pg_table: str) -> None:
    first, second = (pg.begun(pg_table, replace(pg.target(), shard=f"{n}/2")) for n in (1, 2))
    first.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    second.write(pg.rows(3, 6), pg.vectors(pg.rows(3, 6)))
    first.finish()
    second.finish()
    first.close()
    second.close()
    assert "hnsw" in pg.sink(pg_table).inspect().index


def test_a_writer_that_waits_for_its_shard_keeps_no_other_from_the_index(
    pg: Any, pg_table: str
) -> None:
    target, shared = replace(pg.target(), shard="1/2"), list[int]()
    pg.begun(pg_table, target)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    pg.on_wait = lambda: shared.extend(pg.fetch(locks))
    with pytest.raises(SinkError, match="another writer is active"):
        pg.begun(pg_table, target)
    assert set(shared) == {1}


@pytest.mark.parametrize(("shard", "is_analyzed"), [(None, False), ("1/2", True)])
def test_statistics_are_of_what_other_shards_wrote_too(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch, shard: str | None, is_analyzed: bool
) -> None:
    pg.begun(pg_table, index=None).close()
    sink = pg.begun(pg_table, replace(pg.target(), shard=shard), index=None)
    executed: list[Any] = []
    monkeypatch.setattr(sink, "_execute", executed.append)
    sink.finish()
    assert bool(executed) == is_analyzed


def test_a_load_has_no_time_limit_of_queries(pg: Any, pg_table: str) -> None:
    def shown(sink: Any) -> str:
        return str(sink._session.run(lambda c: c.execute("SHOW statement_timeout").fetchone())[0])

    pg.fetch("ALTER ROLE CURRENT_USER SET statement_timeout = '1h'")
    try:
        sink = pg.begun(pg_table)
        assert shown(sink) == "0"
        assert shown(pg.sink(pg_table)) == "1h"  # searches have
    finally:
        pg.fetch("ALTER ROLE CURRENT_USER RESET statement_timeout")


def test_a_connection_that_a_pooler_has_reset_makes_tables_as_before(
    pg: Any, pg_table: str
) -> None:
    def again(connection: Any) -> str:
        for _ in range(2):
            connection.execute("DISCARD ALL")
            find_vector_types(connection)
        return resolve_schema(connection, pg.sink(f"{pg_table}_new")._destination)

    assert pg.sink(pg_table)._session.run(again) == "public"


def test_the_schema_of_pgvector_is_no_place_for_tables(pg: Any, pg_table: str) -> None:
    pg.begun(pg_table).close()  # makes the extension
    pg.fetch("ALTER ROLE CURRENT_USER SET search_path = nosuch")
    try:
        with pytest.raises(SinkError, match="no schema of the search path exists"):
            pg.begun(pg_table)
    finally:
        pg.fetch("ALTER ROLE CURRENT_USER RESET search_path")


def test_a_table_is_looked_for_in_the_search_path_of_the_role_alone(pg: Any, pg_table: str) -> None:
    pg.begun(pg_table).close()  # in the schema of pgvector, which a session adds to its path
    schema = f"s_{pg_table}"
    pg.fetch("CREATE SCHEMA {}", schema)
    pg.fetch("ALTER ROLE CURRENT_USER SET search_path = {}", schema)
    try:
        assert pg.sink(pg_table).inspect() is None
        sink = pg.begun(pg_table, pg.target(fingerprint="f2"))
        sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
        assert pg.fetch("SELECT count(*) FROM {}", f"{schema}.{pg_table}") == [3]
        assert pg.fetch("SELECT count(*) FROM {}", f"public.{pg_table}") == [0]
    finally:
        pg.fetch("ALTER ROLE CURRENT_USER RESET search_path")
        pg.fetch("DROP SCHEMA {} CASCADE", schema)


def test_a_writer_that_just_ended_is_waited_for(pg: Any, pg_table: str) -> None:
    first = pg.begun(pg_table)
    pg.on_wait = first.close
    pg.begun(pg_table)
    assert pg.waits == [0.1]


@pytest.mark.parametrize(
    ("dim", "options", "type_name"),
    [
        (2000, {}, "vector"),
        (2001, {}, "halfvec"),
        (4000, {}, "halfvec"),
        (2001, {"index": None}, "vector"),
        (4001, {"index": None}, "vector"),
        (4001, {"index": None, "is_halfvec": True}, "halfvec"),
    ],
)
def test_long_vectors_are_stored(
    pg: Any, pg_table: str, dim: int, options: dict[str, Any], type_name: str
) -> None:
    rows = pg.rows(0, 5)
    sink = pg.begun(pg_table, pg.target(dim=dim), **options)
    sink.write(rows, pg.vectors(rows, dim))
    sink.finish()
    hit = sink.search(pg.vectors(rows, dim)[3], 1)[0]
    assert (hit.source_id, hit.chunk) == ("document 1", 0)
    assert pg.fetch("SELECT pg_typeof(embedding)::text FROM {} LIMIT 1", pg_table) == [type_name]
    was_told = any("they are stored as halfvec" in line for line in pg.lines)
    assert was_told == (type_name == "halfvec" and not options)
    state = sink.inspect()
    assert state is not None
    assert state.index == ("none, exact scan" if "index" in options else "hnsw")


@pytest.mark.parametrize(
    ("dim", "options", "message"),
    [
        (4001, {}, "makes 4001 dimensions, .* up to 2000, with halfvec up to 4000; truncate"),
        (2001, {"is_halfvec": False}, "up to 4000; leave out halfvec=false, or truncate"),
        (4000, {"is_halfvec": False}, "up to 4000; leave out halfvec=false, or truncate"),
        (4001, {"is_halfvec": False}, "up to 4000; truncate"),
        (16001, {"index": None}, "stores up to 16000 dimensions, the model makes 16001"),
    ],
)
def test_too_long_vectors_are_refused_before_anything_is_made(
    pg: Any, pg_table: str, dim: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        pg.begun(pg_table, pg.target(dim=dim), **options)
    assert pg.sink(pg_table).inspect() is None


def test_a_table_without_index_that_cannot_have_one_is_refused(pg: Any, pg_table: str) -> None:
    pg.begun(pg_table, pg.target(dim=2001), index=None).close()
    with pytest.raises(SinkError, match="add index=none"):
        pg.begun(pg_table, pg.target(dim=2001))
    with pytest.raises(SinkError, match="stores vector; leave out halfvec=true"):
        pg.begun(pg_table, pg.target(dim=2001), index=None, is_halfvec=True)


def test_settings_that_would_lose_rows_are_put_right(pg: Any, pg_table: str) -> None:
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options="-c synchronous_commit=off")
    sink = pg.begun(pg_table, conninfo=dsn)
    show = "SHOW synchronous_commit"
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == ("on",)


def test_a_read_only_server_is_one_line(pg: Any, pg_table: str) -> None:
    pg.begun(pg_table).close()
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options="-c default_transaction_read_only=on")
    with pytest.raises(SinkError, match="transaction; default_transaction_read_only is on, which"):
        pg.begun(pg_table, conninfo=dsn)
    with pytest.raises(SinkError, match="transaction; default_transaction_read_only is on, which"):
        pg.begun(f"{pg_table}_new", conninfo=dsn)
    state = pg.sink(pg_table, conninfo=dsn).inspect()
    assert state is not None
    assert state.num_rows == 0
    assert pg.waits == []


def test_a_full_disk_is_one_line_and_no_rows(pg: Any, pg_table: str) -> None:
    """The server's own error, raised by a trigger at the last row."""
    sink = pg.begun(pg_table)
    pg.fetch(
        "CREATE OR REPLACE FUNCTION embedlib_test_fill() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;"
        " CREATE TRIGGER full_disk BEFORE INSERT ON {} FOR EACH ROW"
        " WHEN (NEW.chunk = 2) EXECUTE FUNCTION embedlib_test_fill()",
        pg_table,
    )
    with pytest.raises(SinkError, match="could not extend file; the server's disk is full; make"):
        sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    pg.fetch("DROP FUNCTION embedlib_test_fill CASCADE")
    assert pg.waits == []
    assert stored(pg, pg_table) == []


@pytest.fixture
def make_database(pg: Any) -> Any:
    """Makes databases for a test, and users without rights."""
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        pg.fetch("DROP DATABASE IF EXISTS {}", name)
        pg.fetch("CREATE DATABASE {}", name)
        return psycopg.conninfo.make_conninfo(pg.dsn, dbname=name)

    yield make
    for sink in pg.sinks:
        sink.close()
    for name in made:
        pg.fetch("DROP DATABASE {} WITH (FORCE)", name)


def test_the_extension_is_made(pg: Any, make_database: Callable[[str], str]) -> None:
    dsn = make_database("embedlib_test_fresh")
    sink = pg.sink("docs", conninfo=dsn)
    sink.begin(pg.target(), pg.lines.append)
    assert sink.inspect().num_rows == 0


def test_the_extension_may_be_in_another_schema(
    pg: Any, make_database: Callable[[str], str]
) -> None:
    dsn = make_database("embedlib_test_schema")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "ext ensions"')
        connection.execute('CREATE EXTENSION vector SCHEMA "ext ensions"')
    check_sink(lambda: pg.sink("docs", conninfo=dsn))


def test_a_missing_permission_names_its_cure(pg: Any, make_database: Callable[[str], str]) -> None:
    dsn = make_database("embedlib_test_rights")
    pg.fetch("DROP ROLE IF EXISTS embedlib_test_nobody")
    pg.fetch("CREATE ROLE embedlib_test_nobody LOGIN")
    try:
        theirs = psycopg.conninfo.make_conninfo(dsn, user="embedlib_test_nobody", password="hush")
        with psycopg.connect(dsn, autocommit=True) as connection:
            # pgvector says of itself that everybody may create it; a stock one does not.
            connection.execute("REVOKE CREATE ON DATABASE embedlib_test_rights FROM PUBLIC")
            with pytest.raises(SinkError, match="run CREATE EXTENSION vector in the database 'emb"):
                pg.begun("docs", conninfo=theirs)
            connection.execute("CREATE EXTENSION vector")
            connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # as since Postgres 15
        with pytest.raises(SinkError, match="permission denied for schema public; ask the owner"):
            pg.begun("docs", conninfo=theirs)
        assert pg.waits == []
    finally:
        pg.fetch("DROP DATABASE embedlib_test_rights WITH (FORCE)")
        pg.fetch("CREATE DATABASE embedlib_test_rights")
        pg.fetch("DROP ROLE embedlib_test_nobody")


def test_a_search_in_another_process_of_a_pooler_says_what_it_needs(
    pg: Any, make_database: Callable[[str], str]
) -> None:
    dsn = make_database("embedlib_test_elsewhere")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA elsewhere")
        connection.execute("CREATE EXTENSION vector SCHEMA elsewhere")
    sink = pg.begun("docs", conninfo=dsn)
    vector = pg.vectors(pg.rows(0, 1))[0]
    assert sink.search(vector, 1) == []
    sink._session.run(lambda connection: connection.execute("RESET search_path"))
    with pytest.raises(SinkError, match=r'type "vector" .*; .* SET search_path\)$'):
        sink.search(vector, 1)


def test_a_server_that_is_not_there_fails_at_once(pg: Any) -> None:
    sink = open_sink("postgresql://someone:hush@127.0.0.1:1/db")
    with pytest.raises(
        SinkError, match=r"^postgresql://someone@127.0.0.1:1/db\?table=embedlib: "
    ) as caught:
        sink.inspect()
    assert "refused" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(SinkError, match=r"failed to resolve host.*label empty.*check the host"):
        open_sink("postgresql://db..internal/shop").inspect()
