"""Rows to requests of Qdrant's gRPC interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from embedlib.indexing import BadRow, Row, SparseVector, Vectors, import_extra
from embedlib_qdrant.points import (
    CONTENT_KEY,
    METADATA_KEY,
    OWN_FIELDS,
    OWN_KEY,
    SPARSE_NAME,
)

BATCH = 256
"""Points per write request. Source: Qdrant's guide to bulk uploads, which names 64 to 256."""

MAX_BYTES = 4 << 20
"""Bytes of a request with a vector per token, at which it is sent; one point may have more."""

MAX_NUMBERS = 1 << 20
"""Numbers of a multi-vector, T x D, from which a server refuses it. The engines of `edge:` and
`qdrant+local:` have no such limit.
Source: MAX_MULTIVECTOR_FLATTENED_LEN in Qdrant's lib/common/common/src/validation.rs."""

_NO_ID = "0" * 36
_INT64 = range(-(1 << 63), 1 << 63)
"""Source: `integer_value` of Qdrant's json_with_int.proto is an int64."""


class PointEncoder:
    """Writes requests as bytes, with what is the same in all points copied.

    A vector's floats are in a request as they are in memory, and the client's objects of a point
    are made once and filled again: a third of the time of its own conversion.
    Source: protobuf's encoding: fields in the order of their numbers, packed floats, and parts of
    a message that are written one behind the other are read as one.
    """

    def __init__(self, dim: int, vector_name: str, *, is_named: bool = False) -> None:
        """Make the parts that are the same in all points.

        Args:
            dim: D of the vectors.
            vector_name: which vector of the points they are; empty: the one without a name.
            is_named: whether the points have another vector, so that each needs its name.
        """
        self._vector_name = vector_name
        self._grpc = import_extra("qdrant_client.grpc", "qdrant")
        conversion = import_extra("qdrant_client.conversions.conversion", "qdrant")
        self._to_payload = conversion.payload_to_grpc
        point = self._grpc.PointStruct(id=self._grpc.PointId(uuid=_NO_ID))
        vectors = point.vectors
        is_named = is_named or bool(vector_name)
        vector = vectors.vectors.vectors[vector_name] if is_named else vectors.vector
        vector.dense.data.extend([0.0] * dim)
        empty = point.SerializeToString()[: -4 * dim]
        self._before_id, self._after_id = empty.split(_NO_ID.encode())
        self._point = self._grpc.PointStruct()
        own = self._point.payload[OWN_KEY].struct_value.fields
        self._text = self._point.payload[CONTENT_KEY]
        self._source_id, self._chunk, self._digest = (own[key] for key in OWN_FIELDS)
        (tag,) = self._grpc.UpsertPoints(points=[self._grpc.PointStruct()]).SerializeToString()[:1]
        self._tag = bytes([tag])

    def requests(
        self,
        collection: str,
        rows: Sequence[Row],
        vectors: Vectors,
        bad_rows: list[BadRow],
        weights: Sequence[SparseVector] | None = None,
    ) -> Iterator[bytes]:
        """Yield a serialized UpsertPoints for every `BATCH` rows.

        Args:
            collection: its name.
            rows: to be stored.
            vectors: float32[N, D], or a list of N arrays float32[T, D].
            bad_rows: gets those that Qdrant cannot store, which are left out.
            weights: their sparse vectors; None: there are none.
        """
        head = self._grpc.UpsertPoints(collection_name=collection).SerializeToString()
        if not isinstance(vectors, np.ndarray):
            yield from self._multi_vector_requests(head, rows, vectors, bad_rows)
            return
        vectors = vectors.astype("<f4", copy=False)
        for start in range(0, len(rows), BATCH):
            part = slice(start, start + BATCH)
            parts = [head]
            sparse = [b""] * len(rows[part])
            if weights is not None:
                sparse = [self._write_weights(each) for each in weights[part]]
            for row, vector, more in zip(rows[part], vectors[part], sparse, strict=True):
                try:
                    payload = self._write_payload(row)
                except (ValueError, TypeError, OverflowError) as error:
                    bad_rows.append(describe_bad_row(row, error))
                    continue
                id_ = str(row.id).encode()
                point = (payload, self._before_id, id_, self._after_id, vector.tobytes(), more)
                parts += (self._tag, _varint(sum(map(len, point))), *point)
            if len(parts) > 1:
                yield b"".join(parts)

    def _multi_vector_requests(
        self, head: bytes, rows: Sequence[Row], vectors: Sequence[Vectors], bad_rows: list[BadRow]
    ) -> Iterator[bytes]:
        """Yield the requests of rows with a vector per token, as `requests` does."""
        parts, num_bytes = [head], 0
        for row, vector in zip(rows, vectors, strict=True):
            if vector.size >= MAX_NUMBERS:
                bad_rows.append(_describe_long_row(row, vector))
                continue
            try:
                payload = self._write_payload(row)
            except (ValueError, TypeError, OverflowError) as error:
                bad_rows.append(describe_bad_row(row, error))
                continue
            point = self._grpc.PointStruct(id=self._grpc.PointId(uuid=str(row.id)))
            held = point.vectors
            place = held.vectors.vectors[self._vector_name] if self._vector_name else held.vector
            for token in vector.tolist():
                place.multi_dense.vectors.add().data.extend(token)
            content = payload + point.SerializeToString()
            parts += (self._tag, _varint(len(content)), content)
            num_bytes += len(content)
            if num_bytes >= MAX_BYTES:
                yield b"".join(parts)
                parts, num_bytes = [head], 0
        if len(parts) > 1:
            yield b"".join(parts)

    def _write_weights(self, weights: SparseVector) -> bytes:
        """Return a PointStruct with a sparse vector alone."""
        point = self._grpc.PointStruct()
        sparse = point.vectors.vectors.vectors[SPARSE_NAME].sparse
        sparse.indices.extend(weights)
        sparse.values.extend(weights.values())
        written: bytes = point.SerializeToString()
        return written

    def _write_payload(self, row: Row) -> bytes:
        """Return a PointStruct with the payload of a row alone."""
        self._text.string_value = row.text
        self._source_id.string_value = row.source_id
        self._chunk.integer_value = row.chunk
        self._digest.string_value = row.digest.hex()
        metadata = self._grpc.PointStruct(payload=self._to_payload({METADATA_KEY: row.metadata}))
        own: bytes = self._point.SerializeToString()
        written: bytes = own + metadata.SerializeToString()
        return written


def _varint(number: int) -> bytes:
    """Return a whole number in protobuf's encoding, seven bits a byte."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def describe_bad_row(row: Row, error: Exception) -> BadRow:
    """Return what a row's metadata has that Qdrant cannot store."""
    big = find_big_number(row.metadata)
    if big is None:
        reason = f"has metadata that Qdrant cannot store: {' '.join(str(error).split())}"
    else:
        path, number = big
        reason = (
            f"has the number {number} in metadata {path!r}, and Qdrant stores whole numbers of "
            "64 bits; make it a string"
        )
    return _bad_row(row, reason)


def _describe_long_row(row: Row, vector: Vectors) -> BadRow:
    """Return that a row has more tokens than a server stores vectors of."""
    num_tokens, dim = vector.shape
    return _bad_row(
        row,
        f"has {num_tokens} vectors of {dim} numbers, {num_tokens * dim} in all, and a Qdrant "
        f"server stores less than {MAX_NUMBERS}, here up to {(MAX_NUMBERS - 1) // dim} vectors; "
        "make shorter chunks, or pass a lower max_seq_tokens",
    )


def _bad_row(row: Row, reason: str) -> BadRow:
    return BadRow(place=f"{row.source_id!r}, chunk {row.chunk}", reason=reason, id=row.source_id)


def find_big_number(value: Any, path: str = "") -> tuple[str, int] | None:
    """Return path and value of a whole number beyond 64 bits; None: there is none."""
    if isinstance(value, int):
        return None if value in _INT64 else (path, value)
    items: Iterator[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return None
    for key, item in items:
        if found := find_big_number(item, f"{path}.{key}" if path else str(key)):
            return found
    return None
