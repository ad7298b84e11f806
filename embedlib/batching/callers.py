"""Which threads are inside a call, and so may hold a lock that the pipeline's threads need."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Callers(threading.local):
    """Counts, for every thread, the calls that it is inside of.

    A signal handler and the garbage collector run in the middle of other code of their thread. If
    they close a model there and wait for its threads, and the interrupted code holds a lock that
    these threads need, both wait for ever. So `counted` counts every method that takes such a lock
    on its caller's thread, and `Session` reads `is_inside` before it waits.

    No lock guards the counts: each thread changes only its own count, and a handler that interrupts
    the thread restores the count before it returns.
    """

    depth = 0
    """Calls that this thread is inside of."""

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is inside a call."""
        return self.depth > 0


class HasCallers(Protocol):
    """An object whose methods can be counted."""

    callers: Callers


Owner = TypeVar("Owner", bound=HasCallers)


def counted(
    method: Callable[Concatenate[Owner, P], R],
) -> Callable[Concatenate[Owner, P], R]:
    """Decorate a method so that its calls are counted while they run."""

    @wraps(method)
    def run(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        callers = self.callers
        # Ctrl-C must not leave the count wrong. The interpreter looks for signals where functions
        # begin and loops repeat: there is neither between these lines and the `try`.
        callers.depth += 1
        try:
            return method(self, *args, **kwargs)
        finally:
            callers.depth -= 1

    return run
