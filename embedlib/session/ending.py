"""Closing a session: by its user, in a signal handler, by the garbage collector, at exit."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from embedlib.batching.callers import Callers
from embedlib.errors import CloseTimeoutError
from embedlib.session.call_stack import is_in_a_future
from embedlib.threads.closing import CLOSE_SECONDS, Deadline, is_worker

INTERRUPTED_SECONDS: Final = 2.0
"""What a second Ctrl-C, or a `close` that timed out, leaves of the time to close at the end of the
program: most batches in flight end in it."""

Close = Callable[[float | None], None]
"""Closes one part; takes the time limit in seconds, None: no limit."""


class Ending:
    """Closes the parts of a session, all of them within one time limit."""

    def __init__(self, callers: Callers) -> None:
        """Start without parts; `callers` counts the calls of the session on every thread."""
        self._callers = callers
        self._parts: list[Close] = []
        self._is_closed = False
        """Whether no thread is left."""
        self._was_given_up = False
        """Whether a wait timed out, or Ctrl-C ended it: the end of the program waits no longer."""
        self._at_exit: weakref.finalize[..., Ending] | None = None

    def add(self, close: Close) -> None:
        """Add a part, which is closed before the parts added earlier."""
        self._parts.append(close)

    def close(self, timeout: float | None) -> None:
        """Close all parts, even if one of them raises or Ctrl-C interrupts a wait.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds.
        """
        self._go_on_at_exit()
        deadline = Deadline(timeout)
        try:
            with ExitStack() as stack:
                for close in self._parts:
                    stack.callback(_close_until, deadline, close)
        except (CloseTimeoutError, KeyboardInterrupt):
            self._was_given_up = True
            raise
        if not is_worker(threading.current_thread()):  # which cannot wait for itself
            self._is_closed = True
            if self._at_exit is not None:
                self._at_exit.detach()

    def _go_on_at_exit(self) -> None:
        """Let the end of the program wait for threads that `close` leaves.

        The interpreter aborts the process if it ends while a thread is inside the engine's library.
        """
        if self._at_exit is None:
            # The method keeps this object alive, so this runs at the end of the program alone.
            self._at_exit = weakref.finalize(self, self._close_at_exit)

    def _close_at_exit(self) -> None:
        if self._was_given_up:
            self._close_soon()
        else:
            self.close_collected(CLOSE_SECONDS)

    def close_on_request(self, timeout: float | None) -> None:
        """Close because the user called `close` or left a `with` block.

        In a signal handler that interrupted a call, another thread closes: the interrupted code may
        hold a lock that our threads need.
        """
        if self._is_closed:
            return
        timeout = None if timeout is None else float(timeout)  # locks take no number of numpy
        # Signal handlers run on the main thread only.
        is_main = threading.current_thread() is threading.main_thread()
        if self._callers.is_inside or (is_main and is_in_a_future()):
            self._close_elsewhere(timeout, daemon=False)
        else:
            self.close(timeout)
            if is_worker(threading.current_thread()):  # another one can wait for it
                with suppress(RuntimeError):  # the program ends: no thread can be started
                    self._close_elsewhere(timeout, daemon=True)

    def close_collected(self, timeout: float | None) -> None:
        """Close because the session was collected or the program ends; a timeout is logged.

        The garbage collector runs on any thread. If that is one of our own, it must not wait for
        itself; any other thread may hold a lock that our threads need.
        """
        if is_worker(threading.current_thread()) or self._callers.is_inside or is_in_a_future():
            with suppress(RuntimeError):  # the program ends: no thread can be started
                self._close_elsewhere(timeout, daemon=True)
        else:
            try:
                self.close_or_log(timeout)
            except KeyboardInterrupt:  # a second one, while the program ends
                self._close_soon()

    def _close_soon(self) -> None:
        """Go on closing for a short time, through more of Ctrl-C."""
        deadline = Deadline(INTERRUPTED_SECONDS)
        while deadline.seconds_left():
            with suppress(KeyboardInterrupt, CloseTimeoutError):
                self.close(deadline.seconds_left())
                return

    def close_or_log(self, timeout: float | None) -> None:
        """Close; log a timeout."""
        try:
            self.close(timeout)
        except CloseTimeoutError as error:
            logging.getLogger(__name__).error("%s", error)

    def _close_elsewhere(self, timeout: float | None, *, daemon: bool) -> None:
        self._go_on_at_exit()
        threading.Thread(
            target=self.close_or_log, args=(timeout,), name="embedlib-close", daemon=daemon
        ).start()


def _close_until(deadline: Deadline, close: Close) -> None:
    close(deadline.seconds_left())
