"""Markdown tables whose columns also line up in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[str, ...]


def markdown(rows: Sequence[Row]) -> str:
    """Return a table with the first row as its head.

    Columns after the first are right-aligned, unless there are only two: a two-column table holds
    sentences, which read better from the left.
    """
    rows = [tuple(" ".join(cell.replace("|", "\\|").split()) for cell in row) for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    is_wide = len(widths) > 2
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if place and is_wide else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rule = ["-" * width for width in widths]
    if is_wide:
        rule[1:] = [f"{line[:-1]}:" for line in rule[1:]]
    return "\n".join([lines[0], f"| {' | '.join(rule)} |", *lines[1:]])
