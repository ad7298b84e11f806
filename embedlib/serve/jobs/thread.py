"""StoreThread: the one thread that touches the folder; writes that wait share a commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from embedlib.serve.jobs.folder import told

T = TypeVar("T")
_Work = tuple[Callable[[], Any], "Future[Any]"]


class StoreThread:
    """Runs functions on one thread, and writes in transactions.

    A commit waits for the disk; whatever is asked for meanwhile goes into the next one together, so
    that many requests a second need few waits.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Start with a connection that no other thread uses from now on."""
        self._connection = connection
        self._executor = ThreadPoolExecutor(1, "embedlib-serve-jobs")
        self._lock = threading.Lock()
        self._waiting: list[_Work] = []

    async def run(self, work: Callable[[], T]) -> T:
        """Return what a function returns that writes nothing to the database.

        Raises:
            what it raises; `HTTPError` 507 for an error of the disk.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except (OSError, sqlite3.Error) as error:
            raise told(error) from error

    async def write(self, work: Callable[[], T]) -> T:
        """Return what a function returns, once all that it wrote is on disk.

        Nothing of it is written if it raises. Cancelling the task does not undo it.

        Raises:
            what it raises; `HTTPError` 507 for an error of the disk.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on cancelling it does nothing
        with self._lock:
            self._waiting.append((work, future))
            is_first = len(self._waiting) == 1
        if is_first:
            self._executor.submit(self._commit)
        try:
            return await asyncio.wrap_future(future)
        except (OSError, sqlite3.Error) as error:
            raise told(error) from error

    def close(self) -> None:
        """Wait for what was asked for, close the connection and end the thread."""
        self._executor.submit(self._connection.close)
        self._executor.shutdown(wait=True)

    def _commit(self) -> None:
        with self._lock:
            works, self._waiting = self._waiting, []
        outcomes: list[Any]
        try:
            outcomes = self._apply([work for work, _ in works])
        except Exception as error:
            with suppress(sqlite3.Error):  # all who wait are told the first error
                self._connection.execute("ROLLBACK")
            outcomes = [error] * len(works)
        for (_, future), outcome in zip(works, outcomes, strict=True):
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _apply(self, works: list[Callable[[], Any]]) -> list[Any]:
        """Run functions in one transaction; return what each returned or raised."""
        outcomes: list[Any] = []
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for work in works:
            execute("SAVEPOINT work")
            try:
                outcomes.append(work())
            except Exception as error:
                if not self._connection.in_transaction:  # SQLite has undone all of it
                    raise
                execute("ROLLBACK TO work")
                outcomes.append(error)
            execute("RELEASE work")
        execute("COMMIT")
        return outcomes
