"""Rows of tables in memory: data frames of pandas and polars, and everything that speaks Arrow.

None of these packages is imported: a table is known by what it can do. Data frames give their rows
themselves, so that one value that Arrow cannot hold is one bad row and not the end of the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from embedlib.errors import SourceError, first_line, shown
from embedlib.indexing.sources.arrow_rows import batch_rows, repeated_columns
from embedlib.packages.installing import import_extra

_BATCH_ROWS = 256
"""Rows that are Python objects at the same time."""

_PANDAS = ("iloc", "columns", "index", "notna", "to_dict")
_POLARS = ("iter_slices", "columns", "to_dicts")
_ARROW_STREAM = "__arrow_c_stream__"
_ARROW_ARRAY = "__arrow_c_array__"
"""Source: the Arrow PyCapsule interface,
https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html"""


class ArrowTable(Protocol):
    """Data that other libraries read as a stream of Arrow batches; `pyarrow.Table` for one."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a capsule with the stream."""


def is_column(source: object) -> bool:
    """Whether this is a column of a data frame, or an array: it has values and no fields."""
    # Of the class: a data frame of pandas has attributes named after its columns.
    return hasattr(type(source), "dtype") and hasattr(type(source), "name")


def is_table(source: object) -> bool:
    """Whether `table_rows` can read this."""
    return not is_column(source) and (
        _has(source, _PANDAS)
        or _has(source, _POLARS)
        or hasattr(source, _ARROW_STREAM)
        or hasattr(source, _ARROW_ARRAY)
    )


def table_rows(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, for which `is_table` is true, in bounded memory.

    Raises:
        SourceError: two columns have one name, a name is not a str, or the data are no table.
    """
    if _has(table, _PANDAS):
        yield from _pandas_rows(table)
    elif _has(table, _POLARS):
        _check_columns(table, table.columns)
        for part in table.iter_slices(_BATCH_ROWS):
            yield from part.to_dicts()
    else:
        yield from _arrow_rows(table)


def _pandas_rows(frame: Any) -> Iterator[dict[str, Any]]:
    index_names = list(frame.index.names)
    # An index without a name is a count of rows, which changes with them; a named one is a column.
    has_index = all(name is not None for name in index_names)
    _check_columns(frame, [*(index_names if has_index else ()), *frame.columns])
    for start in range(0, len(frame), _BATCH_ROWS):
        part = frame.iloc[start : start + _BATCH_ROWS]
        if has_index:
            part = part.reset_index()
        # NaN, NaT and NA are all a value that is missing; as objects they can all become None.
        yield from part.astype(object).where(part.notna(), None).to_dict("records")


def _arrow_rows(table: Any) -> Iterator[dict[str, Any]]:
    pyarrow = import_extra("pyarrow", "parquet", SourceError)
    try:
        if hasattr(table, _ARROW_STREAM):
            batches = pyarrow.RecordBatchReader.from_stream(table)
        else:
            batches = [pyarrow.record_batch(table)]
        schema = batches.schema if hasattr(batches, "schema") else batches[0].schema
        _check_columns(table, schema.names)
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from batch_rows(batch.slice(start, _BATCH_ROWS))
    except (pyarrow.ArrowException, OSError, TypeError) as error:
        raise SourceError(
            f"{_name(table)} cannot be read as an Arrow table: {first_line(error)}"
        ) from error


def _check_columns(table: object, names: list[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise SourceError(
                f"{_name(table)} has a column named {shown(name)}; names of columns must be str"
            )
    problem = repeated_columns(names)
    if problem is not None:
        raise SourceError(f"{_name(table)} {problem}")


def _name(table: object) -> str:
    return f"the {type(table).__name__}"


def _has(source: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(source, name) for name in names)
