"""The lock of a table, on a double of a connection: what the server answers is written down."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from embedlib.errors import SinkError
from embedlib_pgvector.writer_lock import (
    RETRIES,
    WAITS_SECONDS,
    WriterLock,
    refuse_transaction_pooler,
)


class Server:
    """A connection to a server on which another writer holds the lock for some tries."""

    def __init__(self, num_taken: int, holder: tuple[Any, ...] | None) -> None:
        self._taken = num_taken
        self._holder = holder
        self._row: tuple[Any, ...] | None = None

    def execute(self, query: str, values: object = ()) -> Server:
        if "try_advisory" in query:
            self._row = (self._taken == 0,)
            self._taken = max(0, self._taken - 1)
        elif "pg_locks" in query:
            self._row = self._holder
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._row


def waits_of(server: Server) -> list[float]:
    waits: list[float] = []
    WriterLock("public", "docs", "pgvector:docs", waits.append).take(server)  # type: ignore[arg-type]
    return waits


def test_a_lock_that_is_released_while_its_holder_is_looked_up_is_tried_again() -> None:
    num_tries = len(WAITS_SECONDS) + len(RETRIES)
    assert waits_of(Server(num_tries - 1, holder=None)) == list(WAITS_SECONDS)
    with pytest.raises(SinkError, match="another writer is active; wait for its end"):
        waits_of(Server(num_tries, holder=None))


def test_a_writer_that_holds_the_lock_to_the_last_is_named() -> None:
    server = Server(len(WAITS_SECONDS) + 1, holder=(7, "start", "embedlib"))
    with pytest.raises(SinkError, match=r"another writer is active \(embedlib, server process 7\)"):
        waits_of(server)


class Client:
    """A connection through a pooler, which has a number of its own and is given processes."""

    def __init__(self, processes: Iterator[int]) -> None:
        self.info = SimpleNamespace(backend_pid=-5)
        self._processes = processes

    def execute(self, query: str) -> Client:
        assert query == "SELECT pg_backend_pid()"
        return self

    def fetchone(self) -> tuple[int]:
        return (next(self._processes),)

    def close(self) -> None:
        pass


def refuse(own: Client, other: Client) -> None:
    refuse_transaction_pooler(own, lambda: other, "pgvector:docs")  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("turn", [(71,), (71, 72), (71, 72, 73), (71, 72, 72, 71, 71)])
def test_a_pooler_in_transaction_mode_is_refused(turn: tuple[int, ...]) -> None:
    processes = cycle(turn)
    with pytest.raises(SinkError, match=r"^pgvector:docs: this is a pooler in transaction mode, "):
        refuse(Client(processes), Client(processes))


def test_a_pooler_in_session_mode_is_as_good_as_the_server() -> None:
    refuse(Client(repeat(71)), Client(repeat(72)))


def test_a_pooler_without_a_process_for_a_second_connection_is_in_session_mode() -> None:
    def waits_in_vain() -> Iterator[int]:
        raise psycopg.errors.ProtocolViolation("query_wait_timeout")
        yield

    refuse(Client(repeat(71)), Client(waits_in_vain()))
