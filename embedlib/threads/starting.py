"""Starts threads, or says in one line why none can be started."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from embedlib.errors import PassingBuildError

_T = TypeVar("_T")

NO_THREADS: Final = (
    "no more threads can be started (ulimit -u, the pids limit of the container, or ulimit -v or "
    "-d, which count the stack of each); raise the limit, or run fewer processes"
)

_NOT_STARTED: Final = "start new thread"
"""How Python says it."""
_LAST_LINE: Final = os.strerror(errno.EAGAIN)
"""Of what libraries in C++ say. Of a lock or a socket that is not free there are other words beside
these."""


@contextmanager
def starting_threads() -> Iterator[None]:
    """Put what embedlib says in place of what others say when a thread cannot be started.

    Raises:
        PassingBuildError: no thread can be started.
    """
    try:
        yield
    except RuntimeError as error:
        if "interpreter shutdown" in str(error):
            raise PassingBuildError(
                "no thread can be started while the program ends; load models before"
            ) from error
        said = str(error)
        if _NOT_STARTED in said or said.strip().splitlines()[-1:] == [_LAST_LINE]:
            raise PassingBuildError(NO_THREADS) from error
        raise


def check_threads(number: int) -> None:
    """Check that so many threads can be started, for a library that ends the process otherwise.

    Raises:
        PassingBuildError: they cannot.
    """
    is_over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(number):
            thread = threading.Thread(target=is_over.wait, name="embedlib-check", daemon=True)
            with starting_threads():
                thread.start()
            started.append(thread)
    finally:
        is_over.set()
        for thread in started:
            thread.join()


class WorkerPool(ThreadPoolExecutor):
    """A thread pool that works for a model while it is loaded."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Run a function on a thread; `map` does so too.

        Raises:
            PassingBuildError: no thread can be started.
        """
        with starting_threads():
            return super().submit(fn, *args, **kwargs)
