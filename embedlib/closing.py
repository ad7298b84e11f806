"""Ending threads: the threads that work for a model, and waiting for them with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic

from embedlib.errors import CloseTimeoutError

CLOSE_SECONDS = 30.0
"""Default time limit of `close`. A batch takes milliseconds on a GPU and
seconds at most on a CPU, so a thread that works ends long before. Service managers wait about as
long before they kill: 30 s in Kubernetes, 90 s in systemd."""


class WorkerThread(threading.Thread):
    """A thread that works for a loaded model: of a pipeline or of an engine.

    A daemon: the end of the program joins it for a limited time (`Session`), the interpreter must
    not join it without one.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        """Make a thread; `name` is for messages and debuggers only."""
        super().__init__(target=work, name=name, daemon=True)


def is_worker(thread: threading.Thread) -> bool:
    """Whether a thread works for a loaded model."""
    return isinstance(thread, WorkerThread)


class Deadline:
    """A point in time until which several waits may last together."""

    def __init__(self, timeout: float | None) -> None:
        """Let `timeout` seconds start now; None: wait without limit."""
        self._ends_at = None if timeout is None else monotonic() + timeout

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None: there is no limit."""
        return None if self._ends_at is None else max(0.0, self._ends_at - monotonic())


def join(threads: Iterable[threading.Thread], deadline: Deadline) -> list[threading.Thread]:
    """Wait until threads have ended and return those that still run at the deadline.

    The calling thread itself is left out: a future's callback or the garbage collector may close a
    model on any of them.
    """
    others = [thread for thread in threads if thread is not threading.current_thread()]
    for thread in others:
        thread.join(deadline.seconds_left())
    return [thread for thread in others if thread.is_alive()]


def check_ended(
    what: str, threads: Iterable[threading.Thread], timeout: float | None, consequence: str
) -> None:
    """Join threads for at most `timeout` seconds.

    Args:
        what: what is being closed, for the message.
        threads: the threads, which were asked to end.
        timeout: None waits without limit.
        consequence: what it means that a thread still runs.

    Raises:
        CloseTimeoutError: one of them still runs; the message names it.
    """
    left = join(threads, Deadline(timeout))
    if left:
        raise timeout_error(what, left, timeout, consequence)


def timeout_error(
    what: str, left: Iterable[threading.Thread], timeout: float | None, consequence: str
) -> CloseTimeoutError:
    """Return the error that names the threads that still run."""
    names = ", ".join(repr(thread.name) for thread in left)
    return CloseTimeoutError(
        f"{what} was not closed within {round(timeout or 0, 2):g} s: the thread {names} still "
        f"runs; {consequence}"
    )
