"""Reads texts from files or standard input, one record at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click

from embedlib.cli.usage_errors import refuse
from embedlib.errors import SourceError, a_type
from embedlib.indexing.sources.file_bytes import (
    STDIN,
    BrokenFileError,
    check_readable,
    is_denied,
)
from embedlib.indexing.sources.file_formats import FORMATS, TEXTS, place_of, read_rows, suffix_of
from embedlib.indexing.sources.row_fields import RawRow

_COUNT_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Record:
    """One text and the JSON object it came from; a plain line becomes {"text": line}."""

    text: str
    fields: dict[str, Any]


def read_records(paths: tuple[str, ...], *, input_format: str, field: str) -> Iterator[Record]:
    """Yield every text of every input, in order and in bounded memory.

    Args:
        paths: files; "-" is standard input. Names that end in .gz are decompressed.
        input_format: "lines", where an empty line is a text, "jsonl", or "auto": jsonl for files
            named .jsonl or .ndjson, lines for all others.
        field: key of the text in a JSON object.

    Raises:
        SourceError: a file cannot be read, or one of its lines is not valid.
    """
    for path in paths:
        has_fields = is_jsonl(path, input_format)
        with _naming(path):
            for row in read_rows(path, "jsonl" if has_fields else "lines", keeps_blank=True):
                if row.problem is not None:
                    raise SourceError(f"{row.place} {row.problem}")
                yield _record(row, field if has_fields else "text")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file cannot be read."""
    try:
        yield
    except BrokenFileError as error:
        raise SourceError(f"cannot read {place_of(path)}: {error}") from error


def input_paths(inputs: tuple[str, ...], input_format: str) -> tuple[str, ...]:
    """Return the inputs of a command, which can be opened; standard input if it is given none.

    Args:
        inputs: as the command line has them.
        input_format: of them, as `read_records` takes it.

    Raises:
        SourceError: a file does not exist, may not be read, or has another format.
        click.UsageError: --field is given, and no input has fields.
    """
    paths = inputs or (STDIN,)
    for path in paths:
        if path != STDIN and not os.path.exists(path):
            command = f"embedlib {click.get_current_context().info_name}"
            why = f"no such file; a text itself comes by standard input: echo TEXT | {command} ..."
            if is_denied(path):
                why = "Permission denied"
            raise SourceError(f"cannot read {place_of(path)}: {why}")
        if os.path.isdir(path):
            raise SourceError(
                f"cannot read {place_of(path)}: it is a folder; name its files (embedlib index and "
                "embedlib chunks read folders)"
            )
        kind = FORMATS.get(suffix_of(path))
        if input_format == "auto" and kind not in (None, "jsonl", *TEXTS):
            raise SourceError(
                f"{place_of(path)} is {kind}, and not a text on each line; add --input-format "
                "lines if it is, or load it with embedlib index"
            )
        if os.path.isfile(path):  # opening a pipe would wait for its writer
            with _naming(path):
                check_readable(path)
    if not any(is_jsonl(path, input_format) for path in paths):
        refuse("is for JSON Lines; add --input-format jsonl", "field")
    return paths


def count_records(paths: tuple[str, ...]) -> int | None:
    """Return the number of lines in all inputs, for a progress bar; None if unknown."""
    # A pipe can be read only once, and a compressed file would have to be decompressed twice.
    if not all(os.path.isfile(path) and not path.lower().endswith(".gz") for path in paths):
        return None
    total = 0
    with suppress(OSError):  # whoever reads the texts tells why they cannot be read
        for path in paths:
            with open(path, "rb") as file:
                last = b"\n"
                while chunk := file.read(_COUNT_CHUNK_BYTES):
                    total += chunk.count(b"\n")
                    last = chunk[-1:]
                total += last != b"\n"
        return total
    return None


def _record(row: RawRow, field: str) -> Record:
    if field not in row.fields:
        keys = ", ".join(map(repr, row.fields)) or "none"
        raise SourceError(f"{row.place} has no key {field!r}; its keys are: {keys}; see --field")
    text = row.fields[field]
    if not isinstance(text, str):
        raise SourceError(f"{row.place}: {field!r} is {a_type(text)}; a string is needed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{row.place}: {field!r} has the lone surrogate {text[error.start]!r} at character "
            f"{error.start}, which is not Unicode; repair or remove it"
        ) from error
    return Record(text, dict(row.fields))


def is_jsonl(path: str, input_format: str = "auto") -> bool:
    """Return whether a file is read as JSON Lines."""
    if input_format == "auto":
        return FORMATS.get(suffix_of(path)) == "jsonl"
    return input_format == "jsonl"
