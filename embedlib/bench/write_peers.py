"""Other programs that write to the same servers, for `embedlib bench-write`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from embedlib.errors import ConfigError
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.urls import parse_url
from embedlib.vectors.arrays import Vectors

LANGCHAIN = "langchain-postgres"
_QDRANT_CLIENT = "qdrant-client"
_PEER_TABLE = "langchain_peer_of_bench_write"
_PEER_COLLECTION = "qdrant_client_peer_of_bench_write"
_OPTIONS = ("table", "halfvec", "m", "ef_construction", "index")
"""Of the destination's URL, not of libpq."""


class LangChainPeer:
    """`PGVectorStore.add_embeddings` of langchain-postgres on the same server."""

    name = f"{LANGCHAIN}, add_embeddings"
    max_rows = 2_000
    """That are measured: it inserts row by row, at a rate that does not depend on their number."""

    def __init__(self, url: str, dim: int) -> None:
        parsed = parse_url(url)
        if parsed.scheme not in ("postgresql", "postgres"):
            raise ConfigError(
                f"--vs-langchain needs a postgresql:// destination, not {parsed.scheme}:; "
                "leave it out"
            )
        try:
            from langchain_core.embeddings import DeterministicFakeEmbedding
            from langchain_postgres import PGEngine, PGVectorStore
        except ImportError as error:
            raise ConfigError(f"{error}; pip install {LANGCHAIN}") from error
        given = [f"{key}={value}" for key, value in parsed.options.items() if key not in _OPTIONS]
        server = f"postgresql+psycopg:{parsed.location}?{'&'.join(given)}"
        self._engine = PGEngine.from_connection_string(server)
        self._engine.init_vectorstore_table(_PEER_TABLE, dim, overwrite_existing=True)
        self._store = PGVectorStore.create_sync(
            self._engine, DeterministicFakeEmbedding(size=dim), _PEER_TABLE
        )

    def prepare(self) -> None:
        """Do nothing: the table was made in the beginning."""

    def write(self, rows: Sequence[Row], vectors: Vectors) -> float:
        """Return rows per second."""
        lists = vectors.tolist()
        started = time.perf_counter()
        self._store.add_embeddings(
            texts=[row.text for row in rows],
            embeddings=lists,
            metadatas=[dict(row.metadata) for row in rows],
            ids=None,
        )
        return len(rows) / (time.perf_counter() - started)

    def close(self) -> None:
        """Remove the table."""
        self._engine.drop_table(_PEER_TABLE)


class QdrantClientPeer:
    """`QdrantClient.upload_collection` over gRPC on the same server, with the same payload."""

    max_rows = None
    """As many as embedlib writes."""

    def __init__(self, url: str, dim: int, *, has_defaults: bool) -> None:
        """Connect.

        Args:
            url: the destination of embedlib; the peer makes a collection of its own there.
            dim: D of the vectors.
            has_defaults: whether collection and batches are as the client makes them by itself;
                if not, no graph is built meanwhile and a request has as many points as ours.
        """
        parsed = parse_url(url)
        if parsed.scheme not in ("qdrant", "qdrant+https"):
            raise ConfigError(
                f"--vs-qdrant-client needs a qdrant:// destination, not {parsed.scheme}:; "
                "leave it out"
            )
        try:
            from qdrant_client import QdrantClient, models
        except ImportError as error:
            raise ConfigError(f"{error}; pip install {_QDRANT_CLIENT}") from error
        parts = urlsplit(parsed.location)
        self._models, self._dim, self._has_defaults = models, dim, has_defaults
        self._batch: dict[str, Any] = {} if has_defaults else {"batch_size": 256}
        self._client = QdrantClient(
            host=parts.hostname,
            grpc_port=parts.port or 6334,
            prefer_grpc=True,
            https=parsed.scheme == "qdrant+https",
            api_key=os.environ.get("QDRANT_API_KEY") or None,
            timeout=60,
            check_compatibility=False,
        )

    @property
    def name(self) -> str:
        """What a row of the table calls it."""
        how = "its defaults" if self._has_defaults else "256 points, no graph meanwhile"
        return f"{_QDRANT_CLIENT}, upload_collection, {how}"

    def prepare(self) -> None:
        """Make a new collection."""
        models, client = self._models, self._client
        self._remove()
        client.create_collection(
            _PEER_COLLECTION,
            vectors_config=models.VectorParams(size=self._dim, distance=models.Distance.COSINE),
            hnsw_config=None if self._has_defaults else models.HnswConfigDiff(m=0),
        )

    def write(self, rows: Sequence[Row], vectors: Vectors) -> float:
        """Return rows per second, until all can be read."""
        started = time.perf_counter()
        self._upload(rows, vectors, wait=False)
        self._upload(rows[-1:], vectors[-1:], wait=True)  # applied after all others
        seconds = time.perf_counter() - started
        self._remove()
        return len(rows) / seconds

    def close(self) -> None:
        """Remove the collection, if it was interrupted, and disconnect."""
        self._remove()
        self._client.close()

    def _remove(self) -> None:
        if self._client.collection_exists(_PEER_COLLECTION):
            self._client.delete_collection(_PEER_COLLECTION)

    def _upload(self, rows: Sequence[Row], vectors: Vectors, *, wait: bool) -> None:
        self._client.upload_collection(
            _PEER_COLLECTION,
            vectors=vectors,
            payload=(_payload_of(row) for row in rows),
            ids=[str(row.id) for row in rows],
            wait=wait,
            **self._batch,
        )


def _payload_of(row: Row) -> dict[str, Any]:
    """Return what embedlib stores in Qdrant of a row; no integration is imported here."""
    own = {"source_id": row.source_id, "chunk": row.chunk, "digest": row.digest.hex()}
    return {"page_content": row.text, "metadata": row.metadata, "_embedlib": own}
