"""Rows to requests of Qdrant's gRPC interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedlib.indexing import BadRow, Row, SparseVector, Vectors, import_extra
from embedlib_qdrant.metadata_limits import SERVER_LIMITS
from embedlib_qdrant.points import (
    CONTENT_KEY,
    METADATA_KEY,
    OWN_FIELDS,
    OWN_KEY,
    SPARSE_NAME,
)

BATCH = 256
"""Most points of a request. Source: Qdrant's guide to bulk uploads, which names 64 to 256."""

MAX_BYTES = 4 << 20
"""Bytes of a request at which it is sent; one point may have more."""

MAX_NUMBERS = 1 << 20
"""Numbers of a multi-vector, T x D, from which a server refuses it. The engines of `edge:` and
`qdrant+local:` have no such limit.
Source: MAX_MULTIVECTOR_FLATTENED_LEN in Qdrant's lib/common/common/src/validation.rs."""

_NO_ID = "0" * 36


class PointEncoder:
    """Writes requests as bytes, with what is the same in all points copied.

    A vector's floats are in a request as they are in memory, and the client's objects of a point
    are made once a call and filled again: a third of the time of its own conversion. They keep the
    memory of all that they were ever filled with.
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
        (tag,) = self._grpc.UpsertPoints(points=[self._grpc.PointStruct()]).SerializeToString()[:1]
        self._tag = bytes([tag])

    def _make_payload(self) -> None:
        """Make the objects that are filled with what is embedlib's own of a payload."""
        self._point = self._grpc.PointStruct()
        own = self._point.payload[OWN_KEY].struct_value.fields
        self._text = self._point.payload[CONTENT_KEY]
        self._source_id, self._chunk, self._digest = (own[key] for key in OWN_FIELDS)

    def requests(
        self,
        collection: str,
        rows: Sequence[Row],
        vectors: Vectors,
        bad_rows: list[BadRow],
        weights: Sequence[SparseVector] | None = None,
    ) -> Iterator[bytes]:
        """Yield a serialized UpsertPoints for every `BATCH` rows, or fewer that are long.

        Args:
            collection: its name.
            rows: to be stored.
            vectors: float32[N, D], or a list of N arrays float32[T, D].
            bad_rows: gets those that Qdrant cannot store, which are left out.
            weights: their sparse vectors; None: there are none.
        """
        self._make_payload()
        head = self._grpc.UpsertPoints(collection_name=collection).SerializeToString()
        points = (
            self._points(rows, vectors, bad_rows, weights)
            if isinstance(vectors, np.ndarray)
            else self._multi_vector_points(rows, vectors, bad_rows)
        )
        parts, num_points, num_bytes = [head], 0, 0
        for point in points:
            size = sum(map(len, point))
            parts += (self._tag, _varint(size), *point)
            num_points, num_bytes = num_points + 1, num_bytes + size
            if num_points == BATCH or num_bytes >= MAX_BYTES:
                yield b"".join(parts)
                parts, num_points, num_bytes = [head], 0, 0
        if num_points:
            yield b"".join(parts)

    def _points(
        self,
        rows: Sequence[Row],
        vectors: NDArray[np.float32],
        bad_rows: list[BadRow],
        weights: Sequence[SparseVector] | None,
    ) -> Iterator[tuple[bytes, ...]]:
        """Yield each row's PointStruct in parts."""
        vectors = vectors.astype("<f4", copy=False)
        for number, (row, vector) in enumerate(zip(rows, vectors, strict=True)):
            payload = self._write_payload(row, bad_rows)
            if payload is not None:
                more = b"" if weights is None else self._write_weights(weights[number])
                id_ = str(row.id).encode()
                yield payload, self._before_id, id_, self._after_id, vector.tobytes(), more

    def _multi_vector_points(
        self, rows: Sequence[Row], vectors: Sequence[Vectors], bad_rows: list[BadRow]
    ) -> Iterator[tuple[bytes, ...]]:
        """Yield those of rows with a vector per token."""
        for row, vector in zip(rows, vectors, strict=True):
            if vector.size >= MAX_NUMBERS:
                bad_rows.append(_describe_long_row(row, vector))
                continue
            payload = self._write_payload(row, bad_rows)
            if payload is None:
                continue
            point = self._grpc.PointStruct(id=self._grpc.PointId(uuid=str(row.id)))
            held = point.vectors
            place = held.vectors.vectors[self._vector_name] if self._vector_name else held.vector
            for token in vector.tolist():
                place.multi_dense.vectors.add().data.extend(token)
            yield payload, point.SerializeToString()

    def _write_weights(self, weights: SparseVector) -> bytes:
        """Return a PointStruct with a sparse vector alone."""
        point = self._grpc.PointStruct()
        sparse = point.vectors.vectors.vectors[SPARSE_NAME].sparse
        sparse.indices.extend(weights)
        sparse.values.extend(weights.values())
        written: bytes = point.SerializeToString()
        return written

    def _write_payload(self, row: Row, bad_rows: list[BadRow]) -> bytes | None:
        """Return a PointStruct with the payload of a row alone; None: it is a bad row now."""
        if not SERVER_LIMITS.takes(row, bad_rows):
            return None
        self._text.string_value = row.text
        self._source_id.string_value = row.source_id
        self._chunk.integer_value = row.chunk
        self._digest.string_value = row.digest.hex()
        try:
            payload = self._to_payload({METADATA_KEY: row.metadata})
        except (ValueError, TypeError) as error:
            reason = f"has metadata that Qdrant cannot store: {' '.join(str(error).split())}"
            bad_rows.append(row.bad_row(reason))
            return None
        metadata = self._grpc.PointStruct(payload=payload)
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


def _describe_long_row(row: Row, vector: Vectors) -> BadRow:
    """Return that a row has more tokens than a server stores vectors of."""
    num_tokens, dim = vector.shape
    return row.bad_row(
        f"has {num_tokens} vectors of {dim} numbers, {num_tokens * dim} in all, and a Qdrant "
        f"server stores less than {MAX_NUMBERS}, here up to {(MAX_NUMBERS - 1) // dim} vectors; "
        "make shorter chunks, or pass a lower max_seq_tokens",
    )
