"""Outcome: what a job ends with, for our own threads; callers get a `Future` of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotInTimeError  # of its own before Python 3.11
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from embedlib.threads.interrupts import is_of_handler

T = TypeVar("T")


class Outcome(Generic[T]):
    """A result or an error, settled once by any thread; the first one counts.

    It is what a job needs of `concurrent.futures.Future`, under the same names: the condition of a
    future, and the calls that take it, cost more than all else of a job of one text. Here is no
    lock: `setdefault` settles it and `pop` takes a callback, and both are atomic. So a signal
    handler or the garbage collector may run, and close the model, anywhere in here.
    """

    __slots__ = ("_callbacks", "_if_cancelled", "_settled")

    def __init__(self) -> None:
        """Start unsettled."""
        self._settled: dict[str, tuple[T | None, BaseException | None]] = {}
        """Empty, or a result and an error; one of them is None."""
        self._callbacks: list[Callable[[Outcome[T]], object]] = []
        self._if_cancelled: Callable[[], object] | None = None

    def done(self) -> bool:
        """Return whether it is settled: there is a result or an error, or it was cancelled."""
        return bool(self._settled)

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return bool(self._settled) and isinstance(self._settled["as"][1], CancelledError)

    def set_result(self, result: T) -> None:
        """Settle it with a result, unless it is settled."""
        self._settle(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Settle it with an error, unless it is settled."""
        self._settle(None, error)

    def cancel(self) -> None:
        """Settle it as cancelled, unless it is settled."""
        if not self._settled:
            self._settle(None, CancelledError())
            if self._if_cancelled is not None and self.cancelled():
                self._if_cancelled()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            TimeoutError: it is not settled in time; that of `concurrent.futures`.
            CancelledError: it was cancelled.
            BaseException: the error that it was settled with.
        """
        if not self._settled:
            self._wait(timeout)
        result, error = self._settled["as"]
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # or the frame in its traceback would hold it
        return result  # type: ignore[return-value]  # None only where T is

    async def in_loop(self) -> T:
        """Do what `result` does without blocking the event loop."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def tell(_: Outcome[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(end, over)

        self.add_done_callback(tell)
        await over
        return self.result()

    def add_done_callback(self, callback: Callable[[Outcome[T]], object]) -> None:
        """Call this when it is settled, on the thread that settles it; at once if it is."""
        self._callbacks.append(callback)
        if self._settled:
            self._call_back()

    def if_cancelled(self, callback: Callable[[], object]) -> None:
        """Call this if it is cancelled, on the thread that cancels it; at once if it is.

        It has one such callback, the last one: nothing is called where it ends otherwise.
        """
        self._if_cancelled = callback
        if self.cancelled():
            callback()

    def _wait(self, timeout: float | None) -> None:
        gate = Lock()
        gate.acquire()
        self.add_done_callback(lambda _: gate.release())
        if not gate.acquire(timeout=-1 if timeout is None else timeout):
            raise NotInTimeError

    def _settle(self, result: T | None, error: BaseException | None) -> None:
        settled = (result, error)
        if self._settled.setdefault("as", settled) is settled:
            self._call_back()

    def _call_back(self) -> None:
        # The thread that settles it, and one that adds a callback, may both be here.
        interrupt: Exception | None = None
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                break
            try:
                callback(self)
            except Exception as error:
                if is_of_handler(error):
                    interrupt = error
                else:
                    logging.getLogger(__name__).exception("a callback of a job failed")
        if interrupt is not None:
            raise interrupt


def end(over: asyncio.Future[None]) -> None:
    """End a wait of the event loop, unless its task was cancelled."""
    if not over.done():
        over.set_result(None)
