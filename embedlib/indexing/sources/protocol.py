"""The source protocol: what a load reads, and the options that say how."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from embedlib.checks import TEXT, Kind, choice, is_number, optional
from embedlib.errors import ConfigError
from embedlib.indexing.rows import BadRow, Document

InputFormat = Literal[
    "auto",
    "text",
    "markdown",
    "html",
    "pdf",
    "docx",
    "lines",
    "csv",
    "tsv",
    "jsonl",
    "parquet",
]


_FOLDER = Kind(
    "a folder", lambda value: isinstance(value, str | os.PathLike) and os.path.isdir(value)
)
# A str is a sequence too, of patterns of one character.
_NAMES = Kind(
    "a tuple of str",
    lambda value: isinstance(value, tuple | list) and all(isinstance(each, str) for each in value),
)
_OVERLAP = Kind("a number of at least 0", lambda value: is_number(value) and 0 <= value < math.inf)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How files, query results and rows in memory are read."""

    input_format: InputFormat = "auto"
    """Format of every input; "auto": by the names of the files."""
    glob: tuple[str, ...] = ()
    """Patterns for the files of a folder; empty: files whose names fit `input_format`, and text and
    Markdown files for "auto"."""
    id_field: str | None = None
    """The field with the id of a row; None: guessed by its name."""
    text_field: str | tuple[str, ...] | None = None
    """The field that is embedded, or several, which are joined with a blank line between them;
    None: guessed."""
    metadata_fields: tuple[str, ...] | None = None
    """The fields that are stored as metadata; None: all others."""
    id_prefix: Literal["file"] | None = None
    """"file": the id of a row has the name of its file in front, `PATH#ID`, so that files may use
    the same ids."""
    id_root: str | os.PathLike[str] | None = None
    """The folder from which the paths in ids are counted; None: the current folder, and absolute
    paths outside of it."""
    since_field: str | None = None
    """Of a query: the column that tells which rows are new or have changed since the last load, a
    number that grows or the time of the last change; None: every load reads all rows."""
    since_overlap: float = 3600.0
    """How far before the last value of `since_field` a load reads again, for transactions that
    commit late: seconds of a time, or a difference of numbers."""

    def __post_init__(self) -> None:
        choice(*get_args(InputFormat)).take("input_format", self.input_format)
        optional(TEXT).take("id_field", self.id_field)
        optional(TEXT).take("since_field", self.since_field)
        _OVERLAP.take("since_overlap", self.since_overlap)
        optional(choice("file"), "'file' or None").take("id_prefix", self.id_prefix)
        optional(_FOLDER).take("id_root", self.id_root)
        _NAMES.take("glob", self.glob)
        optional(_NAMES).take("metadata_fields", self.metadata_fields)
        if not isinstance(self.text_field, str | None):
            _NAMES.take("text_field", self.text_field)
            if not self.text_field:
                raise ConfigError("text_field = (); it must name a field")
        if self.id_field in (self.text_fields or ()):
            raise ConfigError(
                f"id_field and text_field are both {self.id_field!r}; a row whose id is its text "
                "would be a new document after every change: name two fields"
            )

    @property
    def text_fields(self) -> tuple[str, ...] | None:
        """The fields that are embedded, in their order; None: to be guessed."""
        if self.text_field is None:
            return None
        return (self.text_field,) if isinstance(self.text_field, str) else tuple(self.text_field)

    def refuse_since(self, name: str) -> None:
        """Refuse `since_field` for a source whose rows have no order in time.

        Raises:
            ConfigError: it is set.
        """
        if self.since_field is not None:
            raise ConfigError(
                f"since_field = {self.since_field!r} (--since-field) is for the rows of a query, "
                f"and {name} is read as a whole; leave it out"
            )


class Source(Protocol):
    """An iterable of documents and bad rows, in the same order every time.

    `index` iterates over it once, on a thread of its own. A source may have `__length_hint__`, see
    `operator.length_hint`: the number of documents, if that is cheap to know. It may have
    `input_paths`: the files it reads; `index` refuses to write an errors file over one of them. It
    may have `keep_ids`, which takes a function from ids to the number of those that the destination
    holds, and is called before the first iteration if the destination may hold any. It may have
    `is_partial`: whether it leaves out documents that may be stored, which are then not counted;
    an errors file keeps what it says of them.
    """

    def __iter__(self) -> Iterator[Document | BadRow]:
        """Read from the beginning.

        Raises:
            SourceError: the source cannot be read, or not to its end; a rerun may succeed.
        """


class ResumableSource(Source, Protocol):
    """A source that can leave out what earlier loads have read.

    The position belongs to the destination: `index` stores it there after a load that is complete,
    and hands it in at the next one.
    """

    @property
    def scope(self) -> str:
        """What decides which documents the source has; with another scope all are read."""

    def resume(self, position: str) -> None:
        """Read only from this position on; called before the first iteration, or never."""

    def position(self) -> str | None:
        """Return where the next load may begin, after the iteration has ended; None: unknown.

        Documents that are at this position, or become visible before it later, must be read again.
        """
