"""The end of a model: waits, with a time limit, until the threads that work for it have ended.

What its calls raise from then on is worded here, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from embedlib.errors import ClosedError, CloseTimeoutError
from embedlib.threads.interrupts import SafeCondition
from embedlib.threads.starting import starting_threads

CLOSE_SECONDS = 30.0
"""Default time limit of `close`. A batch takes milliseconds on a GPU and at most seconds on a CPU,
so a thread that is not stuck ends long before. Service managers wait about as long before they
kill a process: Kubernetes 30 s, systemd 90 s."""


class WorkerThread(threading.Thread):
    """A thread of a pipeline or an engine, which works for a loaded model.

    It is a daemon, so that the interpreter does not join it without a time limit; `Session` joins
    it with one at the end of the program.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        """Create a thread; `name` is only for messages and debuggers."""
        super().__init__(target=work, name=name, daemon=True)
        self._changed = SafeCondition()
        self._has_ended = False

    def start(self) -> None:
        """Start it.

        Raises:
            EngineBuildError: no thread can be started.
        """
        with starting_threads():
            super().start()

    def run(self) -> None:
        """Do the work."""
        try:
            super().run()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for at most `timeout` seconds.

        Python before 3.13 takes a thread for ended when Ctrl-C interrupts its `join`. This waits
        for the work itself, so that it can be called again.
        """
        deadline = Deadline(timeout)
        if self.is_alive():
            with self._changed:
                self._changed.wait_for(lambda: self._has_ended, timeout)
        super().join(deadline.seconds_left())


def is_worker(thread: threading.Thread) -> bool:
    """Return whether a thread works for a loaded model."""
    return isinstance(thread, WorkerThread)


def is_left_behind() -> bool:
    """Return whether the calling thread is a daemon and the program has ended.

    The end of a program closes its models and leaves daemons running, whose next call fails. Nobody
    reads what it raises, and Python would print a traceback of each thread.
    """
    return threading.current_thread().daemon and program_has_ended()


def program_has_ended() -> bool:
    """Return whether the program has ended, and functions of `atexit` at most still run."""
    # The interpreter marks the main thread as ended before it calls them.
    return not threading.main_thread().is_alive()


def end_left_behind() -> None:
    """End the calling thread without a word if `is_left_behind`.

    Raises:
        SystemExit: ends a thread, and is the only exception that is not printed.
    """
    if is_left_behind():
        raise SystemExit


async def wait_left_behind(error: Exception) -> None:
    """Wait for ever if `is_left_behind`: asyncio would print SystemExit.

    Cancelling the task and time limits end the wait.

    Args:
        error: why it cannot go on. asyncio starts no thread any more some instants before the
            interpreter marks the main thread as ended, and says so in a RuntimeError.
    """
    is_ending = "interpreter shutdown" in str(error) and threading.current_thread().daemon
    if is_ending or is_left_behind():
        await asyncio.get_running_loop().create_future()


class Deadline:
    """A point in time at which several waits, one after another, must have ended."""

    def __init__(self, timeout: float | None) -> None:
        """Set the deadline to `timeout` seconds from now; None: there is no limit."""
        self._ends_at = None if timeout is None else monotonic() + timeout

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None: there is no limit."""
        return None if self._ends_at is None else max(0.0, self._ends_at - monotonic())


def join(threads: Iterable[threading.Thread], deadline: Deadline) -> list[threading.Thread]:
    """Wait until threads have ended and return those that still run at the deadline.

    The calling thread itself is skipped: a future's callback or the garbage collector may close a
    model on any of the threads. So is one that could not be started.
    """
    here = threading.current_thread()
    others = [thread for thread in threads if thread is not here and thread.ident is not None]
    for thread in others:
        thread.join(deadline.seconds_left())
    return [thread for thread in others if thread.is_alive()]


def check_ended(what: str, threads: Iterable[threading.Thread], timeout: float | None) -> None:
    """Join the threads of an engine for at most `timeout` seconds.

    Args:
        what: what is being closed, for the message.
        threads: the threads, which have been signaled to end.
        timeout: maximum seconds to wait; None: no limit.

    Raises:
        CloseTimeoutError: a thread still runs; the message names it.
    """
    left = join(threads, Deadline(timeout))
    if left:
        raise timeout_error(what, left, timeout, "a batch has not ended")


def timeout_error(
    what: str, left: Iterable[threading.Thread], timeout: float | None, consequence: str
) -> CloseTimeoutError:
    """Return the error that names the threads that still run."""
    names = ", ".join(repr(thread.name) for thread in left)
    return CloseTimeoutError(
        f"{what} was not closed within {round(timeout or 0, 2):g} s: the thread {names} still "
        f"runs; {consequence}"
    )


def closed_error() -> ClosedError:
    """Return the error of a call that meets a closed model."""
    return ClosedError("this model is closed; load it again")


def closed_early_error() -> ClosedError:
    """Return the error of what waited when its model was closed."""
    return ClosedError("the model was closed before this was computed")
