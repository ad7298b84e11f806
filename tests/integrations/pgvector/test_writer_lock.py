"""The lock of a table, on a double of a connection: what the server answers is written down."""

from __future__ import annotations

from typing import Any

import pytest

from embedlib.errors import SinkError
from embedlib_pgvector.writer_lock import RETRIES, WAITS_SECONDS, WriterLock


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
