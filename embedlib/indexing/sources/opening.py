"""What callers of `embedlib.index` pass as its source: paths or documents, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embedlib.errors import ConfigError, SourceError, shown
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.file_formats import STDIN
from embedlib.indexing.sources.files import open_source
from embedlib.indexing.sources.protocol import SourceOptions

_WAY = "embedlib.Document(id=..., text=..., metadata={...})"


def open_documents(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[Document | BadRow],
    options: SourceOptions,
    tell: Tell,
) -> Iterable[Document | BadRow]:
    """Return a source to iterate over.

    Raises:
        ConfigError: it is neither paths nor an iterable of documents.
        SourceError: a path does not exist, or its files cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return _open_paths([source], options, tell)
    if isinstance(source, Sequence) and source and isinstance(source[0], (str, os.PathLike)):
        return _open_paths(source, options, tell)
    if _is_table(source):
        raise ConfigError(
            f"source is a {type(source).__name__}; pass its rows as documents, such as "
            "(embedlib.Document(id=str(row.id), text=row.text) for row in table.itertuples())"
        )
    if isinstance(source, (Mapping, bytes, bytearray)):
        raise ConfigError(
            f"source = {shown(source)}, a {type(source).__name__}; pass a list of {_WAY}"
        )
    # An array of one value without a dimension has __iter__, which raises.
    if not isinstance(source, Iterable) or getattr(source, "shape", None) == ():
        raise ConfigError(
            f"source = {shown(source)}; it must be a path, a list of paths, or an iterable of "
            "Document"
        )
    return source  # type: ignore[return-value]


def no_document(item: Any) -> SourceError:
    """Return the error for what a source gave in place of a document; says how to make one."""
    kind = f"{type(item).__module__}.{type(item).__qualname__}".removeprefix("builtins.")
    if hasattr(item, "page_content"):  # LangChain's class has the same name as ours
        way = "embedlib.Document(id=item.id, text=item.page_content, metadata=item.metadata)"
    elif isinstance(item, Mapping):
        way = "embedlib.Document(id=item['id'], text=item['text']) of each"
    elif isinstance(item, str):
        way = "embedlib.Document(id=..., text=item) of each"
    else:
        way = _WAY
    return SourceError(
        f"the source gave {shown(item)}, a {kind}; it must give Document objects: {way}"
    )


def _open_paths(
    paths: Iterable[str | os.PathLike[str]], options: SourceOptions, tell: Tell
) -> Iterable[Document | BadRow]:
    names = [_path(path) for path in paths]
    for name in names:
        is_url = "://" in name or name.startswith("sqlite:")
        if name != STDIN and not is_url and not os.path.exists(name):
            raise SourceError(
                f"cannot read {shown(name)}: no such file or folder; a text is passed as "
                "embedlib.Document(id=..., text=...)"
            )
    return open_source(names, options, tell)


def _path(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ConfigError(
            f"source has {shown(path)} among its paths; a path must be a str or a Path"
        )
    return os.fspath(path)


def _is_table(source: object) -> bool:
    """Whether this is a data frame, or a column of one, of whatever package."""
    return hasattr(source, "dtypes") or (hasattr(source, "dtype") and hasattr(source, "name"))
