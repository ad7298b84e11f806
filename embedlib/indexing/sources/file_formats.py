"""File formats: recognising one by a file name, and reading texts or rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, Final

from embedlib.errors import SourceError
from embedlib.indexing.sources.arrow_rows import batch_rows, repeated_columns
from embedlib.indexing.sources.file_bytes import (
    STDIN,
    BrokenFileError,
    open_bytes,
    read_bytes,
)
from embedlib.indexing.sources.json_values import BadValueError, parse_json
from embedlib.indexing.sources.protocol import InputFormat
from embedlib.indexing.sources.row_fields import SEPARATORS, RawRow, is_undivided
from embedlib.indexing.sources.storage import is_storage, open_object
from embedlib.packages.installing import import_extra

FORMATS: Final[Mapping[str, InputFormat]] = {
    ".txt": "text",
    ".text": "text",
    ".rst": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "docx",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
"""Formats by suffix. All but `PACKED` may be followed by .gz."""

PACKED: Final = ("pdf", "docx", "parquet")
"""Formats that are compressed in themselves."""

TEXTS: Final = ("text", "markdown")
"""Formats of files that a folder is read for unless others are asked for."""

WHOLE_FILE: Final = (*TEXTS, "html", "pdf", "docx")
"""Formats without rows: a file is one document, or one for each page."""

TABLES: Final = ("csv", "tsv", "parquet")
"""Formats in which all rows have the same fields."""

MAX_TEXT_BYTES: Final = 1 << 28
"""Of a file that is one text, which takes several times as much: a log or an export would fill the
memory."""

_MAX_LINE_BYTES: Final = 1 << 28
"""Longer than any text: a device such as /dev/zero, or a file of another kind, is one endless line,
which would be read until the memory is full."""

_MAX_CSV_FIELD_CHARS: Final = 1 << 26
"""Longer than any text: after a quote that is never closed, the rest of the file is one field."""

CONVERT_JSON: Final = (
    "JSON must have one object on each line: jq -c '.[]' converts an array, jq -c . other JSON"
)

_PARQUET_BATCH_ROWS: Final = 256
_PARQUET_BUFFER_BYTES: Final = 1 << 20


def suffix_of(path: str) -> str:
    """Return the suffix that decides the format, in lower case: ".csv" of "A.CSV.gz"."""
    name = PurePath(path)
    if name.suffix.lower() == ".gz":
        inner = PurePath(name.stem).suffix.lower()
        return f"{inner}.gz" if FORMATS.get(inner) in PACKED else inner or ".gz"
    return name.suffix.lower()


def place_of(path: str) -> str:
    """Return the name of an input for messages."""
    return "standard input" if path == STDIN else repr(path)


def read_text(path: str) -> str:
    """Return the whole text of a file.

    Raises:
        BrokenFileError: it cannot be read, is too large, or is not UTF-8.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        whole = error.object  # without a byte order mark, as the place of the byte is counted
        line = whole.count(b"\n", 0, error.start) + 1
        line_start = whole.rfind(b"\n", 0, error.start) + 1
        raise BrokenFileError(f"line {line} {_describe(error, line_start)}") from error


def read_rows(
    path: str,
    input_format: InputFormat,
    columns: Sequence[str] | None = None,
    *,
    keeps_blank: bool = False,
) -> Iterator[RawRow]:
    """Yield the rows of a file in bounded memory; a row that cannot be read has a `problem`.

    Args:
        path: of the file; "-": standard input.
        input_format: a format with rows.
        columns: the fields to read, for formats that can skip the others; None: all.
        keeps_blank: whether a blank line of the format "lines" is a row.

    Raises:
        BrokenFileError: the file cannot be read, or not to its end.
    """
    if input_format == "parquet":
        yield from _read_parquet(path, columns)
        return
    with open_bytes(path) as stream:
        if input_format == "lines":
            yield from _read_lines(stream, path, keeps_blank)
        elif input_format == "jsonl":
            yield from _read_jsonl(stream, path)
        else:
            yield from _read_csv(stream, path, "," if input_format == "csv" else "\t")


def _numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers from 1.

    Raises:
        BrokenFileError: a line is longer than any text.
    """
    number = 1
    while raw := stream.readline(_MAX_LINE_BYTES + 1):
        if len(raw) > _MAX_LINE_BYTES:
            raise BrokenFileError(
                f"line {number} has more than {_MAX_LINE_BYTES:,} bytes; a line holds one text or "
                "row, check that this is a text file"
            )
        yield number, raw
        number += 1


def _describe(error: UnicodeDecodeError, line_start: int = 0) -> str:
    byte = f"byte {error.start - line_start + 1} of the line is 0x{error.object[error.start]:02x}"
    return f"is not UTF-8 ({byte}); convert the input, for example with iconv"


def _decode(raw: bytes, line: int) -> str:
    return str(raw, "utf-8-sig" if line == 1 else "utf-8")


def _line_place(path: str, line: int) -> str:
    return f"line {line} of {place_of(path)}"


def _read_lines(stream: BinaryIO, path: str, keeps_blank: bool) -> Iterator[RawRow]:
    """Yield rows with the field "text", numbered by their line."""
    for number, raw in _numbered_lines(stream):
        place = _line_place(path, number)
        try:
            text = _decode(raw, number).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            yield RawRow(number=number, place=place, problem=_describe(error))
            continue
        if keeps_blank or (text and not text.isspace()):
            yield RawRow(number=number, place=place, fields={"text": text})


def _read_jsonl(stream: BinaryIO, path: str) -> Iterator[RawRow]:
    """Rows numbered by their line, so that a repaired line changes no other row's number."""
    for number, raw in _numbered_lines(stream):
        if raw.isspace():
            continue
        fields, problem = _parse_json(raw, number)
        if problem and number == 1 and (raw.startswith(b"[") or raw.strip() == b"{"):
            problem += f"; {CONVERT_JSON}"
        yield RawRow(number=number, place=_line_place(path, number), fields=fields, problem=problem)


def _parse_json(raw: bytes, line: int) -> tuple[dict[str, Any], str | None]:
    try:
        value = parse_json(_decode(raw, line).rstrip("\r\n"))
    except UnicodeDecodeError as error:
        return {}, _describe(error)
    except BadValueError as error:
        return {}, str(error)
    if not isinstance(value, dict):
        return {}, f"is a JSON {type(value).__name__}; an object is needed"
    return value, None


def _read_csv(stream: BinaryIO, path: str, delimiter: str) -> Iterator[RawRow]:
    """Rows numbered without the header and empty lines; rows without any value are left out."""
    # The limit is global to the process: it is only raised, so that two readers do not break each
    # other.
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_CSV_FIELD_CHARS))
    lines = _CsvLines(stream)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    width = number = 0
    while True:
        first_line = lines.line + 1
        lines.problem = None
        is_open = False
        values: list[str] = []
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lines.problem = f"is not CSV: {error}"
            if "new-line character" in str(error):  # Python's advice is for who writes the code
                lines.problem = r"has a CR without LF; convert it, for example by tr '\r' '\n'"
            if is_open := lines.line > first_line:
                lines.problem += f"; because of a quote it goes on to line {lines.line}"
            if "expected" in str(error):  # it is about quotes; others are about size and line ends
                lines.problem += '; a value that begins with " ends with one, write others twice'
        if not values and lines.problem is None:
            continue
        if not header:
            if lines.problem is not None:
                raise BrokenFileError(f"its header {lines.problem}")
            width = len(values)
            if values.count("") > 1:  # what spreadsheets write of columns without values
                while values and not values[-1]:
                    values.pop()
            _check_unique(values)
            header = values
            continue
        number += lines.line - first_line + 1 if is_open else 1  # a row a line, if it joined some
        problem = lines.problem
        # What spreadsheets write of a row without values: nothing but commas.
        if problem is None and len(header) > 1 and not any(map(str.strip, values)):
            continue
        if len(values) == width and not any(map(str.strip, values[len(header) :])):
            values = values[: len(header)]
        if problem is None and len(values) != len(header):
            problem = f"has {len(values)} fields, and the header has {len(header)}"
            problem += f"; {SEPARATORS}" if is_undivided(header) else ""
        fields = {} if problem else dict(zip(header, values, strict=True))
        yield RawRow(
            # Of several lines, it may have swallowed the rows after it.
            number=None if problem and lines.line > first_line else number,
            place=_line_place(path, first_line),
            fields=fields,
            problem=problem,
        )


class _CsvLines:
    """The lines of a stream for csv.reader, which joins lines; records which were not UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.line = 0
        self.problem: str | None = None

    def __iter__(self) -> Iterator[str]:
        for number, raw in _numbered_lines(self._stream):
            self.line = number
            try:
                text = _decode(raw, self.line)
            except UnicodeDecodeError as error:
                self.problem = _describe(error)
                text = raw.decode("utf-8", "replace")
            yield text


def _check_unique(names: Sequence[str]) -> None:
    problem = repeated_columns(names)
    if problem is not None:
        raise BrokenFileError(problem)


def _read_parquet(path: str, columns: Sequence[str] | None) -> Iterator[RawRow]:
    """Rows, read one batch after the other."""
    pyarrow = import_extra("pyarrow", "parquet", SourceError)
    number = 0
    try:
        with _open_parquet(path) as file:
            _check_unique(file.schema_arrow.names)
            for batch in file.iter_batches(_PARQUET_BATCH_ROWS, columns=columns):
                for fields in batch_rows(batch):
                    number += 1
                    place = f"row {number} of {place_of(path)}"
                    yield RawRow(number=number, place=place, fields=fields)
    except (OSError, pyarrow.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise BrokenFileError(f"cannot be read as Parquet: {reason}") from error


@contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    parquet = import_extra("pyarrow.parquet", "parquet", SourceError)
    with ExitStack() as stack:
        place = stack.enter_context(open_object(path)) if is_storage(path) else path
        # A buffer reads a row group page by page; without one, it is read as a whole. Beforehand
        # (pre_buffer, which pyarrow 26 sets) the whole file is.
        file = parquet.ParquetFile(place, buffer_size=_PARQUET_BUFFER_BYTES, pre_buffer=False)
        yield stack.enter_context(file)


def count_documents(path: str, input_format: InputFormat) -> int | None:
    """Return how many documents a file has; None: unknown without reading it."""
    if input_format in WHOLE_FILE and input_format != "pdf":
        return 1
    if input_format != "parquet":
        return None
    pyarrow = import_extra("pyarrow", "parquet", SourceError)
    try:
        with _open_parquet(path) as file:
            return int(file.metadata.num_rows)
    except (OSError, pyarrow.ArrowException):
        return None
