"""A block of code on the event loop that ends early: it is late, or its client has left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import TracebackType

from embedlib.serve.errors import ClientGoneError
from embedlib.serve.requests.asgi import Direct, Receive


class Endable:
    """A block of the running task that a callback may end with an error.

    `asyncio.timeout` does this for one limit, and Python 3.10 lacks it; `wait_for`, and a task for
    each handler, cost several times as much, a tenth of a request of one text.
    """

    # Most blocks have no timer, watch no connection by a task and are not ended.
    _timers: tuple[asyncio.TimerHandle, ...] = ()
    _gone: asyncio.Future[None] | None = None
    _watching: asyncio.Task[None] | None = None
    _error: Exception | None = None
    _is_over = False

    def __enter__(self) -> Endable:
        """Begin the block."""
        task = asyncio.current_task()
        assert task is not None, "requests are answered by tasks"
        self._task = task
        return self

    def end(self, error: Exception) -> None:
        """End the block with this error; the first one counts."""
        if self._error is None and not self._is_over:
            self._error = error
            self._task.cancel()

    def end_after(self, seconds: float, make_error: Callable[[], Exception]) -> asyncio.TimerHandle:
        """End the block if it takes longer, unless the timer is cancelled before."""
        timer = self._task.get_loop().call_later(seconds, lambda: self.end(make_error()))
        # A body has a timer for each of its parts: those that are over are forgotten.
        self._timers = (*(each for each in self._timers if not each.cancelled()), timer)
        return timer

    def end_without_client(self, direct: Direct | None, receive: Receive) -> None:
        """End the block with `ClientGoneError` when the client closes the connection.

        Args:
            direct: the connection; None: there are only messages, and a task waits for the last.
            receive: of the connection.
        """
        gone: asyncio.Future[None]
        if direct is None:
            gone = self._watching = self._task.get_loop().create_task(_until_gone(receive))
        else:
            gone = direct.gone
        self._gone = gone
        gone.add_done_callback(self._leave)

    def _leave(self, gone: asyncio.Future[None]) -> None:
        if not gone.cancelled():
            self.end(ClientGoneError())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop waiting for an end.

        Raises:
            Exception: what the block was ended with.
        """
        self._is_over = True  # the client may have left in this turn: its callback comes yet
        for timer in self._timers:
            timer.cancel()
        if self._gone is not None:
            self._gone.remove_done_callback(self._leave)
        if self._watching is not None:
            self._watching.cancel()
        if self._error is not None and isinstance(error, asyncio.CancelledError):
            if sys.version_info >= (3, 11):
                self._task.uncancel()
            raise vars(self).pop("_error") from None  # kept, it would be part of a cycle


async def _until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
