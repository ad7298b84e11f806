"""The payload of a point, and the mark of a collection that embedlib created.

A point has the row's id, one unnamed vector, and the payload

    {"page_content": text, "metadata": {...}, "_embedlib": {"source_id", "chunk", "digest"}}

In Qdrant Edge `_embedlib` is one string, "DIGEST CHUNK SOURCE_ID": its Python binding needs some 10
microseconds per object and string of a payload, which was a third of the loading time.

Source: `CONTENT_KEY`, `METADATA_KEY` and `VECTOR_NAME` of langchain_qdrant.QdrantVectorStore, which
can therefore open the collection; it ignores other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from embedlib.config import LateSimilarity, Similarity
from embedlib.errors import SinkError
from embedlib.indexing import Description, Hit, Row, RowKey, SparseModel, Target
from embedlib_qdrant.collection_options import CollectionOptions

CONTENT_KEY = "page_content"
METADATA_KEY = "metadata"
OWN_KEY = "_embedlib"
OWN_FIELDS = ("source_id", "chunk", "digest")
SOURCE_ID_KEY = f"{OWN_KEY}.source_id"
"""Indexed; points without it were added by other programs."""

DISTANCES: Mapping[Similarity, str] = {
    "cosine": "Cosine",
    "dot": "Dot",
    "euclidean": "Euclid",
    "manhattan": "Manhattan",
}
"""Qdrant's names."""

SPARSE_NAME = "sparse"
"""Name of the sparse vector of a point."""

FORMAT = 1
"""Version of payload and mark; any other is refused."""


@dataclass(frozen=True, kw_only=True)
class Mark(Description):
    """What identifies a load; stored with the collection, or in a file beside the points.

    Attributes:
        options: how the collection was created.
        multi_vector: how points with a vector per token are compared; None: they have one.
    """

    options: CollectionOptions
    multi_vector: LateSimilarity | None = None

    @classmethod
    def of(cls, target: Target, options: CollectionOptions) -> Mark:
        """Return the mark of a new load."""
        return cls(options=options, multi_vector=target.multi_vector, **target.described())

    @classmethod
    def from_json(cls, data: Any, name: str) -> Mark:
        """Read a mark.

        Raises:
            SinkError: it has another format, or is not a mark.
        """
        try:
            if data["format"] != FORMAT:
                raise SinkError(
                    f"{name} has format {data['format']!r} and this embedlib reads {FORMAT}; use "
                    "the version that wrote it, or choose another destination"
                )
            return cls(
                dim=int(data["dim"]),
                similarity=data["similarity"],
                fingerprint=data["fingerprint"],
                model=data["model"],
                options=CollectionOptions(**data["options"]),
                precision=data.get("precision"),
                multi_vector=data.get("multi_vector"),
                sparse=SparseModel(**data["sparse"]) if data.get("sparse") else None,
                full_text=data.get("full_text"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SinkError(
                f"{name}: the description that embedlib stored with it cannot be read ({error!r}); "
                "remove the destination yourself, or choose another one"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the mark as JSON values."""
        return {"format": FORMAT, **asdict(self)}


def row_payload(row: Row) -> dict[str, Any]:
    """Return the whole payload of a row."""
    return {CONTENT_KEY: row.text, **metadata_payload(row)}


def metadata_payload(row: Row) -> dict[str, Any]:
    """Return the part of the payload that changes with the metadata."""
    own = dict(zip(OWN_FIELDS, (row.source_id, row.chunk, row.digest.hex()), strict=True))
    return {METADATA_KEY: row.metadata, OWN_KEY: own}


def edge_payload(row: Row) -> dict[str, Any]:
    """Return the whole payload of a row in Qdrant Edge."""
    return {CONTENT_KEY: row.text, **edge_metadata_payload(row)}


def edge_metadata_payload(row: Row) -> dict[str, Any]:
    """Return the part of it that changes with the metadata."""
    return {METADATA_KEY: row.metadata, OWN_KEY: f"{row.digest.hex()} {row.chunk} {row.source_id}"}


def _read_own(payload: Mapping[str, Any] | None) -> tuple[str, int, str] | None:
    """Return source id, chunk and digest; None: another program added the point."""
    own = (payload or {}).get(OWN_KEY)
    if isinstance(own, str):
        digest, chunk, source_id = own.split(" ", 2)
        return source_id, int(chunk), digest
    return (own["source_id"], own["chunk"], own["digest"]) if own else None


def read_digest(payload: Mapping[str, Any] | None) -> bytes | None:
    """Return the digest of a point; None: another program added it."""
    own = _read_own(payload)
    return None if own is None else bytes.fromhex(own[2])


def read_key(point_id: UUID | str | int, payload: Mapping[str, Any] | None) -> RowKey | None:
    """Return the key of the row that a point is; None: another program added it."""
    own = _read_own(payload)
    return None if own is None else RowKey(id=UUID(str(point_id)), source_id=own[0], chunk=own[1])


def read_hit(
    point_id: UUID | str | int, score: float, payload: Mapping[str, Any], similarity: Similarity
) -> Hit:
    """Convert a search result; for two similarities Qdrant's score is a distance.

    Of points with a vector per token it is the sum over the query's vectors: MaxSim.
    """
    key = read_key(point_id, payload)
    assert key is not None, "points of other programs are filtered out"
    return Hit(
        score=-score if similarity in ("euclidean", "manhattan") else score,
        id=key.id,
        source_id=key.source_id,
        chunk=key.chunk,
        text=payload[CONTENT_KEY],
        metadata=payload.get(METADATA_KEY) or {},
    )
