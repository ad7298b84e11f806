"""The log of warnings and faults: what Python's `logging` would write to standard error itself.

It would do so on the event loop, and wait for the reader.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from embedlib.serve.logs.line_writer import LineWriter


@contextmanager
def fault_log() -> Iterator[None]:
    """Let a thread write warnings and faults, unless the program has set up logging itself."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = _Handler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


class _Handler(logging.Handler):
    """Takes what `logging.lastResort` would, in its format."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._writer = _Writer(sys.stderr, "embedlib-serve-faults")

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; `logging` lets one thread at a time call it."""
        try:
            self._writer.write(self.format(record))
        except Exception:  # of a record with wrong arguments, or no thread can be started
            self.handleError(record)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
        super().close()


class _Writer(LineWriter):
    def _write(self, stream: TextIO, lines: list[object]) -> None:
        stream.writelines(f"{line}\n" for line in lines)

    def _of_dropped(self, num_lines: int) -> object:
        return f"{num_lines:,} lines were dropped here: standard error was not read"
