"""The rows in the database of a file sink: written, found by their ids, searched and removed.

Writers call these functions in a transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Similarity
from embedlib.indexing.filters.expression import Filter, matcher
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.protocol import Hit, RowKey
from embedlib.indexing.sinks.replaceable import StoredRow
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.similarity import similarity

_UPSERT = """
INSERT INTO {} (id, source_id, chunk, text, metadata, digest, vector) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET text = excluded.text, metadata = excluded.metadata,
    digest = excluded.digest, vector = excluded.vector
"""
_SLICE = 500
"""Ids per statement: below the limit of 999 parameters in older versions of SQLite."""
_SCAN_ROWS = 4096
"""Vectors that a search compares at once."""
_ACCEPTS = "embedlib_accepts"
"""The filter, as a function of SQL: vectors that it leaves out are not read."""


def count_rows(database: sqlite3.Connection, table: str) -> int:
    """Return how many rows a table has."""
    (num_rows,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(num_rows)


def read_digests(
    database: sqlite3.Connection, table: str, ids: Sequence[UUID]
) -> dict[UUID, bytes]:
    """Return the digests of those rows that are there."""
    found: dict[UUID, bytes] = {}
    for start in range(0, len(ids), _SLICE):
        part = [id_.bytes for id_ in ids[start : start + _SLICE]]
        marks = ", ".join("?" * len(part))
        rows = database.execute(f"SELECT id, digest FROM {table} WHERE id IN ({marks})", part)
        found.update((UUID(bytes=id_), digest) for id_, digest in rows)
    return found


def read_keys(database: sqlite3.Connection, table: str) -> Iterator[RowKey]:
    """Yield rows in the order they were first written."""
    query = f"SELECT id, source_id, chunk FROM {table} ORDER BY number"
    for id_, source_id, chunk in database.execute(query):
        yield RowKey(id=UUID(bytes=id_), source_id=source_id, chunk=chunk)


def read_stored(
    database: sqlite3.Connection, table: str, ids: Sequence[UUID]
) -> dict[UUID, StoredRow]:
    """Return text and vector of those rows that are there; at most a few hundred."""
    marks = ", ".join("?" * len(ids))
    query = f"SELECT id, text, vector FROM {table} WHERE id IN ({marks})"
    return {
        UUID(bytes=id_): StoredRow(text, np.frombuffer(blob, "<f4"))
        for id_, text, blob in database.execute(query, [id_.bytes for id_ in ids])
    }


def write_rows(
    database: sqlite3.Connection, table: str, rows: Sequence[Row], vectors: Vectors
) -> None:
    """Insert rows, or replace those that are there."""
    blobs = np.ascontiguousarray(vectors, "<f4")
    database.executemany(
        _UPSERT.format(table),
        (
            (
                row.id.bytes,
                row.source_id,
                row.chunk,
                row.text,
                _as_json(row),
                row.digest,
                blob.tobytes(),
            )
            for row, blob in zip(rows, blobs, strict=True)
        ),
    )


def write_metadata(database: sqlite3.Connection, table: str, rows: Sequence[Row]) -> None:
    """Replace metadata and digest of rows."""
    database.executemany(
        f"UPDATE {table} SET metadata = ?, digest = ? WHERE id = ?",
        ((_as_json(row), row.digest, row.id.bytes) for row in rows),
    )


def remove_rows(database: sqlite3.Connection, table: str, ids: Sequence[UUID]) -> None:
    """Remove rows, if they are there."""
    database.executemany(f"DELETE FROM {table} WHERE id = ?", ((id_.bytes,) for id_ in ids))


def search_rows(
    database: sqlite3.Connection,
    name: Similarity,
    vector: NDArray[np.float32],
    k: int,
    where: Filter | None,
    table: str,
) -> list[Hit]:
    """Return the `k` rows nearest to float32[D] that pass a filter, best first; all are compared.

    Args:
        database: of a file sink.
        name: how vectors are compared.
        vector: the question's.
        k: how many rows.
        where: None: all rows pass.
        table: of the rows.
    """
    query = f"SELECT number, vector FROM {table}"
    if where is not None:
        accepts = matcher(where)
        database.create_function(_ACCEPTS, 1, lambda text: accepts(json.loads(text)))
        query += f" WHERE {_ACCEPTS}(metadata)"
    best: list[tuple[float, int]] = []
    cursor = database.execute(query)
    while part := cursor.fetchmany(_SCAN_ROWS):
        vectors = np.frombuffer(b"".join(blob for _, blob in part), "<f4")
        scores = similarity(name, vector, vectors.reshape(len(part), -1))[0]
        best += zip(scores.tolist(), (number for number, _ in part), strict=True)
        best = sorted(best, key=lambda item: -item[0])[:k]
    return [_read_hit(database, table, score, number) for score, number in best]


def _read_hit(database: sqlite3.Connection, table: str, score: float, number: int) -> Hit:
    query = f"SELECT id, source_id, chunk, text, metadata FROM {table} WHERE number = ?"
    found: tuple[Any, ...] = database.execute(query, (number,)).fetchone()
    id_, source_id, chunk, text, metadata = found
    return Hit(
        score=score,
        id=UUID(bytes=id_),
        source_id=source_id,
        chunk=chunk,
        text=text,
        metadata=json.loads(metadata),
    )


def _as_json(row: Row) -> str:
    return json.dumps(row.metadata, ensure_ascii=False)
