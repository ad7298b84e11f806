"""Texts with vectors that were made elsewhere, read from a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SourceError, shown
from embedlib.indexing.sinks.file_export import ROWS_SUFFIX
from embedlib.indexing.sources.file_bytes import BrokenFileError
from embedlib.indexing.sources.file_formats import FORMATS, read_rows, suffix_of
from embedlib.indexing.sources.protocol import InputFormat
from embedlib.indexing.sources.row_fields import RawRow

MAX_ROWS: Final = 1024
"""No row behind these is read: more texts tell nothing new."""
MAX_TEXTS: Final = 256
NUM_LONGEST: Final = 32
"""How many of the texts are the longest ones, which alone tell where a text is cut."""
VECTOR: Final = "embedding"
"""The field of a vector, as embedlib itself writes it."""


@dataclass(frozen=True)
class Theirs:
    """Texts, and a vector of each."""

    texts: tuple[str, ...]
    vectors: NDArray[np.float32]
    """float32[N, D]"""

    @property
    def are_whole(self) -> bool:
        """Whether all numbers are whole: the codes of a quantization, not a model's vectors."""
        return bool((self.vectors == np.rint(self.vectors)).all())


def read_theirs(path: Path, texts_path: Path | None, field: str) -> Theirs:
    """Read texts and vectors of a file: at most `MAX_TEXTS` of its first `MAX_ROWS` rows.

    Args:
        path: JSON Lines or Parquet with the texts and a field `embedding`, or a .npy of vectors.
        texts_path: a file with the texts of a .npy, one per line or as JSON Lines; None: the one
            that `embedlib index` writes beside it.
        field: the name of the field with the text.

    Raises:
        SourceError: a file cannot be read, or is not of that form.
    """
    suffix = suffix_of(str(path))
    input_format = FORMATS.get(suffix)
    try:
        if suffix == ".npy":
            texts_path = texts_path or Path(f"{path}{ROWS_SUFFIX}")
            texts, num_texts = _read_texts(texts_path, field)
            vectors = _read_npy(path)
            if len(vectors) != num_texts:
                raise SourceError(
                    f"{path} has {len(vectors)} vectors, and {texts_path} {num_texts} texts; give "
                    "the texts that the vectors were made of with --texts"
                )
            numbers = _as_float32(vectors[:MAX_ROWS])
        elif input_format not in ("jsonl", "parquet"):
            raise SourceError(
                f"{path}: vectors are read from .jsonl, .parquet and .npy; name such a file"
            )
        elif texts_path is not None:
            raise SourceError(f"{path} has its own texts; leave out --texts")
        else:
            texts, numbers = _read_fields(path, input_format, field)
    except BrokenFileError as error:
        raise SourceError(f"{texts_path or path} {error}") from error
    if not texts:
        raise SourceError(f"{path} has no vector in it")
    if not np.isfinite(numbers).all():
        raise SourceError(f"{path} has a vector with NaN or infinity; leave it out")
    chosen = sample(texts)
    return Theirs(tuple(texts[row] for row in chosen), numbers[chosen])


def sample(texts: list[str]) -> list[int]:
    """Return which rows are compared: the longest, and of the others evenly spaced ones."""
    if len(texts) <= MAX_TEXTS:
        return list(range(len(texts)))
    by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    rest = by_length[:-NUM_LONGEST]
    num_rest = MAX_TEXTS - NUM_LONGEST
    spaced = [rest[index * len(rest) // num_rest] for index in range(num_rest)]
    return sorted(spaced + by_length[-NUM_LONGEST:])


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        # np.load would take archives as well.
        vectors: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, SyntaxError, TokenError) as error:  # the last two: of its header
        raise SourceError(f"{path}: cannot be read as .npy: {error}") from error
    if vectors.ndim != 2 or vectors.dtype.kind not in "fi" or 0 in vectors.shape:
        raise SourceError(f"{path} is {vectors.dtype}{list(vectors.shape)}; float[N, D] is needed")
    return vectors


def _read_texts(path: Path, field: str) -> tuple[list[str], int]:
    """Return the first texts of a file, and how many it has."""
    is_jsonl = FORMATS.get(suffix_of(str(path))) == "jsonl"
    if not path.exists():
        raise SourceError(f"{path}: no such file; name the texts of the vectors with --texts")
    rows = _checked(read_rows(str(path), "jsonl" if is_jsonl else "lines", keeps_blank=True))
    texts = [_text(row, field if is_jsonl else "text") for row in islice(rows, MAX_ROWS)]
    return texts, len(texts) + sum(1 for _ in rows)


def _read_fields(
    path: Path, input_format: InputFormat, field: str
) -> tuple[list[str], NDArray[np.float32]]:
    texts, vectors = [], []
    rows = read_rows(str(path), input_format, (field, VECTOR))
    for row in _checked(islice(rows, MAX_ROWS)):
        texts.append(_text(row, field))
        vectors.append(as_vector(row.fields.get(VECTOR), f"{row.place}: {VECTOR!r}"))
        if len(vectors[-1]) != len(vectors[0]):
            raise SourceError(
                f"{row.place}: {VECTOR!r} has {len(vectors[-1])} numbers, the first one "
                f"{len(vectors[0])}; give vectors of one model"
            )
    return texts, np.stack(vectors) if vectors else np.empty((0, 0), np.float32)


def as_vector(value: object, name: str) -> NDArray[np.float32]:
    """Return a list of numbers as float32[D].

    Raises:
        SourceError: it is none.
    """
    is_list = isinstance(value, list) and len(value) > 0
    if not is_list or not all(type(number) in (int, float) for number in value):  # type: ignore[attr-defined]
        raise SourceError(f"{name} is {shown(value)}; a list of numbers is needed")
    try:
        return _as_float32(value)
    except OverflowError:  # an integer beyond every float
        raise SourceError(f"{name} has a number that is too large; leave that row out") from None


def _as_float32(numbers: Any) -> NDArray[np.float32]:
    """Return numbers as float32; those that are too large are infinite, and refused as such."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float32)


def _checked(rows: Iterator[RawRow]) -> Iterator[RawRow]:
    for row in rows:
        if row.problem is not None:
            raise SourceError(f"{row.place} {row.problem}")
        yield row


def _text(row: RawRow, field: str) -> str:
    text = row.fields.get(field)
    if not isinstance(text, str):
        keys = ", ".join(map(repr, row.fields)) or "none"
        raise SourceError(
            f"{row.place} has no text in {field!r}; its fields are: {keys}; see --field"
        )
    return text
