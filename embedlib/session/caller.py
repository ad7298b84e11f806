"""Inspects the call stack: where a warning belongs, and whether a future's method is on it."""

from __future__ import annotations

import inspect
import os
from concurrent.futures import Future
from pathlib import Path


def stacklevel_of_caller() -> int:
    """Return the `stacklevel` of a warning that is to point at the caller of embedlib.

    The function that calls this passes it on to `warnings.warn`.
    """
    frame, stacklevel = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, stacklevel = frame.f_back, stacklevel + 1
    return stacklevel


_PACKAGE = str(Path(stacklevel_of_caller.__code__.co_filename).parents[1]) + os.sep
"""The folder of embedlib's files, as code objects name it."""


def is_in_a_future() -> bool:
    """Whether a function on this thread's stack may hold the lock of a future.

    Only code of the module that defines `Future` takes such locks. Its functions are known by the
    namespace they run in.
    """
    namespace = Future.result.__globals__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is namespace:
            return True
        frame = frame.f_back
    return False
