"""Blocks of a Ray dataset as rows of a destination, and who writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ConfigError, SinkError, shown
from embedlib.indexing import (
    BadRow,
    Document,
    Row,
    Target,
    UnstorableRowsError,
    Vectors,
    open_sink,
    tell_nobody,
)
from embedlib.indexing.workers import (
    MAX_REPORTED_BAD_ROWS,
    BadRows,
    Fields,
    RawRow,
    Reader,
    Seen,
    batch_rows,
    cut_nothing,
    find_changes,
)

WRITE_ROWS = 512


def no_column(name: str, there: Iterable[str]) -> str:
    """Return the message for a dataset that lacks a column."""
    return f"the dataset has no column {name!r}; it has {', '.join(sorted(there))}"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a dataset are ids, texts, vectors and metadata.

    Attributes:
        id: with the ids of documents.
        text: with the texts.
        vector: with float32[D].
        metadata: stored beside them; None: all others.
    """

    id: str
    text: str
    vector: str
    metadata: tuple[str, ...] | None

    def __post_init__(self) -> None:
        """Refuse one name in place of several, whose letters would be looked for.

        Raises:
            ConfigError: it is.
        """
        if isinstance(self.metadata, str):
            raise ConfigError(
                f"metadata = {shown(self.metadata)}; it must be a tuple of names, such as "
                f"({shown(self.metadata)},)"
            )

    def check(self, names: Iterable[str]) -> None:
        """Refuse a dataset that lacks one of them.

        Raises:
            SinkError: it does.
        """
        there = list(names)
        for name in (self.id, self.text, self.vector, *(self.metadata or ())):
            if name not in there:
                raise SinkError(no_column(name, there))

    def documents(self, table: Any, first: int) -> Iterator[Document | BadRow]:
        """Yield the documents of an Arrow table, converted as those of a Parquet file.

        NumPy, in which Ray gives batches, has no integer, date or flag that is missing.

        Args:
            table: rows of a block.
            first: number of the first one, from 0.
        """
        fields = Fields(id=self.id, text=(self.text,), metadata=self.metadata)
        names = fields.names or [name for name in table.column_names if name != self.vector]
        for number, row in enumerate(batch_rows(table.select(names)), first + 1):
            place = f"row {number} of a block (id {shown(row[self.id])})"
            yield fields.to_document(RawRow(number=number, place=place, fields=row), "the dataset")


@dataclass(kw_only=True)
class Written:
    """What became of rows.

    Attributes:
        num_changed: rows that were written, or got other metadata.
        num_bad_rows: rows that the destination cannot store.
        bad_rows: the first ten of these.
    """

    num_changed: int = 0
    num_bad_rows: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)

    def add(self, other: Written) -> None:
        """Count what became of other rows."""
        self.num_changed += other.num_changed
        self.num_bad_rows += other.num_bad_rows
        self.bad_rows = (self.bad_rows + other.bad_rows)[:MAX_REPORTED_BAD_ROWS]


class BlockWriter:
    """A process that has a destination open."""

    def __init__(self, url: str, folder: str = ".") -> None:
        """Open a destination; a path in its URL may be relative to a folder, where this works."""
        os.chdir(folder)
        self._sink = open_sink(url)

    def begin(self, target: Target) -> None:
        """Become a writer."""
        self._sink.begin(target, tell_nobody)

    def write(self, rows: list[Row], vectors: Vectors) -> Written:
        """Write the rows that differ from what is stored."""
        changes = find_changes(rows, self._sink.digests([row.id for row in rows]))
        place = {row.id: number for number, row in enumerate(rows)}
        written = Written()
        if changes.to_embed:
            numbers = [place[row.id] for row in changes.to_embed]
            written.add(self._store(changes.to_embed, vectors[numbers]))
        if changes.to_update:
            written.add(self._store(changes.to_update, None))
        return written

    def _store(self, rows: list[Row], vectors: Vectors | None) -> Written:
        """Write rows, or without vectors their metadata; the sink stores all that it can."""
        try:
            if vectors is not None:
                self._sink.write(rows, vectors)
            else:
                self._sink.write_metadata(rows)
        except UnstorableRowsError as error:
            num_bad = len(error.bad_rows)
            return Written(
                num_changed=len(rows) - num_bad,
                num_bad_rows=num_bad,
                bad_rows=list(error.bad_rows[:MAX_REPORTED_BAD_ROWS]),
            )
        return Written(num_changed=len(rows))

    def settle(self) -> None:
        """Wait until every row is applied: a server that does it later has when it shows one.

        To count them, after each of thousands of tasks, would read all rows as often.
        """
        next(self._sink.scan(), None)

    def finish(self) -> None:
        """Make the rows ready for search."""
        self._sink.finish()

    def end(self) -> None:
        """Give the destination up."""
        self._sink.close()


def rows_of(documents: Iterable[Document | BadRow], fingerprint: str, seen: Seen) -> list[Row]:
    """Return the rows of documents, one each, checked as those of a load.

    Args:
        documents: a part of a dataset.
        fingerprint: of the model.
        seen: the documents before them.

    Raises:
        SourceError: a document cannot be stored, or has the id of another; the message names it.
    """
    reader = Reader(
        documents, cut_nothing, fingerprint, seen, BadRows(None, tell_nobody, stops=True)
    )
    try:
        return [row for group in reader.groups(lambda: False) for row in group.rows]
    finally:
        reader.close()


def vectors_of(values: Sequence[Any], rows: Sequence[Row], first: int, dim: int) -> Vectors:
    """Return float32[N, D] of the values of the column with the vectors.

    Args:
        values: one for each row.
        rows: a part of a block.
        first: number of the first one in the block, from 0.
        dim: D of the model.

    Raises:
        SinkError: a value is no vector of D finite numbers; the message names its row.
    """
    vectors = np.empty((len(rows), dim), np.float32)
    for number, (value, row) in enumerate(zip(values, rows, strict=True)):
        try:
            vector = np.asarray(value, np.float32)
        except (TypeError, ValueError, OverflowError):  # no numbers, or one beyond every float
            vector = np.empty(0, np.float32)
        if vector.shape != (dim,) or not np.isfinite(vector).all():
            raise SinkError(
                f"row {first + number + 1} of a block (id {shown(row.source_id)}): its vector is "
                f"{shown(value)}; the model makes {dim} finite numbers for each row, leave rows "
                "without a vector out"
            )
        vectors[number] = vector
    return vectors


def key_of(row: Row) -> int:
    """Return 64 bits of a row's id, for `num_repeated`."""
    return (row.id.int ^ row.id.int >> 64) & 0xFFFF_FFFF_FFFF_FFFF


def num_repeated(keys: list[NDArray[np.uint64]]) -> int:
    """Return how many rows have the id of another.

    Two of 200 million different ids have the same 64 bits in one case of a thousand.
    """
    if not keys:
        return 0
    every = np.sort(np.concatenate(keys))
    return int(np.count_nonzero(every[1:] == every[:-1]))
