"""Rows of Arrow data as dicts; pyarrow is needed by whoever brings the data, not here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any


def batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch; where Python has no such value, the row holds the exception."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        # Not UTF-8, or a date out of Python's range: only that row must become a bad one.
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for index in range(len(batch)):
            yield {name: _value(column, index) for name, column in columns.items()}


def repeated_columns(names: Sequence[str]) -> str | None:
    """Return what is wrong with columns of the same name; None: there are none."""
    twice = sorted(name for name, number in Counter(names).items() if number > 1)
    if not twice:
        return None
    return f"has more than one column named {', '.join(map(repr, twice))}; rename all but one"


def _value(column: Any, index: int) -> Any:
    try:
        return column[index].as_py()
    except (ValueError, OverflowError) as error:
        return error
