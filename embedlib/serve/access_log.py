"""The access log: a JSON line for each request, without its texts and keys."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any, TextIO

import msgspec

from embedlib.closing import WorkerThread

MAX_LINES = 10_000
"""Lines kept while the reader of the log is slow; more are dropped and counted."""


class AccessLog:
    """Writes lines on a thread of its own: a reader that stalls must not stall the server."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Start the thread; None: standard output."""
        self._stream = stream or sys.stdout
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._num_dropped = 0
        self._thread = WorkerThread(self._run, "embedlib-serve-log")
        self._thread.start()

    def write(self, facts: dict[str, Any]) -> None:
        """Add a line; never blocks."""
        line = msgspec.json.encode(facts)
        with self._changed:
            if len(self._lines) >= MAX_LINES:
                self._num_dropped += 1
                return
            self._lines.append(line)
            self._changed.notify()

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left and end the thread, within some seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                lines = list(self._lines)
                self._lines.clear()
                dropped, self._num_dropped = self._num_dropped, 0
                is_closed = self._is_closed
            if dropped:
                lines.append(msgspec.json.encode({"dropped_lines": dropped}))
            try:
                if lines:
                    self._stream.write(b"\n".join(lines).decode() + "\n")
                    self._stream.flush()
            except (OSError, ValueError):  # the reader is gone: serve on without a log
                return
            if is_closed:
                return
