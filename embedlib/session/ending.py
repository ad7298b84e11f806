"""How a session ends: on request, inside a signal handler, when collected, with the program."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from embedlib.batching.callers import Callers
from embedlib.closing import Deadline, is_worker
from embedlib.errors import CloseTimeoutError
from embedlib.session.caller import is_in_a_future

Close = Callable[[float | None], None]
"""Closes one part within a number of seconds; None: without limit."""


class Ending:
    """Closes the parts of a session, all of them within one time limit."""

    def __init__(self, callers: Callers) -> None:
        """Begin with no parts; `callers` knows which threads are inside calls of the session."""
        self._callers = callers
        self._parts: list[Close] = []
        self._is_closed = False

    def add(self, close: Close) -> None:
        """Add a part, which is closed before the parts added earlier."""
        self._parts.append(close)

    def close(self, timeout: float | None) -> None:
        """Close the parts, also if one of them raises or Ctrl-C ends a wait.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds.
        """
        deadline = Deadline(timeout)
        with ExitStack() as stack:
            for close in self._parts:
                stack.callback(_close_until, deadline, close)
        self._is_closed = True

    def close_on_request(self, timeout: float | None) -> None:
        """Close as the user asked for it.

        In the handler of a signal that interrupted a call, another thread closes: the interrupted
        code may hold a lock that our threads need.
        """
        if self._is_closed:
            return
        is_main = threading.current_thread() is threading.main_thread()  # where handlers run
        if self._callers.is_inside or (is_main and is_in_a_future()):
            self._close_elsewhere(timeout, daemon=False)
        else:
            self.close(timeout)

    def close_collected(self, timeout: float | None) -> None:
        """Close for the garbage collector or the end of the program; a timeout is only logged.

        The garbage collector runs on any thread. One of our own threads would wait for itself, and
        any other one may hold a lock that our threads need.
        """
        if is_worker(threading.current_thread()) or self._callers.is_inside or is_in_a_future():
            with suppress(RuntimeError):  # the program ends: no thread can be started
                self._close_elsewhere(timeout, daemon=True)
        else:
            with suppress(KeyboardInterrupt):  # Ctrl-C once more, while the program ends
                self.close_or_log(timeout)

    def close_or_log(self, timeout: float | None) -> None:
        """Close; log a timeout."""
        try:
            self.close(timeout)
        except CloseTimeoutError as error:
            logging.getLogger(__name__).error("%s", error)

    def _close_elsewhere(self, timeout: float | None, *, daemon: bool) -> None:
        threading.Thread(
            target=self.close_or_log, args=(timeout,), name="embedlib-close", daemon=daemon
        ).start()


def _close_until(deadline: Deadline, close: Close) -> None:
    close(deadline.seconds_left())
