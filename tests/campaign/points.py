"""Drawn points in the work of the sink's thread: at one of them the process dies or a call fails.

The thread that makes every call to a destination is watched by a profile function, so that every
call it makes, of Python or of C, is a point: between any two writes there is one.
"""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

WATCHED_THREAD: Final = "embedlib-sink"
FILE_CALLS: Final = frozenset({"write", "flush", "fsync", "replace", "open", "fchmod", "pwrite"})
DATABASE_CALLS: Final = frozenset({"execute", "executemany"})

Act = Callable[[FrameType, Any], None]
"""Gets the frame and, where a C function is called, that function."""
IsPoint = Callable[[FrameType, str, Any], bool]


class Points:
    """Counts points and acts at some of them."""

    def __init__(self, is_point: IsPoint, act: Act, numbers: frozenset[int]) -> None:
        """Make the points of one run.

        Args:
            is_point: whether an event of the profile is a point.
            act: what happens at a chosen one.
            numbers: the chosen ones, counted from 0.
        """
        self.num_seen = 0
        self._is_point = is_point
        self._act = act
        self._numbers = numbers

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Be called by the interpreter for each event of a new thread."""
        if threading.current_thread().name != WATCHED_THREAD:
            sys.setprofile(None)
        elif self._is_point(frame, event, argument):
            self.num_seen += 1
            if self.num_seen - 1 in self._numbers:
                self._act(frame, argument)


@contextmanager
def watched(points: Points) -> Iterator[None]:
    """Watch the threads that are started inside the block."""
    threading.setprofile(points)
    try:
        yield
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # as documented


def every_call(_frame: FrameType, event: str, _argument: Any) -> bool:
    """A point is every call of a function, written in Python or in C."""
    return event in ("call", "c_call")


def writes_of_files(_frame: FrameType, event: str, argument: Any) -> bool:
    """A point is a call that changes a file, and one of SQLite."""
    if event != "c_call":
        return False
    name = getattr(argument, "__name__", "")
    return name in FILE_CALLS or (name in DATABASE_CALLS and _is_sqlite(argument))


def statements(frame: FrameType, event: str, _argument: Any) -> bool:
    """A point is a statement that goes to Postgres, and a block of rows that is copied."""
    code = frame.f_code
    is_psycopg = os.path.basename(os.path.dirname(code.co_filename)) == "psycopg"
    if event != "call" or not is_psycopg or code.co_name not in ("execute", "copy", "write"):
        return False
    return code.co_name != "write" or hasattr(frame.f_locals["self"], "cursor")  # else a formatter


def kill(_frame: FrameType, _argument: Any) -> None:
    """End the process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail_write(_frame: FrameType, argument: Any) -> None:
    """Raise what a broken disk raises, instead of making the call."""
    if _is_sqlite(argument):
        raise sqlite3.OperationalError("disk I/O error")
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _is_sqlite(function: Any) -> bool:
    return isinstance(getattr(function, "__self__", None), sqlite3.Connection | sqlite3.Cursor)
