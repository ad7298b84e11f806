"""Lets the threads that search one sink take turns: a sink takes one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from embedlib.indexing.sinks.protocol import Sink

_guard = threading.RLock()
_turns: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""A lock for each sink that is being called, by its id; it goes with the last call.

Not an attribute of the sink, which may be anybody's object, and not of a caller: two that do not
know each other may have the same sink."""


@contextmanager
def taking_turns(sink: Sink) -> Iterator[None]:
    """Wait until no other thread calls a sink; the calling thread may be in such a block."""
    with _guard:
        turn = _turns.setdefault(id(sink), threading.RLock())
    with turn:
        yield
