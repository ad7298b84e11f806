"""Models that are loaded at the same time take their memory one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from embedlib.engines.kind import EngineKind

WAITED_SECONDS: Final = 0.05
"""Who has waited for less planned when the other had its memory, or need not have waited."""
_TAKING: Final = threading.RLock()
"""`with` on it is safe from Ctrl-C, and a signal handler may load a model, too."""


@contextmanager
def memory_turn(kind: EngineKind) -> Iterator[bool]:
    """Let one load at a time take the memory of this machine; yield whether this one has waited.

    Then it must plan again: both have seen the same memory as free. Models for GPUs, which have
    memory of their own, and static ones do not wait.

    Args:
        kind: the engine that is loaded.
    """
    if "cpu" not in kind.device_types or kind.check_memory is None:
        yield False
        return
    asked = perf_counter()
    with _TAKING:
        yield perf_counter() - asked > WAITED_SECONDS
