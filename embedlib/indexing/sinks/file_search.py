"""Searches in the rows of a file sink: all of them are compared."""

from __future__ import annotations

import json
import sqlite3
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Similarity
from embedlib.indexing.filters.expression import Filter, matcher
from embedlib.indexing.sinks.protocol import Hit
from embedlib.vectors.similarity import similarity

_SCAN_ROWS = 4096
"""Vectors that a search compares at once."""
_ACCEPTS = "embedlib_accepts"
"""The filter, as a function of SQL: vectors that it leaves out are not read."""


def search_rows(
    database: sqlite3.Connection,
    name: Similarity,
    vector: NDArray[np.float32],
    k: int,
    where: Filter | None,
    table: str,
) -> list[Hit]:
    """Return the `k` rows nearest to float32[D] that pass a filter, best first.

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
