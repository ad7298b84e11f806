"""SQL queries as sources: SQLite files and a real Postgres."""

from __future__ import annotations

import json
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

import pytest

from embedlib.errors import SourceError
from embedlib.indexing import SourceOptions, open_sql_source
from embedlib.indexing.preparing import check_files
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources import sql
from embedlib.packages.installing import install_line
from embedlib.testing import FakeSink, FakeStore


def read(
    url: str, query: str, told: list[str] | None = None, **options: Any
) -> list[Document | BadRow]:
    tell = [].append if told is None else told.append
    return list(open_sql_source(url, query, SourceOptions(**options), tell))


def refusal(url: str, query: str = "SELECT 1", **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read(url, query, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("a ?b.db")) as connection:
        connection.execute("CREATE TABLE docs (id, body, n)")
        rows = [(1, "one", 1.5), ("b", "two", None), (None, "three", 1), (4, None, b"x")]
        connection.executemany("INSERT INTO docs VALUES (?, ?, ?)", rows)
        connection.commit()
    return "sqlite:a ?b.db"


# --- sqlite ---------------------------------------------------------------------------------------


def test_few_long_texts_are_in_memory_at_the_same_time(database: str) -> None:
    long = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 1500)"
    query = f"{long} SELECT id, hex(zeroblob(25000)) AS body FROM n"
    tracemalloc.start()
    try:
        source = open_sql_source(database, query, SourceOptions(), [].append)
        assert sum(1 for _ in source) == 1500
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_sqlite(database: str) -> None:
    told: list[str] = []
    assert read(database, "SELECT * FROM docs WHERE id NOT NULL AND body NOT NULL", told) == [
        Document(id="1", text="one", metadata={"n": 1.5}, place=f"row 1 of {database}"),
        Document(id="b", text="two", metadata={"n": None}, place=f"row 2 of {database}"),
    ]
    assert told == [
        f"{database}: text is the field 'body', id is the field 'id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]


def test_bad_rows_of_sqlite(database: str) -> None:
    query = "SELECT id, body, n FROM docs UNION ALL SELECT 5, CAST(x'62e464' AS TEXT), 0"
    reasons = [row.reason if isinstance(row, BadRow) else None for row in read(database, query)]
    assert reasons == [
        None,
        None,
        "the field 'id' has no id",
        "the field 'body' has no text",
        "the field 'body' has the lone surrogate '\\udce4' at character 1, which is not Unicode",
    ]
    [row] = read(database, "SELECT 1 AS id, 'a' AS text, x'00' AS raw")
    assert isinstance(row, BadRow)
    assert row.reason.startswith("the field 'raw' holds bytes")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("DELETE FROM docs", "attempt to write a readonly database"),
        ("SELECT * FROM absent", "no such table: absent"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT '\udcff'", "surrogates not allowed"),
        ("PRAGMA query_only = 1", "it must be a SELECT"),
        (
            "SELECT id, body, body FROM docs",
            "more than one column named 'body'; rename all but one with AS",
        ),
        ("SELECT body, n FROM docs", "choose a column with id_field (--id-field)"),
    ],
)
def test_queries_that_are_refused(database: str, query: str, reason: str) -> None:
    assert reason in refusal(database, query)
    assert len(read(database, "SELECT * FROM docs")) == 4


def test_a_file_may_be_named_in_other_ways(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    told: list[str] = []
    query, fields = "SELECT * FROM docs LIMIT 1", {"id_field": "id", "text_field": "body"}
    for name in (database.replace("sqlite", "SQLite"), "sqlite:~/a ?b.db"):
        assert [row.id for row in read(name, query, told, **fields)] == ["1"]
    assert told == []


def test_the_scope_of_a_query_is_its_file_and_what_is_read_of_it(
    database: str, tmp_path: Path
) -> None:
    def scope(url: str = database, **fields: Any) -> str:
        options = SourceOptions(since_field="n", **fields)
        return str(cast(Any, open_sql_source(url, "SELECT 1", options, print)).scope)

    assert scope() == scope(f"sqlite:{tmp_path}/a ?b.db")
    others = [{}, {"id_field": "a"}, {"text_field": "a"}, {"metadata_fields": ("a",)}]
    assert len({scope(**fields) for fields in others}) == 4


def test_a_load_does_not_write_over_its_database(database: str) -> None:
    source = open_sql_source(database, "SELECT * FROM docs", SourceOptions(), [].append)
    with pytest.raises(SourceError, match=r"errors_file 'a \?b\.db' is also an input"):
        check_files(source, FakeSink(FakeStore()), "a ?b.db")


def test_another_thread_may_close_the_file(database: str) -> None:
    source = iter(open_sql_source(database, "SELECT * FROM docs", SourceOptions(), [].append))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, source).result().id == "1"
    source.close()  # type: ignore[attr-defined]


def test_a_query_may_have_no_rows(database: str) -> None:
    assert read(database, "SELECT * FROM docs WHERE 0") == []


def test_files_that_do_not_exist_are_not_created(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(f"sqlite:{tmp_path / 'no.db'}")
    assert not list(tmp_path.iterdir())


def test_a_file_in_a_folder_without_permission_is_not_called_missing(
    tmp_path: Path, forbid: Callable[[str | Path], None]
) -> None:
    forbid(tmp_path / "no.db")
    assert refusal(f"sqlite:{tmp_path / 'no.db'}").endswith(": unable to open database file")


def test_memory_does_not_grow_with_rows(database: str) -> None:
    query = (
        "WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r LIMIT 50000) "
        "SELECT id, 'row ' || id AS text FROM r"
    )
    source = open_sql_source(database, query, SourceOptions(), [].append)
    tracemalloc.start()
    try:
        assert sum(isinstance(row, Document) for row in source) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# --- urls -----------------------------------------------------------------------------------------


def test_other_urls_are_refused_without_their_password() -> None:
    assert refusal("mysql://me:secret@host/db?password=secret") == (
        "mysql://me:***@host/db: write postgresql://HOST/DATABASE or sqlite:PATH"
    )


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:%secret@host/db", "postgresql://host/db?password=secret&nonsense=secret"],
)
def test_a_broken_url_is_refused_without_its_password(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(SourceError) as caught:
        open_sql_source(url, "SELECT 1", SourceOptions(), [].append)
    assert "secret" not in str(caught.value)
    assert "PostgreSQL cannot read this URL" in str(caught.value)


def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    message = refusal(f"postgresql://me:secret@/db?host={tmp_path}")
    assert message.startswith("postgresql://me:***@/db: connection ")
    assert "secret" not in message
    assert "label empty" in refusal("postgresql://db..internal/shop")


def test_the_wait_for_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    waits: list[object] = []

    def connect(**given: object) -> None:
        waits.append(given.get("connect_timeout"))
        assert (given["keepalives_idle"], given["tcp_user_timeout"]) == ("30", "60000")
        raise psycopg.errors.ConnectionTimeout("connection timeout expired")

    monkeypatch.setattr(psycopg, "connect", connect)
    message = refusal("postgresql://me:secret@host/db")
    assert message.startswith("postgresql://me:***@host/db: the server does not answer; check ")
    refusal("postgresql://host/db?connect_timeout=60")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "5")
    refusal("postgresql://host/db")
    assert waits == ["10", "60", None]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert install_line("pgvector") in refusal("postgresql://host/db")


# --- postgres -------------------------------------------------------------------------------------


@pytest.fixture
def postgres(pg: Any) -> str:
    return str(pg.dsn)


def changed_url(url: str, **changes: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    return f"postgresql://?{urlencode({**conninfo_to_dict(url), **changes}, quote_via=quote)}"


def test_postgres(postgres: str) -> None:
    query = """
        SELECT 'a%' AS id, 'text' AS body, 1.10::numeric AS price, DATE '2026-01-02' AS day,
            '00000000-0000-0000-0000-000000000001'::uuid AS other, '{"x": [1]}'::jsonb AS j,
            ARRAY['a', NULL] AS tags, '10.0.0.1'::inet AS host, 'NaN'::float8 AS nan,
            INTERVAL '1 day' AS wait;
    """
    [row] = read(postgres, query)
    assert isinstance(row, Document)
    assert (row.id, row.text) == ("a%", "text")
    assert row.metadata == {
        "price": 1.1,
        "day": "2026-01-02",
        "other": "00000000-0000-0000-0000-000000000001",
        "j": {"x": [1]},
        "tags": ["a", None],
        "host": "10.0.0.1",
        "nan": None,
        "wait": "1 day",
    }
    [row] = read(postgres, "SELECT 1 AS id, 'a' AS text, '\\x00'::bytea AS raw")
    assert isinstance(row, BadRow)
    assert row.reason.startswith("the field 'raw' holds bytes")


def test_time_limits_of_a_role_do_not_end_a_load(postgres: str) -> None:
    """A transaction that is idle while rows are embedded, for one."""
    names = ("statement_timeout", "idle_in_transaction_session_timeout")
    limited = changed_url(postgres, options=" ".join(f"-c {name}=1h" for name in names))
    shown = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    [row] = read(limited, f"SELECT 1 AS id, 'a' AS text, {shown}")
    assert isinstance(row, Document)
    assert row.metadata == dict.fromkeys(names, "0")


def test_a_database_without_an_encoding(pg: Any) -> None:
    name = "embedlib_test_ascii"
    pg.fetch("DROP DATABASE IF EXISTS {}", name)
    pg.fetch("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0", name)
    try:
        url = changed_url(pg.dsn, dbname=name)
        [row] = read(url, "SELECT 'ä' AS id, 'é漢'::text AS text, 'ü'::varchar AS more")
        assert isinstance(row, Document)
        assert (row.id, row.text, row.metadata) == ("ä", "é漢", {"more": "ü"})
    finally:
        pg.fetch("DROP DATABASE {}", name)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("'infinity'::timestamptz", "infinity"),
        ("'-infinity'::timestamp", "-infinity"),
        ("'2026-01-02 03:04:05'::timestamp", "2026-01-02T03:04:05"),
        ("'infinity'::date", "infinity"),
        ("'0044-03-15 BC'::date", "0044-03-15 BC"),
        ("'20000-01-01'::date", "20000-01-01"),
        ("'24:00'::time", "24:00:00"),
        ("'10:00+02'::timetz", "10:00:00+02:00"),
        ("ARRAY['infinity', '2026-01-02']::date[]", ["infinity", "2026-01-02"]),
        ("'1 mon 2 days'::interval", "1 mon 2 days"),
        ("'1000000000 days'::interval", "1000000000 days"),
        ("'[1,5)'::int4range", "[1,5)"),
        ("'[2026-01-02,infinity)'::daterange", "[2026-01-02,infinity)"),
        ("'{[1,2),[5,6)}'::int4multirange", "{[1,2),[5,6)}"),
    ],
)
def test_values_of_postgres_that_python_has_no_type_for(
    postgres: str, value: str, written: object
) -> None:
    # Such a column is not taken for the one with the texts.
    query = f"SELECT 1 AS id, {value} AS x, 'a' AS note UNION ALL SELECT 2, NULL, 'b'"
    rows = read(postgres, query)
    assert [row.metadata for row in rows if isinstance(row, Document)] == [
        {"x": written},
        {"x": None},
    ]


def test_json_that_python_does_not_read_is_a_bad_row(postgres: str) -> None:
    number = "('[1' || repeat('0', 5000) || ']')"
    query = f"SELECT 1 AS id, 'a' AS text, {number}::jsonb AS j UNION ALL SELECT 2, 'b', '7'"
    bad, good = read(postgres, query)
    assert isinstance(bad, BadRow)
    assert (bad.id, bad.reason[:37]) == ("1", "the field 'j' cannot be read: Exceeds")
    assert isinstance(good, Document)
    assert good.metadata == {"j": 7}


def test_times_of_a_server_that_writes_them_in_another_style(postgres: str) -> None:
    german = f"{postgres}&options=-c%20DateStyle%3DGerman%20-c%20TimeZone%3DUTC"
    query = "SELECT 1 AS id, 'a' AS text, '2026-01-02 03:04Z'::timestamptz AS x"
    [row] = read(german, query)
    assert isinstance(row, Document)
    assert row.metadata == {"x": "02.01.2026 03:04:00 UTC"}


def test_postgres_sends_rows_as_they_are_needed(postgres: str) -> None:
    query = "SELECT n AS id, 'a' AS text, 1 / (9000 - n) AS m FROM generate_series(1, 9000) n"
    source = iter(open_sql_source(postgres, query, SourceOptions(), [].append))
    assert [row.id for row in islice(source, 3)] == ["1", "2", "3"]
    with pytest.raises(SourceError, match="division by zero"):
        list(source)  # only the last row fails, and it was not computed before


def test_a_connection_that_is_lost_is_said_to_be_no_loss(pg: Any, postgres: str) -> None:
    query = "SELECT n AS id, 'a' AS text FROM generate_series(1, 9000) n"
    source = iter(open_sql_source(postgres, query, SourceOptions(), [].append))
    next(source)
    pg.fetch(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE query LIKE '%embedlib_' || 'source%'"
    )
    with pytest.raises(SourceError, match=r"postgresql://.*: .+; run the load again to continue$"):
        list(source)


def test_postgres_ends_its_query_when_nobody_reads_on(postgres: str) -> None:
    query = "SELECT n AS id, 'embedlib-test' AS text FROM generate_series(1, 90000) n"
    source = iter(open_sql_source(postgres, query, SourceOptions(), [].append))
    next(source)
    source.close()  # type: ignore[attr-defined]
    [row] = read(
        postgres,
        "SELECT 1 AS id, count(*)::text AS text FROM pg_stat_activity "
        "WHERE query LIKE '%embedlib-' || 'test%' AND pid <> pg_backend_pid()",
    )
    assert isinstance(row, Document)
    assert row.text == "0"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("CREATE TABLE x (a int)", "syntax error"),
        ("SELECT nothing", "does not exist"),
        ("SELECT 1 AS id, nextval('pg_temp.s')::text AS text", "does not exist"),
        ("SELECT 1 AS id, lo_create(0)::text AS text", "read-only transaction"),
        ("SELECT 1 AS id, lastval()::text AS text", "is not yet defined in this session"),
        (f"SELECT {'1, ' * 1700} 2", "at most 1664 entries"),
        ("SELECT 'a' AS text, 'b' AS text", "more than one column named 'text'"),
        ("SELECT 'a' AS text", "choose a column with id_field (--id-field)"),
    ],
)
def test_queries_that_postgres_refuses(pg: Any, postgres: str, query: str, reason: str) -> None:
    if "lo_create" in query and pg.server_version() < 160000:
        pytest.skip("before Postgres 16 a read-only transaction may make large objects")
    said = refusal(postgres, query)
    assert reason in said
    assert "run the load again" not in said


def test_postgres_reads_what_has_changed(postgres: str) -> None:
    query = (
        "SELECT n AS id, 'a' AS text, TIMESTAMPTZ '2026-01-01 00:00Z' + n * INTERVAL '1 hour' AS "
        "\"at 100%\" FROM generate_series(1, {}) n WHERE 'a%s' LIKE 'a%' -- all"
    )
    tell = [].append
    options = SourceOptions(since_field="at 100%", since_overlap=3600, metadata_fields=())
    first: Any = open_sql_source(postgres, query.format(9), options, tell)
    assert len(list(first)) == 9
    again: Any = open_sql_source(postgres, query.format(12), options, tell)
    again.resume(first.position())
    assert [row.id for row in again] == ["8", "9", "10", "11", "12"]
    assert json.loads(again.position())[:2] == ["datetime", "2026-01-01T12:00:00+00:00"]


def test_a_time_without_end_moves_no_position_and_is_read_in_every_run(postgres: str) -> None:
    query = (
        "SELECT * FROM (VALUES (1, 'a', TIMESTAMP '2026-01-01'), (2, 'b', 'infinity'), "
        "(3, 'c', '-infinity'), (4, 'd', '2025-01-01')) AS t (id, text, at)"
    )
    options = SourceOptions(since_field="at")
    source: Any = open_sql_source(postgres, query, options, [].append)
    assert len(list(source)) == 4
    assert json.loads(source.position())[:2] == ["datetime", "2026-01-01T00:00:00"]
    again: Any = open_sql_source(postgres, query, options, [].append)
    again.resume(source.position())
    assert [row.id for row in again] == ["1", "2", "3"]


def test_rows_of_a_transaction_that_is_open_longer_are_read_later(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres) as other:
        other.execute("SELECT 1")  # it has begun, and has written nothing
        open_seconds = sql._open_seconds(postgres, "db")
        assert open_seconds > 0
        assert sql._open_seconds(postgres, "db") > open_seconds
    monkeypatch.setattr(sql, "_open_seconds", lambda *_: 7200.0)
    query = (
        "SELECT n AS id, 'a' AS text, TIMESTAMP '2026-01-01' + n * INTERVAL '1 hour' AS at "
        "FROM generate_series(1, 9) n"
    )
    options = SourceOptions(since_field="at", since_overlap=3600)
    first: Any = open_sql_source(postgres, query, options, [].append)
    assert len(list(first)) == 9
    again: Any = open_sql_source(postgres, query, options, [].append)
    again.resume(first.position())
    assert [row.id for row in again] == ["6", "7", "8", "9"]


def test_a_transaction_that_waits_for_its_commit_is_open(postgres: str) -> None:
    """A server prepares none by default: a table stands in front of the view."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE SCHEMA waiting")
        connection.execute(
            "CREATE TABLE waiting.pg_prepared_xacts AS SELECT now() - INTERVAL '2 hours' AS "
            "prepared, current_database() AS database UNION SELECT now() - INTERVAL '9 hours', 'b'"
        )
    url = changed_url(postgres, options="-c search_path=waiting,pg_catalog")
    assert 7200 <= sql._open_seconds(url, "db") < 32400


def test_the_scope_of_a_postgres_query_has_no_password() -> None:
    pytest.importorskip("psycopg")
    options = SourceOptions(since_field="at")
    scopes = {
        cast(Any, open_sql_source(url, "SELECT 1", options, [].append)).scope
        for url in ("postgresql://me:one@host/db", "postgresql://me:two@host:5432/db")
    }
    assert not any("one" in scope for scope in scopes)
    other = cast(Any, open_sql_source("postgresql://me@host/db", "SELECT 1", options, [].append))
    assert other.scope in scopes
