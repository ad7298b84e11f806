"""What the user says about a source, and what a source is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from embedlib.errors import ConfigError
from embedlib.indexing.rows import BadRow, Document

InputFormat = Literal["auto", "text", "markdown", "lines", "csv", "tsv", "jsonl", "parquet"]

Tell = Callable[[str], None]
"""Takes a line for the user: a guess that was made, files that were skipped."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a source is to be read.

    Attributes:
        input_format: of every input; "auto" goes by the names of the files.
        glob: which files of a folder are read; empty: those whose names fit `input_format`, and
            text and Markdown files for "auto".
        id_field: the field that names a row for ever; None: guessed by its name.
        text_field: the field that is embedded; None: guessed.
        metadata_fields: what else is kept; None: all other fields.
    """

    input_format: InputFormat = "auto"
    glob: tuple[str, ...] = ()
    id_field: str | None = None
    text_field: str | None = None
    metadata_fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.input_format not in get_args(InputFormat):
            raise ConfigError(
                f"input_format is {self.input_format!r}; it must be one of "
                f"{', '.join(get_args(InputFormat))}"
            )
        if self.id_field is not None and self.id_field == self.text_field:
            raise ConfigError(
                f"id_field and text_field are both {self.id_field!r}; a text that names itself "
                "would be a new document after every change: name two fields"
            )


class Source(Protocol):
    """Documents, and the rows that cannot be one, in an order that is the same every time.

    A source may have `__length_hint__`, see `operator.length_hint`: the number of documents where
    it is cheap to know. It may have `input_paths`: the files it reads, which no errors file may
    replace.
    """

    def __iter__(self) -> Iterator[Document | BadRow]:
        """Read from the beginning.

        Raises:
            SourceError: nothing can be read, or no more; a rerun may succeed.
        """
