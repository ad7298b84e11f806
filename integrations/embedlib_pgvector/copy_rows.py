"""Encodes rows for a binary COPY without a Python object per number.

Source of the stream's layout: https://www.postgresql.org/docs/current/sql-copy.html ("Binary
Format"). Source of a vector's: `vector_recv` in pgvector's src/vector.c and `halfvec_recv` in
src/halfvec.c.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedlib.errors import SinkError
from embedlib.indexing import Row, SparseVector, Vectors

COLUMNS = (
    *("langchain_id", "chunk", "embedding"),
    *("content", "langchain_metadata", "source_id", "embedlib_digest"),
)
"""In the order of the stream: fixed-size ones first, so that numpy writes them all at once."""

SPARSE_COLUMN = "embedlib_sparse"
"""Behind the others, where there are sparse vectors."""
MAX_WEIGHTS = 16_000
"""Source: SPARSEVEC_MAX_NNZ in pgvector's src/sparsevec.h."""

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
# Kept, because json.dumps with these options makes a new encoder at every call.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
JSONB_VERSION = b"\x01"
"""Source: `jsonb_recv` in Postgres' src/backend/utils/adt/jsonb.c."""


def encode_rows(
    rows: Sequence[Row],
    vectors: Vectors,
    *,
    is_halfvec: bool,
    weights: Sequence[SparseVector] | None = None,
    sparse_dim: int = 0,
) -> bytes:
    """Return the stream for COPY … (COLUMNS) FROM STDIN (FORMAT binary).

    Args:
        rows: id, text and metadata of each vector.
        vectors: float32[N, D], finite.
        is_halfvec: write 16-bit floats.
        weights: their sparse vectors; None: there are none.
        sparse_dim: of the sparse vectors.

    Raises:
        SinkError: a row cannot be encoded; the message names it.
    """
    num_fields = len(COLUMNS) + (weights is not None)
    fixed = _fixed_part(rows, vectors, is_halfvec, num_fields)
    width = fixed.dtype.itemsize
    block = memoryview(fixed.tobytes())
    length = struct.Struct(">i").pack
    pieces: list[bytes | memoryview] = [SIGNATURE]
    for number, row in enumerate(rows):
        try:
            text, source_id = row.text.encode(), row.source_id.encode()
            metadata = JSONB_VERSION + json_of(row.metadata).encode()
        except (TypeError, ValueError) as error:
            raise SinkError(
                f"chunk {row.chunk} of {row.source_id!r} cannot be written: {error}; "
                "nothing of its batch was"
            ) from error
        pieces += (block[number * width : (number + 1) * width], length(len(text)), text)
        pieces += (length(len(metadata)), metadata, length(len(source_id)), source_id)
        pieces += (length(len(row.digest)), row.digest)
        if weights is not None:
            sparse = _sparse(weights[number], sparse_dim, row)
            pieces += (length(len(sparse)), sparse)
    pieces.append(TRAILER)
    return b"".join(pieces)


def json_of(metadata: Mapping[str, Any]) -> str:
    """Return metadata for a jsonb column.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
        TypeError: a value that JSON cannot represent.
    """
    return _JSON.encode(dict(metadata))


def _sparse(weights: SparseVector, dim: int, row: Row) -> bytes:
    """Return a sparse vector: three numbers, ids in ascending order, and their weights.

    Source: `sparsevec_recv` in pgvector's src/sparsevec.c.
    """
    if len(weights) > MAX_WEIGHTS:
        raise SinkError(
            f"the sparse vector of chunk {row.chunk} of {row.source_id!r} has {len(weights)} "
            f"weights, and pgvector stores up to {MAX_WEIGHTS}; load the model with "
            f"max_active_dims={MAX_WEIGHTS} or less; nothing of its batch was written"
        )
    ids = sorted(weights)
    numbers = np.array([weights[id_] for id_ in ids], ">f4")
    return (
        struct.pack(">iii", dim, len(ids), 0) + np.array(ids, ">i4").tobytes() + numbers.tobytes()
    )


def _fixed_part(rows: Sequence[Row], vectors: Vectors, is_halfvec: bool, num_fields: int) -> Any:
    """Return a record per row: number of fields, then id, chunk and vector after their lengths."""
    dim = vectors.shape[1]
    number = np.dtype(">f2" if is_halfvec else ">f4")
    layout = np.dtype(
        [
            *(("num_fields", ">i2"), ("id_length", ">i4"), ("id", "V16")),
            *(("chunk_length", ">i4"), ("chunk", ">i4")),
            *(("vector_length", ">i4"), ("dim", ">i2"), ("unused", ">i2")),
            ("vector", number, (dim,)),
        ]
    )
    records = np.zeros(len(rows), layout)
    records["num_fields"] = num_fields
    records["id_length"] = 16
    records["id"] = np.frombuffer(b"".join(row.id.bytes for row in rows), "V16")
    records["chunk_length"] = 4
    records["chunk"] = [row.chunk for row in rows]
    records["vector_length"] = 4 + dim * number.itemsize
    records["dim"] = dim
    with np.errstate(over="ignore"):  # checked below, to name the row
        records["vector"] = vectors
    if is_halfvec and not np.isfinite(records["vector"]).all():
        row = rows[int(np.flatnonzero(~np.isfinite(records["vector"]).all(axis=1))[0])]
        raise SinkError(
            f"the vector of chunk {row.chunk} of {row.source_id!r} holds a number beyond "
            f"{np.finfo(np.float16).max:.0f}, more than halfvec can; use halfvec=false; "
            "nothing of its batch was written"
        )
    return records
