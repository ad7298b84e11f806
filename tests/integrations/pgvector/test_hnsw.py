from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import Target
from embedlib_pgvector import index_names
from embedlib_pgvector.destination import HnswOptions
from embedlib_pgvector.hnsw import (
    BYTES_PER_NEIGHBOR,
    RESERVED_BYTES,
    IndexBuild,
    drop_index,
    find_index,
    graph_bytes,
)
from embedlib_pgvector.index_names import (
    VECTORS_INDEX,
    WORDS_INDEX,
    new_index_name,
    own_ending,
)


def indexes(pg: Any, table: str) -> list[Any]:
    return pg.fetch(
        "SELECT indexrelid::regclass::text, indisvalid, indexrelid FROM pg_index"
        f" WHERE indrelid = '{table}'::regclass AND NOT indisprimary ORDER BY 1"
    )


def set_valid(pg: Any, index: str, is_valid: bool) -> None:
    update = f"UPDATE pg_index SET indisvalid = {is_valid} WHERE indexrelid = '{{}}'::regclass"
    pg.fetch(update, index)


class Recorder:
    """Keeps the statements that a connection gets."""

    def __init__(self, sink: Any) -> None:
        self.statements: list[str] = []
        statements = self.statements

        class Cursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **options: Any) -> Any:
                statements.append(query if isinstance(query, str) else query.as_string(None))
                return super().execute(query, *args, **options)

        sink._session._connection.cursor_factory = Cursor

    def __call__(self, start: str) -> list[str]:
        return [line for line in self.statements if line.startswith(start)]


def test_it_is_built_after_the_load_and_only_once(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table, index=HnswOptions(m=8, ef_construction=40))
    sink.write(pg.rows(0, 50), pg.vectors(pg.rows(0, 50)))
    assert indexes(pg, pg_table) == []
    statements = Recorder(sink)
    sink.finish()
    (built,) = indexes(pg, pg_table)
    assert built[:2] == (f"{pg_table}_embedding_hnsw", True)
    (create,) = statements("CREATE INDEX")
    assert "CONCURRENTLY" not in create
    assert "m = 8, ef_construction = 40" in create
    assert len(statements("ANALYZE")) == 1
    sink.finish()
    sink.close()
    sink = pg.begun(pg_table)
    statements = Recorder(sink)
    sink.finish()
    assert statements("CREATE INDEX") == statements("ANALYZE") == []
    assert indexes(pg, pg_table) == [built]


def test_statistics_are_brought_up_to_date_after_rows_were_deleted(pg: Any, pg_table: str) -> None:
    rows = pg.rows(0, 5)
    with closing(pg.begun(pg_table, index=None)) as sink:
        sink.write(rows, pg.vectors(rows))
    sink = pg.begun(pg_table, index=None)
    statements = Recorder(sink)
    sink.delete([rows[0].id])
    sink.finish()
    assert len(statements("ANALYZE")) == 1


def test_a_live_table_is_not_locked(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table, index=None)
    sink.write(pg.rows(0, 50), pg.vectors(pg.rows(0, 50)))
    sink.finish()
    sink.close()
    assert indexes(pg, pg_table) == []
    sink = pg.begun(pg_table)
    statements = Recorder(sink)
    sink.finish()
    (create,) = statements("CREATE INDEX")
    assert "CONCURRENTLY" in create
    assert [index[1] for index in indexes(pg, pg_table)] == [True]
    assert not [line for line in pg.lines if "does not exist" in line]


def test_an_empty_table_is_filled_without_its_index(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.inserts.SLOW_INSERT_ROWS", 5)
    sink = pg.begun(pg_table)
    rows = pg.rows(0, 5)
    sink.write(rows, pg.vectors(rows))
    sink.finish()
    sink.delete([row.id for row in rows])
    sink.close()
    assert len(indexes(pg, pg_table)) == 1
    sink = pg.begun(pg_table)
    assert indexes(pg, pg_table) == []
    sink.write(rows, pg.vectors(rows))
    assert not [line for line in pg.lines if "slower" in line]
    sink.finish()
    assert len(indexes(pg, pg_table)) == 1


def test_a_role_that_only_writes_rows_fills_an_empty_table(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.inserts.SLOW_INSERT_ROWS", 5)
    sink, rows, role = pg.begun(pg_table), pg.rows(0, 5), f"loader_{pg_table[:20]}"
    sink.finish()
    sink.close()
    built = indexes(pg, pg_table)
    pg.fetch("CREATE ROLE {} LOGIN", role)
    try:
        pg.fetch("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}", pg_table, role)
        theirs = psycopg.conninfo.make_conninfo(pg.dsn, user=role)
        sink = pg.begun(pg_table, conninfo=theirs)
        sink.write(rows, pg.vectors(rows))
        sink.finish()
        sink.close()
        assert len([line for line in pg.lines if "has an index already" in line]) == 1
        assert indexes(pg, pg_table) == built
        assert pg.fetch("SELECT count(*) FROM {}", pg_table) == [5]
        # An index that no search uses is not kept.
        pg.fetch("DELETE FROM {}", pg_table)
        set_valid(pg, built[0][0], False)
        with pytest.raises(SinkError, match="must be owner of index"):
            pg.begun(pg_table, conninfo=theirs)
    finally:
        pg.fetch("DROP OWNED BY {}", role)
        pg.fetch("DROP ROLE {}", role)


def test_rows_into_an_indexed_table_are_told_to_be_slow(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.inserts.SLOW_INSERT_ROWS", 20)
    sink = pg.begun(pg_table)
    for start in (0, 10, 20):
        sink.write(pg.rows(start, start + 10), pg.vectors(pg.rows(start, start + 10)))
    sink.finish()
    assert not [line for line in pg.lines if "slower" in line]
    sink.close()
    sink = pg.begun(pg_table)
    for start in (30, 40, 50):
        assert len([line for line in pg.lines if "slower" in line]) == (start > 40)
        sink.write(pg.rows(start, start + 10), pg.vectors(pg.rows(start, start + 10)))
    assert len(indexes(pg, pg_table)) == 1


def test_what_a_killed_build_left_is_repaired(pg: Any, pg_table: str) -> None:
    """A concurrent build whose server process is ended while it waits for a transaction."""
    sink = pg.begun(pg_table, index=None)
    rows = pg.rows(0, 20)
    sink.write(rows, pg.vectors(rows))
    sink.close()
    name = f"{pg_table}_embedding_hnsw"
    with pg.connect() as holder, pg.connect() as builder:
        holder.execute("BEGIN")
        holder.execute(
            sql.SQL(
                "INSERT INTO {} SELECT gen_random_uuid(), 'x', embedding FROM {} LIMIT 1"
            ).format(*[sql.Identifier(pg_table)] * 2)
        )
        statement = sql.SQL(
            "CREATE INDEX CONCURRENTLY {} ON {} USING hnsw (embedding vector_cosine_ops)"
        ).format(sql.Identifier(name), sql.Identifier(pg_table))
        failures: list[BaseException] = []

        def build() -> None:
            try:
                builder.execute(statement)
            except psycopg.Error as error:
                failures.append(error)

        thread = threading.Thread(target=build, name="killed build")
        thread.start()
        while not indexes(pg, pg_table):
            pass
        holder.execute("SELECT pg_terminate_backend(%s)", (builder.info.backend_pid,))
        thread.join()
        assert len(failures) == 1
        holder.execute("ROLLBACK")
    ((_, is_valid, broken),) = indexes(pg, pg_table)
    assert not is_valid
    reader = pg.sink(pg_table)
    state = reader.inspect()
    assert state is not None
    assert state.index == "hnsw, not finished, exact scan"
    sink = pg.begun(pg_table)
    assert indexes(pg, pg_table) == []
    sink.finish()
    ((_, is_valid, oid),) = indexes(pg, pg_table)
    assert is_valid
    assert oid != broken
    state = sink.inspect()
    assert state is not None
    assert state.index == "hnsw"


def test_an_index_of_others_serves(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    sink.write(pg.rows(0, 20), pg.vectors(pg.rows(0, 20)))
    pg.fetch("CREATE INDEX my_index ON {} USING hnsw (embedding vector_l2_ops)", pg_table)
    pg.fetch(
        "CREATE INDEX my_other ON {} USING hnsw (embedding vector_cosine_ops) WITH (m = 5)",
        pg_table,
    )
    sink.finish()
    assert [index[0] for index in indexes(pg, pg_table)] == ["my_index", "my_other"]
    sink.close()
    sink = pg.begun(pg_table, index=HnswOptions(m=24))
    sink.finish()
    assert (
        "the existing index 'my_other' with m=5 is kept; drop it to build it with m=24"
        in (pg.lines[-1])
    )


def test_an_index_that_no_search_can_use_is_none_and_stays(pg: Any, pg_table: str) -> None:
    sink, own = pg.begun(pg_table), f"{pg_table}_embedding_hnsw"
    sink.write(pg.rows(0, 20), pg.vectors(pg.rows(0, 20)))
    pg.fetch("ALTER TABLE {} ADD COLUMN other vector(6)", pg_table)
    for name, of in (
        ("my_measure", "(embedding vector_l2_ops)"),
        ("my_part", "(embedding vector_cosine_ops) WHERE chunk = 0"),
        ("my_column", "(other vector_cosine_ops)"),
    ):
        pg.fetch(f"CREATE INDEX {name} ON {{}} USING hnsw {of}", pg_table)
    sink.finish()
    theirs = {"my_measure", "my_part", "my_column"}
    assert {name for name, *_ in indexes(pg, pg_table)} == {own, *theirs}
    # Of two the one that is whole serves, and one that the user is building right now is not ours.
    pg.fetch("CREATE INDEX my_other ON {} USING hnsw (embedding vector_cosine_ops)", pg_table)
    for name in ("my_other", own):
        set_valid(pg, name, False)
        assert pg.sink(pg_table).inspect().index == "hnsw"
        set_valid(pg, name, True)
    set_valid(pg, "my_other", False)
    sink.close()
    pg.fetch("DROP INDEX {}", own)
    sink = pg.begun(pg_table)
    sink.finish()
    assert {name for name, *_ in indexes(pg, pg_table)} == {own, "my_other", *theirs}
    sink.delete([row.id for row in pg.rows(0, 20)])
    sink.close()
    pg.fetch("DROP INDEX {}", own)
    set_valid(pg, "my_other", True)
    pg.begun(pg_table)
    assert {name for name, *_ in indexes(pg, pg_table)} == {"my_other", *theirs}


def test_an_index_of_another_kind_has_no_options_of_ours(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    sink.write(pg.rows(0, 20), pg.vectors(pg.rows(0, 20)))
    lists = "USING ivfflat (embedding vector_cosine_ops) WITH (lists = 1)"
    pg.fetch(f"CREATE INDEX my_lists ON {{}} {lists}", pg_table)
    sink.close()
    before = len(pg.lines)
    sink = pg.begun(pg_table, index=HnswOptions(m=24))
    sink.finish()
    assert pg.lines[before:] == []


def test_recreate_names_the_indexes_that_are_dropped_with_the_table(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    sink.finish()
    sink.close()
    pg.fetch("CREATE INDEX {} ON {} (source_id)", f"{pg_table}_mine", pg_table)
    pg.begun(pg_table, pg.target(recreate=True))
    assert f"does not get the indexes that you made ({pg_table}_mine)" in pg.lines[-1]


def test_progress_and_notices_are_told(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.hnsw._set", lambda *_: None)
    monkeypatch.setattr("embedlib_pgvector.hnsw.PROGRESS_SECONDS", 0.001)
    sink = pg.begun(pg_table, pg.target(dim=64))
    rows = pg.rows(0, 4000)
    sink.write(rows, pg.vectors(rows, 64))
    table = sink._begun
    tellers = set()

    def tell(line: str) -> None:
        tellers.add(threading.current_thread())
        pg.lines.append(line)

    sink._session.tell = tell
    sink._session.run(lambda c: c.execute("SET maintenance_work_mem = '1MB'"))
    sink._session.run(lambda c: c.execute("SET max_parallel_maintenance_workers = 0"))
    build = IndexBuild(sink._session, table, HnswOptions(), is_live=False)
    sink._session.run(build.run)
    assert [line for line in pg.lines if line.startswith("index: ") and "of 4,000 rows" in line]
    assert [line for line in pg.lines if "hnsw graph no longer fits into maintenance_work" in line]
    assert tellers == {threading.main_thread()}
    assert not [t for t in threading.enumerate() if t.name.startswith("embedlib-pgvector")]


def test_an_interrupted_build_is_cancelled(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.hnsw.PROGRESS_SECONDS", 0.001)
    sink = pg.begun(pg_table, pg.target(dim=64))
    rows = pg.rows(0, 4000)
    sink.write(rows, pg.vectors(rows, 64))

    def interrupt(line: str) -> None:
        if line.startswith("index: "):
            # Else the program would wait for the end of the build after Ctrl-C.
            assert all(t.daemon for t in threading.enumerate() if "pgvector" in t.name)
            raise KeyboardInterrupt

    sink._session.tell = interrupt
    build = IndexBuild(sink._session, sink._begun, HnswOptions(), is_live=False)
    with pytest.raises(KeyboardInterrupt):
        sink._session.run(build.run)
    assert indexes(pg, pg_table) == []
    assert not [t for t in threading.enumerate() if t.name.startswith("embedlib-pgvector")]


def test_a_progress_that_cannot_be_read_ends_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        def tell_notices(self) -> None: ...

        def connect(self) -> None:
            build.set_result(None)
            raise psycopg.OperationalError("too many clients")

    build = Future[None]()
    monkeypatch.setattr("embedlib_pgvector.hnsw.PROGRESS_SECONDS", 0)
    session: Any = Session()
    IndexBuild(session, session, HnswOptions(), is_live=False)._watch(build, 7, 9)
    assert build.done()


def test_an_index_is_dropped_while_searches_go_on(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    statements = Recorder(sink)
    for _ in range(2):  # again, where the answer was lost
        sink._session.run(lambda connection: drop_index(connection, sink._begun, "gone"))
    assert len(statements("DROP INDEX CONCURRENTLY")) == 2


def test_a_partitioned_table_has_its_indexes(pg: Any, pg_table: str) -> None:
    """Which Postgres neither builds nor drops CONCURRENTLY."""
    target, rows, whole = replace(pg.target(), full_text="simple"), pg.rows(0, 5), f"{pg_table}_1"
    pg.begun(pg_table, target).close()
    pg.fetch("ALTER TABLE {} RENAME TO {}", pg_table, whole)
    pg.fetch(
        "CREATE TABLE {} (LIKE {} INCLUDING COMMENTS INCLUDING GENERATED,"
        " PRIMARY KEY (langchain_id)) PARTITION BY HASH (langchain_id)",
        *(pg_table, whole),
    )
    pg.fetch(
        "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        *(pg_table, whole),
    )
    for num_before in (3, 0):
        with closing(pg.begun(pg_table, target)) as killed:
            killed.write(rows[:num_before], pg.vectors(rows[:num_before]))
        with closing(pg.begun(pg_table, target)) as sink:
            sink.write(rows, pg.vectors(rows))
            sink.finish()
            assert sink.inspect().index == "hnsw"
            assert len(indexes(pg, pg_table)) == 2
            sink.delete([row.id for row in rows])


def test_a_build_that_the_server_refuses_is_one_line(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table, index=HnswOptions(m=1000))
    with pytest.raises(SinkError, match='value 1000 out of bounds for option "m"'):
        sink.finish()
    assert not [t for t in threading.enumerate() if t.name.startswith("embedlib-pgvector")]


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.DiskFull("could not get shared memory segment: No space left on device"),
        psycopg.errors.DiskFull("konnte Segment »/PostgreSQL.7« nicht anlegen: Kein Platz"),
        psycopg.errors.OutOfMemory("out of memory"),
    ],
)
def test_without_shared_memory_one_process_builds(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What a container with 64 MB of shared memory answers to a build by several."""
    sink = pg.begun(pg_table)
    sink.write(pg.rows(0, 9), pg.vectors(pg.rows(0, 9)))
    build_index = IndexBuild._build
    tries = []

    def build(self: IndexBuild, connection: Any, is_parallel: bool) -> None:
        tries.append(is_parallel)
        build_index(self, connection, is_parallel)
        if is_parallel:  # beside a table in use, what has been built stays as a broken index
            set_valid(pg, f"{pg_table}_embedding_hnsw", False)
            raise error

    monkeypatch.setattr(IndexBuild, "_build", build)
    sink.finish()
    assert tries == [True, False]
    assert [index[:2] for index in indexes(pg, pg_table)] == [(f"{pg_table}_embedding_hnsw", True)]
    workers = sink._session.run(
        lambda c: c.execute("SHOW max_parallel_maintenance_workers").fetchone()
    )
    assert workers == ("0",)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            psycopg.errors.DiskFull('could not extend file "base/5/1": No space left on device'),
            [True],
        ),
        (psycopg.errors.OutOfMemory("out of memory"), [True, False]),
    ],
)
def test_a_build_that_fails_for_want_of_something_else(
    pg: Any,
    pg_table: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: list[bool],
) -> None:
    sink = pg.begun(pg_table)
    tries = []

    def build(self: IndexBuild, connection: Any, is_parallel: bool) -> None:
        tries.append(is_parallel)
        raise error

    monkeypatch.setattr(IndexBuild, "_build", build)
    with pytest.raises(SinkError, match=str(error)):
        sink.finish()
    assert tries == expected


def test_the_estimate_is_what_the_server_needs(pg: Any, pg_table: str) -> None:
    """With the estimate the graph just fits; with a tenth less and no reserve it does not."""
    sink = pg.begun(pg_table, pg.target(dim=64))
    rows = pg.rows(0, 6000)
    sink.write(rows, pg.vectors(rows, 64))
    needed = graph_bytes(6000, sink._begun, HnswOptions())

    def build(num_bytes: float) -> bool:
        with pg.connect() as connection:
            said: list[str] = []
            connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
            connection.execute("SET max_parallel_maintenance_workers = 0")
            connection.execute(f"SET maintenance_work_mem = '{int(num_bytes) >> 10}kB'")
            with connection.transaction(force_rollback=True):
                connection.execute(
                    f"CREATE INDEX ON {pg_table} USING hnsw (embedding vector_cosine_ops)"
                    " WITH (ef_construction = 32)"
                )
            return not said

    assert build(needed)
    assert not build((needed - RESERVED_BYTES) * 0.9)


def test_the_memory_is_never_lowered(pg: Any, pg_table: str) -> None:
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options="-c maintenance_work_mem=99MB")
    sink = pg.begun(pg_table, conninfo=dsn)
    sink.finish()
    show = "SHOW maintenance_work_mem"
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == ("99MB",)


@pytest.mark.parametrize(("is_halfvec", "num_bytes"), [(False, 4), (True, 2)])
def test_more_memory_is_taken_for_more_rows(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch, is_halfvec: bool, num_bytes: int
) -> None:
    sink = pg.begun(pg_table, pg.target(dim=256), is_halfvec=is_halfvec)
    sink.write(pg.rows(0, 9), pg.vectors(pg.rows(0, 9), 256))
    monkeypatch.setattr("embedlib_pgvector.hnsw.BYTES_PER_ROW", 20 << 20)
    sink.finish()
    show = "SHOW maintenance_work_mem"
    row = 8 + num_bytes * 256 + 16 * BYTES_PER_NEIGHBOR + (20 << 20)
    wanted = (9 * row + (4 << 20)) >> 10
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == (f"{wanted}kB",)


@pytest.mark.parametrize("name", ["docs", "x" * 55, "é" * 27])
def test_an_index_gets_a_name_that_is_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = SimpleNamespace(table=name, schema="public")
    taken = set[str]()
    monkeypatch.setattr(index_names, "is_name_taken", lambda _, schema, index: index in taken)
    for ending in (VECTORS_INDEX, WORDS_INDEX) * 3:
        index = new_index_name(table, table, ending)
        assert len(index.encode()) <= 63
        assert own_ending(table, index) == ending
        taken.add(index)
    assert len(taken) == 6


def test_long_names_do_not_clash(pg: Any) -> None:
    names = [f"{'é' * 27}_{number}" for number in range(2)]
    sinks = [pg.begun(name) for name in names]
    try:
        found = set()
        for sink in sinks:
            sink.finish()
            index = sink._session.run(lambda c, sink=sink: find_index(c, sink._begun))
            assert index is not None
            assert own_ending(sink._begun, index.name) == VECTORS_INDEX
            found.add(index.name)
        assert len(found) == 2
    finally:
        for sink, name in zip(sinks, names, strict=True):
            sink.close()
            pg.fetch("DROP TABLE {}", name)


def test_names_that_a_renamed_table_has_kept_are_left_to_it(pg: Any, pg_table: str) -> None:
    """As it is renamed by hand, to load anew under its old name."""
    kept = f"{pg_table}_kept"
    words = Target(**{**vars(pg.target()), "full_text": "simple"})
    rows = pg.rows(0, 9)
    try:
        for number in ("", "1"):
            sink = pg.begun(pg_table, words)
            sink.write(rows, pg.vectors(rows))
            sink.finish()
            sink.close()
            names = [f"{pg_table}_{ending}{number}" for ending in ("embedding_hnsw", "words_gin")]
            assert [name for name, *_ in indexes(pg, pg_table)] == names
            if not number:
                pg.fetch("ALTER TABLE {} RENAME TO {}", pg_table, kept)
        # Another language: the index of the vectors is built again, and that of the other stays.
        other = pg.begun(pg_table, Target(**{**vars(words), "full_text": "english"}))
        other.finish()
        assert [name for name, *_ in indexes(pg, pg_table)] == names
        assert all(is_valid for _, is_valid, _ in indexes(pg, kept))
        assert len(indexes(pg, kept)) == 2
    finally:
        pg.fetch("DROP TABLE IF EXISTS {}", kept)
