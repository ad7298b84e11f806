"""What callers of `embedlib.index` pass as its source: paths, documents, or rows in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from embedlib.errors import ConfigError, SourceError, shown
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.files import open_source
from embedlib.indexing.sources.in_memory import MemorySource
from embedlib.indexing.sources.items import SourceItem
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.indexing.sources.tables import ArrowTable, is_column, is_table

_WAY = (
    "embedlib.Document(id=..., text=..., metadata={...}), or dicts such as {'id': ..., 'text': ...}"
)

_OF_SOURCES = ("input_paths", "keep_ids", "is_partial", "resume")
"""What of a `Source` or `ResumableSource` would be lost behind a `MemorySource`."""


def open_documents(
    source: str | os.PathLike[str] | Iterable[SourceItem] | ArrowTable,
    options: SourceOptions,
    tell: Tell,
) -> Iterable[Document | BadRow]:
    """Return a source to iterate over.

    Args:
        source: as `embedlib.index` takes it.
        options: how files and rows are read.
        tell: called with a line for every guess and for skipped files.

    Raises:
        ConfigError: it is neither paths nor an iterable of documents or rows.
        SourceError: a path does not exist, or its files cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        source = [source]
    if isinstance(source, Sequence) and source and isinstance(source[0], (str, os.PathLike)):
        return open_source([_path(path) for path in source], options, tell)
    if is_table(source):
        return MemorySource(cast("Iterable[Any]", source), options, tell)
    if is_column(source) or hasattr(type(source), "dtypes"):
        raise ConfigError(
            f"source is a {type(source).__name__}, which has no rows to read; pass a data frame, "
            "an Arrow table or a list of dicts, with a field for the id and one for the text"
        )
    if isinstance(source, (Mapping, bytes, bytearray)):
        raise ConfigError(
            f"source = {shown(source)}, a {type(source).__name__}; pass a list of {_WAY}"
        )
    # An array of one value without a dimension has __iter__, which raises.
    if not isinstance(source, Iterable) or getattr(source, "shape", None) == ():
        raise ConfigError(
            f"source = {shown(source)}; it must be a path, a list of paths, a table, or an "
            "iterable of Document or dict"
        )
    if any(hasattr(source, name) for name in _OF_SOURCES):
        return cast("Iterable[Document | BadRow]", source)
    return MemorySource(source, options, tell)


def no_document(item: Any) -> SourceError:
    """Return the error for what a source gave in place of a document; says how to make one."""
    kind = f"{type(item).__module__}.{type(item).__qualname__}".removeprefix("builtins.")
    if isinstance(item, os.PathLike):
        return SourceError(
            f"the source gave {shown(item)}, a {kind}; pass paths as a list, such as sorted(paths)"
        )
    way = "embedlib.Document(id=..., text=item) of each" if isinstance(item, str) else _WAY
    return SourceError(f"the source gave {shown(item)}, a {kind}; it must give documents: {way}")


def _path(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ConfigError(
            f"source has {shown(path)} among its paths; a path must be a str or a Path"
        )
    return os.fspath(path)
