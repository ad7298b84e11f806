from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from embedlib.errors import SinkError
from embedlib.indexing import UnreachableSinkError
from embedlib_pgvector.connection import (
    GIVE_UP_AFTER_SECONDS,
    SEARCH_GIVES_UP_AFTER_SECONDS,
    DatabaseSession,
)


def numbers(pg: Any, table: str) -> list[int]:
    return pg.fetch("SELECT (langchain_metadata->>'number')::int FROM {} ORDER BY 1", table)


class CutOnce(psycopg.Cursor[Any]):
    """Has the server end the connection once, before a statement that begins like this."""

    server: Any = None
    before = ""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        self.cut(query)
        return super().execute(query, *args, **options)

    def copy(self, statement: Any, *args: Any, **options: Any) -> Any:
        self.cut(statement)
        return super().copy(statement, *args, **options)

    def cut(self, query: Any) -> None:
        text = query if isinstance(query, str) else query.as_string(self.connection)
        if CutOnce.before and text.startswith(CutOnce.before):
            CutOnce.before = ""
            CutOnce.server.end_writers()


@contextmanager
def cutting(pg: Any, sink: Any, before: str) -> Any:
    CutOnce.server, CutOnce.before = pg, before
    sink._session._connection.cursor_factory = CutOnce
    yield
    assert CutOnce.before == "", "the statement never came"


@pytest.mark.parametrize("before", ["COPY", "INSERT"])
def test_a_batch_is_repeated_whole(pg: Any, pg_table: str, before: str) -> None:
    sink = pg.begun(pg_table)
    rows = pg.rows(0, 10)
    sink.write(rows[:6], pg.vectors(rows[:6]))
    with cutting(pg, sink, before):
        sink.write(rows[4:], pg.vectors(rows[4:]))
    assert numbers(pg, pg_table) == list(range(10))
    assert pg.waits == [0.5]
    assert "trying again in 0.5 s" in pg.lines[0]
    assert pg.lines[1].endswith("connected again")


def test_every_operation_comes_back(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_pgvector.reading.SCAN_PAGES", 1)
    sink = pg.begun(pg_table)
    rows = pg.rows(0, 200)
    ids = [row.id for row in rows]
    operations: list[Callable[[], Any]] = [
        lambda: sink.write(rows, pg.vectors(rows)),
        lambda: sink.digests(ids),
        lambda: sink.write_metadata(rows[:5]),
        lambda: sink.search(pg.vectors(rows)[0], 3),
        lambda: sink.delete(ids[150:]),
        sink.finish,
        sink.inspect,
    ]
    for number, operation in enumerate(operations, start=1):
        pg.end_writers()
        operation()
        assert len(pg.waits) == number
    keys = []
    for key in sink.scan():  # some twenty pages, the connection is lost on each
        keys.append(key.id)
        if len(keys) % 20 == 0:
            pg.end_writers()
    assert sorted(keys) == sorted(ids[:150])
    assert len(pg.waits) >= len(operations) + 3
    assert numbers(pg, pg_table) == list(range(150))


def test_a_cut_line_is_noticed(pg: Any, pg_table: str) -> None:
    """No last word of the server, as when the network fails."""
    sink = pg.begun(pg_table)
    line = socket.socket(fileno=os.dup(sink._session._connection.fileno()))
    line.shutdown(socket.SHUT_RDWR)
    line.close()
    sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    assert numbers(pg, pg_table) == [0, 1, 2]
    assert 0.5 in pg.waits


def test_a_client_whose_machine_is_gone_is_noticed_by_the_server(pg: Any, pg_table: str) -> None:
    """Asked of the server, as each connection of a load is: on a socket of Unix they read 0."""
    names = ("count", "idle", "interval")
    expected = {*(f"tcp_keepalives_{name}" for name in names), "tcp_user_timeout"}
    sink = pg.begun(pg_table)
    for _ in range(2):
        found = sink._session._connection.execute(
            "SELECT name FROM pg_settings WHERE source = 'session' AND name LIKE 'tcp_%'"
        )
        assert {name for (name,) in found} == expected
        pg.end_writers()
        sink.inspect()


def test_the_lock_is_taken_again(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    pg.end_writers()
    sink.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    with pytest.raises(SinkError, match="another writer is active"):
        pg.begun(pg_table)


def test_a_writer_that_lost_its_lock_to_another_stops(pg: Any, pg_table: str) -> None:
    first = pg.begun(pg_table)
    pg.end_writers()
    second = pg.begun(pg_table)
    second.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    with pytest.raises(SinkError, match="another writer is active"):
        first.write(pg.rows(5, 6), pg.vectors(pg.rows(5, 6)))
    assert numbers(pg, pg_table) == [0]


def test_a_table_that_another_writer_has_replaced_meanwhile_is_left_alone(
    pg: Any, pg_table: str
) -> None:
    first = pg.begun(pg_table)
    pg.end_writers()
    second = pg.begun(pg_table, pg.target(fingerprint="f2", recreate=True))
    second.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    second.finish()
    second.close()
    with pytest.raises(SinkError, match="lost, another load has replaced the table; nothing was"):
        first.write(pg.rows(5, 6), pg.vectors(pg.rows(5, 6)))
    assert numbers(pg, pg_table) == [0]


def test_a_standby_in_the_middle_of_a_load_is_waited_out(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover the address leads to the old primary for a while."""
    sink = pg.begun(pg_table)
    monkeypatch.setattr(sink._session, "_is_set_read_only", lambda: False)
    sink._session._connection.execute("SET default_transaction_read_only = on")
    pg.fetch("ALTER ROLE CURRENT_USER SET default_transaction_read_only = on")

    def promote() -> None:
        if len(pg.waits) in (0, 3):
            options = "-c default_transaction_read_only=off"
            with psycopg.connect(pg.dsn, options=options, autocommit=True) as connection:
                connection.execute("ALTER ROLE CURRENT_USER RESET default_transaction_read_only")

    pg.on_wait = promote
    try:
        sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    finally:
        pg.waits.clear()
        promote()
    assert numbers(pg, pg_table) == [0, 1, 2]
    told = "read-only transaction; the server seems to be a standby"
    assert sum(told in line for line in pg.lines) == 3
    assert pg.lines[-1].endswith("connected again")


def test_a_sink_that_was_closed_begins_as_a_new_one(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not come back from a loss, and a standby is no failover."""
    sink = pg.begun(pg_table)
    sink.close()
    sink.begin(pg.target(), pg.lines.append)
    assert pg.lines == []
    sink.close()
    pg.fetch("DROP TABLE {}", pg_table)
    monkeypatch.setattr(sink._session, "_is_set_read_only", lambda: False)
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, options="-c default_transaction_read_only=on")
    monkeypatch.setattr(sink._session, "_locate", lambda: dsn)
    with pytest.raises(SinkError, match="read-only transaction; the server seems to be a standby"):
        sink.begin(pg.target(), pg.lines.append)
    assert pg.waits == []


def test_a_server_to_which_no_connection_is_set_up_yet_may_be_a_standby(pg: Any) -> None:
    """The table of a batch is made with every connection, which a standby refuses."""
    assert not pg.sink()._session._is_set_read_only()


def test_a_server_that_is_set_read_only_in_the_middle_of_a_load_is_no_standby(
    pg: Any, pg_table: str
) -> None:
    sink = pg.begun(pg_table)
    sink._session._connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(SinkError, match="transaction; default_transaction_read_only is on, which"):
        sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))
    assert pg.waits == []
    sink.write(pg.rows(0, 3), pg.vectors(pg.rows(0, 3)))  # by another connection, without it
    assert numbers(pg, pg_table) == [0, 1, 2]


def test_its_own_lost_connection_does_not_keep_the_lock(pg: Any, pg_table: str) -> None:
    """The network is gone, and the server believes that the old connection lives."""
    sink = pg.begun(pg_table)
    old = sink._session._connection
    sink._session._connection = None
    sink.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    assert pg.waits == [0.1]
    with pytest.raises(psycopg.OperationalError):
        old.execute("SELECT 1")
    old.close()


def test_a_server_that_starts_is_awaited_from_the_first_connection_on(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "connection failed: FATAL:  the database system is starting up"
    connect, refusals = psycopg.connect, [psycopg.OperationalError(said)]

    def start(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return connect(*arguments, **options)

    monkeypatch.setattr(psycopg, "connect", start)
    pg.begun(pg_table)
    assert pg.waits == [0.5]
    assert "the database system is starting up; trying again in 0.5 s" in pg.lines[0]


def test_it_gives_up_in_the_end(pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = pg.begun(pg_table)
    pg.end_writers()
    dsn = "host=127.0.0.1 port=1"
    monkeypatch.setattr(sink._session, "_locate", lambda: dsn)
    with pytest.raises(SinkError, match=r"gave up after \d+ s, run the load again to continue"):
        sink.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    assert pg.waits[:4] == [0.5, 1, 2, 4]
    assert GIVE_UP_AFTER_SECONDS <= sum(pg.waits) < GIVE_UP_AFTER_SECONDS + 60
    assert len(pg.lines) == len(pg.waits)


def test_a_search_gives_up_soon_and_the_next_one_connects_again(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = pg.begun(pg_table)
    rows = pg.rows(0, 1)
    sink.write(rows, pg.vectors(rows))
    pg.end_writers()
    with monkeypatch.context() as away:
        away.setattr(sink._session, "_locate", lambda: "host=127.0.0.1 port=1")
        with pytest.raises(UnreachableSinkError, match=r"gave up after \d s, search again later"):
            sink.search(pg.vectors(rows)[0], 1)
    assert SEARCH_GIVES_UP_AFTER_SECONDS <= sum(pg.waits) < 8
    assert len(sink.search(pg.vectors(rows)[0], 1)) == 1


def test_what_waiting_does_not_cure_is_not_waited_for(pg: Any, pg_table: str) -> None:
    sink = pg.begun(pg_table)
    pg.fetch("ALTER TABLE {} DROP COLUMN source_id", pg_table)
    with pytest.raises(SinkError, match=r'column "source_id" .* does not exist; the table was alt'):
        sink.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    pg.fetch("DROP TABLE {}", pg_table)
    with pytest.raises(SinkError, match="does not exist; the table was dropped during the load"):
        sink.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    assert pg.waits == []


@pytest.mark.parametrize("was_used", [False, True])
def test_a_pooler_that_changes_the_server_process_is_named(
    pg: Any, pg_table: str, was_used: bool
) -> None:
    sink = pg.begun(pg_table)
    own = sink._session._connection
    with sink._session.connect() as other:
        if was_used:  # by a client with temporary tables of its own
            other.execute("CREATE TEMPORARY TABLE anything ()")
        sink._session._connection = other
        with pytest.raises(SinkError, match=r"; a temporary table .* a pooler in session mode$"):
            sink.write(pg.rows(0, 1), pg.vectors(pg.rows(0, 1)))
    own.close()
    assert pg.waits == []


def test_nothing_stays_in_the_processes_of_a_pooler_in_transaction_mode(
    pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pg.connect() as server:

        class Client:
            """A connection through a pooler that has one process for all."""

            info = SimpleNamespace(
                backend_pid=-5,
                server_version=server.info.server_version,
                transaction_status=TransactionStatus.IDLE,
            )
            closed = False

            def __getattr__(self, name: str) -> Any:
                return getattr(server, name)

            def close(self) -> None:
                pass

        monkeypatch.setattr(DatabaseSession, "connect", lambda session: Client())
        with pytest.raises(SinkError, match="this is a pooler in transaction mode"):
            pg.begun(pg_table)
        left = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert server.execute(left).fetchall() == []
        assert server.execute("SELECT to_regclass('pg_temp.embedlib_stage')").fetchone() == (None,)


@pytest.fixture
def own_server(pg: Any, pg_copy: Any) -> Any:
    """A server that may be stopped and changed."""
    pg.dsn = pg.start_server(pg_copy)
    pg.folder = pg_copy
    return pg


def test_a_restarted_server_is_found_again(own_server: Any) -> None:
    pg = own_server
    sink = pg.begun("docs")
    rows = pg.rows(0, 9)
    sink.write(rows[:5], pg.vectors(rows[:5]))
    pg.stop_server(pg.folder)

    def start_the_third_time() -> None:
        if len(pg.waits) == 3:
            pg.start_server(pg.folder)

    pg.on_wait = start_the_third_time
    sink.write(rows[3:], pg.vectors(rows[3:]))
    assert pg.waits == [0.5, 1, 2]
    assert numbers(pg, "docs") == list(range(9))


def test_a_wrong_password_is_not_told(own_server: Any) -> None:
    pg = own_server
    pg.fetch("CREATE ROLE clerk LOGIN PASSWORD 'right'")
    access = pg.folder / "pg_hba.conf"
    access.write_text("local all clerk scram-sha-256\n" + access.read_text())
    pg.fetch("SELECT pg_reload_conf()")
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, user="clerk", password="hush-hush")
    # Named after the password, so that it would show if the server's words were told as they are.
    sink = pg.sink("docs", conninfo=dsn, password="hush-hush")
    with pytest.raises(
        SinkError, match=r"authentication failed.*; it is read .*PGPASSWORD"
    ) as caught:
        sink.inspect()
    assert "hush" not in str(caught.value)
    assert pg.waits == []
    dsn = psycopg.conninfo.make_conninfo(pg.dsn, user="clerk", dbname="hush-hush", password="right")
    with pytest.raises(SinkError, match=r'database "\*\*\*" does not exist'):
        pg.sink("docs", conninfo=dsn, password="hush-hush").inspect()
