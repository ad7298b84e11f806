"""Results, written line by line as they are measured: a run may be killed at any moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

Line = dict[str, Any]

DIGITS: Final = 5
"""Of a number that was measured; the rest is noise."""


class Journal:
    """The lines of a run."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Begin.

        Args:
            write: writes a line of JSON and flushes it.
            clock: returns the time in seconds.
        """
        self._write = write
        self._clock = clock
        self._began = clock()
        self.lines: list[Line] = []

    def add(self, block: str, **facts: Any) -> Line:
        """Write a line, with the seconds since the beginning."""
        line = {"t": self._clock() - self._began, "block": block, **facts}
        rounded: Line = _rounded(line)
        self._write(json.dumps(rounded, ensure_ascii=False))
        self.lines.append(rounded)
        return rounded


def found(lines: Iterable[Line], block: str, **facts: Any) -> Iterable[Line]:
    """Yield the lines of a block with these facts that tell a result."""
    for line in lines:
        is_result = not {"failed", "skipped"} & line.keys()
        if (
            line["block"] == block
            and is_result
            and all(line.get(key) == facts[key] for key in facts)
        ):
            yield line


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
