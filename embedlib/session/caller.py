"""What the stack of calls tells: where a warning belongs, and what a signal has interrupted."""

from __future__ import annotations

import inspect
import threading

LOCKING_MODULES = (
    *(
        "embedlib.batching.",
        "embedlib.session.progress",
        "embedlib.session.streaming",
        "embedlib.session.token_outputs",
    ),
    "concurrent.futures.",
)
"""Where a caller's thread takes the locks that it shares with our threads."""


def stacklevel_of_caller() -> int:
    """Return the `stacklevel` of a warning that is to point at the caller of embedlib.

    It is for whoever calls this, to hand on to `warnings.warn`.
    """
    frame, stacklevel = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("embedlib."):
        frame, stacklevel = frame.f_back, stacklevel + 1
    return stacklevel


def is_in_a_call() -> bool:
    """Whether a signal's handler asks, having interrupted what may hold a lock our threads need."""
    frame = inspect.currentframe()
    is_main = threading.current_thread() is threading.main_thread()  # where handlers run
    while is_main and frame is not None:
        if frame.f_globals.get("__name__", "").startswith(LOCKING_MODULES):
            return True
        frame = frame.f_back
    return False
