"""Settings of the session, on servers that differ from the one of the tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from embedlib.system.memory import Memory, Room
from embedlib_pgvector.destination import HnswOptions
from embedlib_pgvector.hnsw import BYTES_PER_ROW, IndexBuild
from embedlib_pgvector.queries import _widen


@pytest.fixture
def without_check(pg: Any) -> Iterator[str]:
    """A schema before pg_catalog, whose set_config refuses what a server on Windows refuses."""
    schema = "embedlib_test_windows"
    pg.fetch("DROP SCHEMA IF EXISTS {} CASCADE", schema)
    pg.fetch("CREATE SCHEMA {}", schema)
    with pg.connect() as connection:
        connection.execute(f"""
            CREATE FUNCTION {schema}.set_config(name text, value text, is_local boolean)
            RETURNS text LANGUAGE plpgsql AS $$ BEGIN
                IF name = 'client_connection_check_interval' THEN
                    RAISE invalid_parameter_value USING MESSAGE = 'invalid value for parameter';
                END IF;
                RETURN pg_catalog.set_config(name, value, is_local);
            END $$""")
    yield schema
    pg.fetch("DROP SCHEMA {} CASCADE", schema)


def test_a_server_that_cannot_check_for_killed_clients_is_loaded(
    pg: Any, pg_table: str, without_check: str
) -> None:
    options = f"-c search_path={without_check},pg_catalog,public"
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options=options)
    sink = pg.begun(f"public.{pg_table}", conninfo=dsn)
    sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    show = "SHOW client_connection_check_interval"
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == ("0",)
    sink.finish()
    assert sink.inspect().num_rows == 3


def test_the_memory_of_a_build_is_at_most_what_the_server_takes(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = pg.begun(pg_table, index=HnswOptions())
    sink.write(pg.rows(0, 9), pg.vectors(pg.rows(0, 9)))
    monkeypatch.setattr("embedlib_pgvector.hnsw.BYTES_PER_ROW", BYTES_PER_ROW + (20 << 20))
    # A temporary view is found before that of the system.
    view = """
        CREATE TEMPORARY VIEW pg_settings AS SELECT name, setting, CASE name
        WHEN 'maintenance_work_mem' THEN '81920' ELSE max_val END AS max_val
        FROM pg_catalog.pg_settings"""
    sink._session.run(lambda connection: connection.execute(view))
    sink.finish()
    show = "SHOW maintenance_work_mem"
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == ("80MB",)


def test_settings_of_a_search_hold_for_it_alone(pg: Any) -> None:
    def shown(connection: Any) -> list[str]:
        names = ("hnsw.ef_search", "hnsw.iterative_scan")
        return [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]

    pg.fetch("CREATE EXTENSION IF NOT EXISTS vector")
    for k, is_filtered, expected in (
        (9, False, ["40", "strict_order"]),  # the server's own, which is more
        (50, False, ["50", "strict_order"]),
        (9, True, ["200", "relaxed_order"]),
        (5000, True, ["1000", "relaxed_order"]),  # as much as pgvector takes
    ):
        with pg.connect() as connection:  # has not loaded pgvector
            with connection.transaction():
                _widen(connection, k, is_filtered=is_filtered)
                assert shown(connection) == expected
            assert shown(connection) == ["40", "off"]


def test_a_build_takes_its_share_of_the_server(pg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the memory and all cores but one of this machine, or half of what another states."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4 << 10}.get)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    none: Any = None
    build = IndexBuild(none, none, HnswOptions(), is_live=False)
    with pg.connect() as connection:

        def num_workers(at: Any, cores: int, already: int = 2) -> int:
            connection.execute(f"SET max_parallel_workers = {cores}")
            connection.execute(f"SET max_parallel_maintenance_workers = {already}")
            build._set_workers(at, True)
            return int(connection.execute("SHOW max_parallel_maintenance_workers").fetchone()[0])

        connection.execute("SET effective_cache_size = '6GB'")
        here, there = (
            cast(Any, SimpleNamespace(info=SimpleNamespace(host=host), execute=connection.execute))
            for host in ("/tmp", "db.example")
        )
        for room, num_bytes in ((None, 2 << 30), (1 << 30, 1 << 30), (9 << 30, 2 << 30)):
            memory = Memory(room=None if room is None else Room(room, "a limit"))
            monkeypatch.setattr("embedlib_pgvector.hnsw.read_memory", lambda found=memory: found)
            assert build._spare_bytes(here) == num_bytes
            assert build._spare_bytes(there) == 3 << 30
        assert [num_workers(here, cores) for cores in (8, 4)] == [5, 4]
        assert [num_workers(there, 8), num_workers(there, 8, already=7)] == [4, 7]


def test_an_index_is_built_however_short_a_role_waits_for_locks(pg: Any, pg_table: str) -> None:
    """Built beside writers, it waits for every transaction that may still see the old table."""
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options="-c lock_timeout=50ms")
    rows = pg.rows(0, 9)
    sink = pg.begun(pg_table, index=None)
    sink.write(rows, pg.vectors(rows))
    sink.close()
    sink = pg.begun(pg_table, conninfo=dsn)
    has_ended = threading.Event()
    reader = pg.connect()
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT 1")

    def commit_when_it_has_waited() -> None:
        waits = (
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%'"
            " AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '200ms'"
        )
        while not pg.fetch(waits) and not has_ended.is_set():
            pass
        reader.execute("COMMIT")

    thread = threading.Thread(target=commit_when_it_has_waited)
    thread.start()
    try:
        sink.finish()
    finally:
        has_ended.set()
        thread.join()
        reader.close()
    assert sink.inspect().index == "hnsw"


def test_a_load_that_is_idle_for_long_keeps_its_connection(pg: Any, pg_table: str) -> None:
    """Texts are embedded meanwhile, and with the connection it would lose its lock."""
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options="-c idle_session_timeout=1min")
    sink = pg.begun(pg_table, conninfo=dsn)
    show = "SHOW idle_session_timeout"
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == ("0",)


def test_the_memory_of_a_build_is_at_most_what_is_left_in_a_container(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(room=Room(100 << 20, "memory limit of its cgroup"))
    monkeypatch.setattr("embedlib_pgvector.hnsw.read_memory", lambda: memory)
    monkeypatch.setattr("embedlib_pgvector.hnsw.BYTES_PER_ROW", 20 << 20)
    sink = pg.begun(pg_table)
    sink.write(pg.rows(0, 9), pg.vectors(pg.rows(0, 9)))
    sink.finish()
    show = "SHOW maintenance_work_mem"
    assert sink._session.run(lambda c: c.execute(show).fetchone()) == ("100MB",)
