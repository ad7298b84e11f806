"""Rows that cannot be embedded or stored: counted, told and written down."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from embedlib.errors import SourceError, first_line, shown
from embedlib.indexing.rows import BadRow
from embedlib.indexing.sinks.protocol import Tell

MAX_REPORTED_BAD_ROWS = 10


class BadRows:
    """Counts bad rows, reports the first ones, writes them to a file, or ends the load."""

    def __init__(
        self, path: str | Path | None, tell: Tell, *, stops: bool, is_partial: bool = False
    ) -> None:
        """Check that the file can be written; its content is kept until `start`.

        Args:
            path: the file; None: there is none.
            tell: takes lines for the user.
            stops: whether the first bad row ends the load.
            is_partial: whether only a part of the source is read: then the file is not emptied,
                since what it says of the others still holds.

        Raises:
            SourceError: it cannot be written.
        """
        self.num_rows = 0
        self.has_unnamed = False
        """Whether a bad row has no id, so that its stored rows, if any, are unknown."""
        self._tell = tell
        self._stops = stops
        self._is_partial = is_partial
        self._lock = threading.Lock()  # the reader's and the caller's thread both add rows
        self._path = None if path is None else Path(path)
        self._file: IO[str] | None = None
        if self._path is not None:
            with self._file_errors():
                self._path.open("a").close()

    def start(self) -> None:
        """Begin the file; call this only after the destination is locked against other loads."""
        if self._path is not None:
            with self._lock, self._file_errors():
                early = self._file
                mode = "a" if self._is_partial else "w"
                self._file = self._path.open(mode, encoding="utf-8", errors="backslashreplace")
                if early is not None:
                    early.seek(0)
                    shutil.copyfileobj(early, self._file)
                    early.close()

    def add(self, bad: BadRow) -> None:
        """Record a bad row.

        Raises:
            SourceError: the load is to stop at the first one, or the file cannot be written.
        """
        if self._stops:
            raise SourceError(f"{bad.place}: {bad.reason}")
        with self._lock:
            self.num_rows += 1
            self.has_unnamed |= bad.id is None and bad.file is None
            if self._path is not None:
                record = {"place": bad.place, "id": bad.id, "reason": bad.reason}
                with self._file_errors():
                    if self._file is None:  # before `start`
                        self._file = TemporaryFile(  # noqa: SIM115 - `start` and `close` close it
                            "w+", encoding="utf-8", errors="backslashreplace"
                        )
                    print(json.dumps(record, ensure_ascii=False), file=self._file, flush=True)
            if self.num_rows <= MAX_REPORTED_BAD_ROWS:
                self._tell(f"skipped: {bad.place}: {bad.reason}")
            if self.num_rows == MAX_REPORTED_BAD_ROWS + 1:
                self._tell("more rows are skipped; errors_file (--errors-file) lists all of them")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # every row was flushed, or its error was raised
                self._file.close()

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            reason = getattr(error, "strerror", None) or first_line(error)
            name = shown(str(self._path), 300)
            raise SourceError(f"cannot write errors_file {name}: {reason}") from error
