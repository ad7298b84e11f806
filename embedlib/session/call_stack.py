"""Call-stack inspection: the stacklevel for warnings, and whether a future is being used."""

from __future__ import annotations

import inspect
import os
from concurrent.futures import Future
from pathlib import Path

from embedlib.batching.outcome import Outcome


def stacklevel_of_caller() -> int:
    """Return the `stacklevel` with which a warning points at the code that called embedlib.

    The function that calls this passes it to `warnings.warn` itself.
    """
    frame, stacklevel = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, stacklevel = frame.f_back, stacklevel + 1
    return stacklevel


_PACKAGE = str(Path(stacklevel_of_caller.__code__.co_filename).parents[1]) + os.sep
"""The folder of the package, as in `co_filename`."""


def is_in_a_future() -> bool:
    """Whether this thread may hold the lock of a future, or waits for a job.

    Only code of the module that defines `Future` takes these locks. Its functions, and those of
    `Outcome`, are recognized by their globals.
    """
    namespaces = Future.result.__globals__, Outcome.result.__globals__
    frame = inspect.currentframe()
    while frame is not None:
        if any(frame.f_globals is namespace for namespace in namespaces):
            return True
        frame = frame.f_back
    return False
