"""Writes lines on a thread of its own: a reader that stalls must not stall the server."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TextIO

from embedlib.threads.closing import WorkerThread

MAX_LINES = 10_000
"""Lines kept while the reader is slow; more are dropped and counted."""
GATHER_SECONDS = 0.05
"""Lines of this time are written at once: waking a thread costs more than a line."""


class LineWriter(ABC):
    """Takes lines without ever blocking, and writes them in their order."""

    def __init__(self, stream: TextIO | None, thread_name: str) -> None:
        """Take the stream. The first line starts the thread.

        Args:
            stream: where lines go; None, as `sys.stdout` where the process was started without
                one: nowhere.
            thread_name: of the thread that writes.
        """
        self._stream = stream
        self._thread_name = thread_name
        self._lines: deque[object] = deque()
        """One thread appends, the writer's own takes: neither needs a lock."""
        self._has_lines = threading.Event()
        self._closed = threading.Event()
        self._num_dropped = 0
        """The appending thread's; only ever more."""
        self._thread: WorkerThread | None = None

    @abstractmethod
    def _write(self, stream: TextIO, lines: list[object]) -> None:
        """Write lines."""

    @abstractmethod
    def _of_dropped(self, num_lines: int) -> object:
        """Return the line that tells of lines that were dropped."""

    def write(self, line: object) -> None:
        """Add a line; never blocks. One thread at a time may call it.

        Raises:
            EngineBuildError: the thread cannot be started; the line is kept, the next tries again.
        """
        if self._stream is None:
            return
        if len(self._lines) >= MAX_LINES:
            self._num_dropped += 1
            return
        self._lines.append(line)
        if not self._has_lines.is_set():
            if self._thread is None:
                thread = WorkerThread(partial(self._run, self._stream), self._thread_name)
                thread.start()
                self._thread = thread  # `close` joins no thread that could not be started
            self._has_lines.set()

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left and end the thread, within some seconds."""
        self._closed.set()
        self._has_lines.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, stream: TextIO) -> None:
        num_told = 0
        while True:
            self._has_lines.wait()
            self._closed.wait(GATHER_SECONDS)
            self._has_lines.clear()
            is_closed = self._closed.is_set()  # last: a `close` that comes later wakes this again
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            dropped = self._num_dropped - num_told
            told = [self._of_dropped(dropped)] if dropped else []
            try:
                if lines or told:
                    self._write(stream, lines + told)
                    stream.flush()
                num_told += dropped
            except (BrokenPipeError, ValueError):  # the reader is gone: serve on without the lines
                return
            except OSError:  # a full disk may get room: what was lost is told with the next line
                num_told -= len(lines)
            if is_closed:
                return
