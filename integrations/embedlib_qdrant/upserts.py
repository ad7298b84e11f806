"""Rows to requests of Qdrant's gRPC interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from embedlib.indexing import BadRow, Row, Vectors, import_extra
from embedlib_qdrant.points import row_payload

BATCH = 256
"""Points per write request. Source: Qdrant's guide to bulk uploads, which names 64 to 256."""

_NO_ID = "0" * 36
_INT64 = range(-(1 << 63), 1 << 63)
"""Source: `integer_value` of Qdrant's json_with_int.proto is an int64."""


class PointEncoder:
    """Makes points that contain the bytes of their vectors unconverted.

    A point of an id and a vector is the same bytes for all rows, except for the characters of the
    id and the floats at the end. Half the time of the client's own conversion.
    Source: protobuf's encoding of fields in the order of their numbers, and of packed floats.
    """

    def __init__(self, dim: int) -> None:
        self._grpc = import_extra("qdrant_client.grpc", "qdrant")
        conversion = import_extra("qdrant_client.conversions.conversion", "qdrant")
        self._to_payload = conversion.payload_to_grpc
        point = self._grpc.PointStruct(id=self._grpc.PointId(uuid=_NO_ID))
        point.vectors.vector.dense.data.extend([0.0] * dim)
        empty = point.SerializeToString()[: -4 * dim]
        self._before_id, self._after_id = empty.split(_NO_ID.encode())

    def requests(
        self, collection: str, rows: Sequence[Row], vectors: Vectors, bad_rows: list[BadRow]
    ) -> Iterator[Any]:
        """Yield an UpsertPoints for every `BATCH` rows.

        Args:
            collection: its name.
            rows: to be stored.
            vectors: float32[N, D].
            bad_rows: gets those that Qdrant cannot store, which are left out.
        """
        vectors = vectors.astype("<f4", copy=False)
        for start in range(0, len(rows), BATCH):
            request = self._grpc.UpsertPoints(collection_name=collection)
            part, num_points = slice(start, start + BATCH), 0
            for row, vector in zip(rows[part], vectors[part], strict=True):
                try:
                    point = request.points.add(payload=self._to_payload(row_payload(row)))
                except (ValueError, TypeError, OverflowError) as error:
                    del request.points[num_points:]
                    bad_rows.append(describe_bad_row(row, error))
                    continue
                num_points += 1
                head = (self._before_id, str(row.id).encode(), self._after_id)
                point.MergeFromString(b"".join((*head, vector.tobytes())))
            if num_points:
                yield request


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
