"""Rows of Arrow data as dicts; pyarrow is needed by whoever brings the data, not here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from embedlib.errors import SourceError
from embedlib.packages.installing import import_extra

_UNREADABLE = (ValueError, OverflowError, KeyError)
"""Of pyarrow: a value is not UTF-8, a date is out of Python's range, or a time zone unknown."""


def batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch; where Python has no such value, the row holds the exception."""
    batch = _in_microseconds(batch)
    try:
        yield from batch.to_pylist()
    except _UNREADABLE:  # only the row with that value must become a bad one
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for index in range(len(batch)):
            yield {name: _value(column, index) for name, column in columns.items()}


def repeated_columns(names: Sequence[str]) -> str | None:
    """Return what is wrong with columns of the same name; None: there are none."""
    twice = [name for name, number in Counter(names).items() if number > 1]
    if not twice:
        return None
    return f"has more than one column named {', '.join(map(repr, twice))}; rename all but one"


def _value(column: Any, index: int) -> Any:
    try:
        return column[index].as_py()
    except _UNREADABLE as error:
        zone = getattr(column.type, "tz", None)
        # "zoneinfo must be installed", which it is; old ones pass zoneinfo's KeyError on.
        if zone is not None and (isinstance(error, KeyError) or "zoneinfo" in str(error)):
            return ValueError(f"the time zone {zone!r} is not known; is tzdata installed?")
        return error


def _in_microseconds(batch: Any) -> Any:
    """Cut times in nanoseconds to microseconds, as Python's are.

    pyarrow makes objects of pandas of them where that is installed, and fails otherwise.
    """
    pyarrow = import_extra("pyarrow", "parquet", SourceError)
    schema = pyarrow.schema([_python_field(field, pyarrow) for field in batch.schema])
    return batch if schema.equals(batch.schema) else batch.cast(schema, safe=False)


def _python_type(kind: Any, pyarrow: Any) -> Any:
    """Return a type with microseconds for one with nanoseconds, also inside of others.

    Some have no cast in pyarrow and stay as they are: list views, unions, run-end-encoded values.
    """
    types = pyarrow.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pyarrow.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pyarrow.duration("us")
    if types.is_time64(kind):
        return pyarrow.time64("us")
    if types.is_dictionary(kind):
        return _decoded_type(kind, kind.value_type, pyarrow)
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _decoded_type(kind, kind.storage_type, pyarrow)
    if types.is_struct(kind):
        return pyarrow.struct([_python_field(field, pyarrow) for field in kind])
    if types.is_map(kind):
        inner = (_python_field(field, pyarrow) for field in (kind.key_field, kind.item_field))
        return pyarrow.map_(*inner, kind.keys_sorted)
    lists = (
        (types.is_list, pyarrow.list_),
        (types.is_large_list, pyarrow.large_list),
        (types.is_fixed_size_list, lambda field: pyarrow.list_(field, kind.list_size)),
    )
    for is_this, make in lists:
        if is_this(kind):
            return make(_python_field(kind.value_field, pyarrow))
    return kind


def _decoded_type(kind: Any, inner: Any, pyarrow: Any) -> Any:
    """Return the type of the times that a dictionary or an extension holds, else itself."""
    cut = _python_type(inner, pyarrow)
    # pyarrow casts to no list and no struct from them.
    return cut if pyarrow.types.is_temporal(cut) else kind


def _python_field(field: Any, pyarrow: Any) -> Any:
    return field.with_type(_python_type(field.type, pyarrow))
