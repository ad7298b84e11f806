"""Texts from files or standard input, one record at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO

from embedlib.errors import SourceError
from embedlib.indexing.sources.json_values import BadValueError, parse_json

STDIN = "-"
_COUNT_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Record:
    """One text and the JSON object it came from; a plain line becomes {"text": line}."""

    text: str
    fields: dict[str, Any]


def read_records(paths: tuple[str, ...], *, input_format: str, field: str) -> Iterator[Record]:
    """Yield every text of every input, in order and in bounded memory.

    Args:
        paths: files; "-" is standard input.
        input_format: "lines", "jsonl", or "auto": jsonl for files named so, lines for the rest.
        field: key of the text in a JSON object.

    Raises:
        SourceError: a file cannot be read, or a line of it is not what it should be.
    """
    for path in paths:
        is_jsonl = _is_jsonl(path, input_format)
        try:
            with _open(path) as stream:
                for number, line in enumerate(_lines(stream, path), start=1):
                    if is_jsonl:
                        if line.strip():
                            yield _parse(line, _place(path, number), field)
                    else:
                        yield Record(line, {"text": line})
        except OSError as error:
            raise SourceError(f"cannot read {_label(path)}: {error.strerror or error}") from error


def check_inputs(paths: tuple[str, ...]) -> None:
    """Refuse inputs that do not exist now, and not after hours of work on the ones before them.

    Raises:
        SourceError: a file does not exist.
    """
    for path in paths:
        if path != STDIN and not os.path.exists(path):
            raise SourceError(f"cannot read {_label(path)}: no such file; - is standard input")


def count_records(paths: tuple[str, ...]) -> int | None:
    """Lines in all inputs, for a progress bar; None where that cannot be known beforehand."""
    # A pipe could be read only once.
    if not all(os.path.isfile(path) for path in paths):
        return None
    total = 0
    for path in paths:
        with open(path, "rb") as file:
            last = b"\n"
            while chunk := file.read(_COUNT_CHUNK_BYTES):
                total += chunk.count(b"\n")
                last = chunk[-1:]
            total += last != b"\n"
    return total


def _open(path: str) -> AbstractContextManager[BinaryIO]:
    # Bytes, not text: the encoding is UTF-8 whatever the locale says, and a bad line can be named.
    if path == STDIN:
        return nullcontext(sys.stdin.buffer)  # not ours to close
    return open(path, "rb")


def _lines(stream: BinaryIO, path: str) -> Iterator[str]:
    for number, raw in enumerate(stream, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{_place(path, number)} is not UTF-8 (byte {error.start + 1} of the line is "
                f"0x{raw[error.start]:02x}); convert the input, for example with iconv"
            ) from error
        yield line.removesuffix("\n").removesuffix("\r")


def _parse(line: str, place: str, field: str) -> Record:
    try:
        fields = parse_json(line)
    except BadValueError as error:
        raise SourceError(f"{place} {error}") from error
    if not isinstance(fields, dict):
        raise SourceError(f"{place} is a JSON {type(fields).__name__}; an object is needed")
    if field not in fields:
        keys = ", ".join(map(repr, fields)) or "none"
        raise SourceError(f"{place} has no key {field!r}; its keys are: {keys}; see --field")
    text = fields[field]
    if not isinstance(text, str):
        raise SourceError(f"{place}: {field!r} is a {type(text).__name__}; a string is needed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{place}: {field!r} has the lone surrogate {text[error.start]!r} at character "
            f"{error.start}, which is not Unicode; repair or remove it"
        ) from error
    return Record(text, fields)


def _is_jsonl(path: str, input_format: str) -> bool:
    if input_format == "auto":
        return path.endswith((".jsonl", ".ndjson"))
    return input_format == "jsonl"


def _label(path: str) -> str:
    return "standard input" if path == STDIN else repr(path)


def _place(path: str, number: int) -> str:
    return f"line {number} of {_label(path)}"
