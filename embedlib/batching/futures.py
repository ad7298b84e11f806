"""The futures that callers get."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, TypeVar

from embedlib.errors import ClosedError, EmbedlibError
from embedlib.threads.closing import end_left_behind
from embedlib.threads.interrupts import SafeCondition

T = TypeVar("T")


def check_may_wait(resolvers: tuple[threading.Thread, ...]) -> None:
    """Check that the calling thread may block on work that `resolvers` do.

    Raises:
        EmbedlibError: it is one of them: they run the callbacks of futures, and would wait for
            themselves.
    """
    if threading.current_thread() in resolvers:
        raise EmbedlibError(
            "called in the callback of a future, on the thread that would have to compute it; "
            "call submit there and do not wait for it there, or hand over to a thread of your own"
        )


class CallerFuture(Future[T]):
    """A future that raises where waiting for it would never end.

    That is in a callback of a future of the same model. `result`, `exception` and
    `concurrent.futures.wait` and `as_completed` raise there, unless the future is done. Other ways
    to wait, an event or an event loop in the callback, are not seen.

    Source: what it changes inside of `Future` is in `concurrent/futures/_base.py` of Python 3.10 to
    3.14.
    """

    def __init__(self, resolvers: tuple[threading.Thread, ...]) -> None:
        """Create a future.

        Args:
            resolvers: the threads that resolve it. A future must not refer to more of the model,
                since callers may keep it longer.
        """
        self._resolvers = resolvers
        super().__init__()
        # Or a caller who is interrupted while waiting could stop the thread that resolves it.
        self._condition = SafeCondition()

    def result(self, timeout: float | None = None) -> T:
        """Return the result; see `Future.result`.

        Raises:
            EmbedlibError: called where it would wait for itself.
        """
        self._check_wait(timeout)
        try:
            return super().result(timeout)
        except ClosedError:
            end_left_behind()
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, or None; see `Future.exception`.

        Raises:
            EmbedlibError: called where it would wait for itself.
        """
        self._check_wait(timeout)
        return super().exception(timeout)

    # `wait` and `as_completed` enter themselves into this list before they block, and `Future`
    # reads it only when it is done.
    @property
    def _waiters(self) -> list[Any]:
        self._check_wait(None)
        return self._waiting

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:
        self._waiting = waiters

    def _check_wait(self, timeout: float | None) -> None:
        may_block = timeout is None or timeout > 0
        if may_block and not self.done():
            check_may_wait(self._resolvers)
