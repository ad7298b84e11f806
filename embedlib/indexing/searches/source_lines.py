"""The lines of a source that a hit was made of: from the file, while it is what was loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass

from embedlib.indexing.sinks.protocol import Hit
from embedlib.indexing.sources.file_bytes import BrokenFileError
from embedlib.indexing.sources.file_formats import MAX_TEXT_BYTES, read_text


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLines:
    """Whole lines of a file.

    Attributes:
        path: of the file.
        first_line: number of the first of them, from 1.
        lines: without their ends.
    """

    path: str
    first_line: int
    lines: tuple[str, ...]

    @property
    def last_line(self) -> int:
        """Number of the last of them."""
        return self.first_line + len(self.lines) - 1


class LineFinder:
    """Finds the lines of hits in text files; one file is kept for hits that follow each other."""

    def __init__(self) -> None:
        self._path = ""
        self._text: str | None = None

    def __call__(self, hit: Hit) -> SourceLines | None:
        """Return the lines; None: there is no such file, or other text stands at this place.

        The id of a document is the path of its file, from the folder in which it was loaded.
        """
        text = self._read(hit.source_id)
        start = None if text is None else _find(text, hit)
        if text is None or start is None:
            return None
        begin = text.rfind("\n", 0, start) + 1
        end = text.find("\n", start + len(hit.text.rstrip()))
        lines = text[begin : len(text) if end < 0 else end].split("\n")
        return SourceLines(
            path=hit.source_id,
            first_line=text.count("\n", 0, begin) + 1,
            lines=tuple(line.rstrip("\r") for line in lines),
        )

    def _read(self, path: str) -> str | None:
        if path != self._path:
            self._path, self._text = path, None
            # The id comes from the destination: it may name a device, or no file at all.
            if os.path.isfile(path):
                self._text = _read_small(path)
        return self._text


def _read_small(path: str) -> str | None:
    try:
        return None if os.path.getsize(path) > MAX_TEXT_BYTES else read_text(path)
    except (BrokenFileError, OSError):
        return None


def _find(text: str, hit: Hit) -> int | None:
    """Return where a hit's text begins; None: it is not there."""
    start = hit.metadata.get("start_index")
    if not isinstance(start, int):  # the only chunk of a document
        start = text.find(hit.text)
    return start if start >= 0 and text.startswith(hit.text, start) and hit.text else None
