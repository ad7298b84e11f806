"""What a destination holds, read by its own library and not by ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from embedlib.indexing import open_sink
from embedlib.testing import FakeStore

Stored = dict[str, tuple[str, int, str, str, tuple[float, ...]]]
"""By row id: document, chunk, text, metadata as sorted JSON, and the vector at unit length."""


def read(url: str) -> Stored:
    """Return the rows of a file, a folder, a local database or a server's collection.

    Raises:
        AssertionError: a row is there twice.
    """
    scheme, _, location = url.partition(":")
    path = Path(location.partition("?")[0])
    readers = {"jsonl": _jsonl, "npy": _npy, "parquet": _parquet, "edge": _edge}
    if scheme.startswith("qdrant"):
        return collect(_qdrant(url))
    if scheme == "pglocal":
        return collect(_pglocal(path, location.rpartition("=")[2]))
    return collect(readers[scheme](path))


def collect(rows: Iterator[tuple[Any, ...]]) -> Stored:
    """Return rows of (id, document, chunk, text, metadata, vector) by their id."""
    stored: Stored = {}
    for row_id, source_id, chunk, text, metadata, vector in rows:
        assert str(row_id) not in stored, f"row {row_id} is there twice"
        # Engines of cosine similarity store vectors at unit length.
        numbers = np.asarray(vector, np.float64)
        numbers = numbers / max(float(np.linalg.norm(numbers)), 1e-12)
        fields = json.dumps(metadata, sort_keys=True)
        stored[str(row_id)] = (source_id, int(chunk), text, fields, tuple(numbers.tolist()))
    return stored


def misfound(url: str) -> str:
    """Return in words which rows a full-text search misses or invents; "" if none."""
    rows = read(url)
    with closing(open_sink(url)) as sink:
        for word in ("text", "17"):
            hits = sink.search_text(word, len(rows) + 1, None)  # type: ignore[attr-defined]
            found = {str(hit.id) for hit in hits}
            having = {id_ for id_, row in rows.items() if re.search(rf"\b{word}\b", row[2])}
            if found != having:
                return f"{word} finds {len(found)} rows, and {len(having)} have it"
    return ""


def read_fake(store: FakeStore) -> Stored:
    """Return the rows of a `FakeStore`."""
    return collect(
        (row.id, row.source_id, row.chunk, row.text, row.metadata, store.vectors[row.id])
        for row in store.rows.values()
    )


def difference(got: Stored, expected: Stored) -> str:
    """Return in words how rows differ from those of a run never killed; "" if they do not."""
    missing, surplus = expected.keys() - got.keys(), got.keys() - expected.keys()
    if missing or surplus:
        return f"{len(missing)} rows are missing and {len(surplus)} are too many"
    for row_id, row in expected.items():
        if got[row_id][:4] != row[:4]:
            return f"row {row_id} is {got[row_id][:4]!r:.200}, not {row[:4]!r:.200}"
        if not np.allclose(got[row_id][4], row[4], atol=1e-5):
            return f"row {row_id} has another vector"
    return ""


def _of_json(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["id"], row["source_id"], row["chunk"], row["text"], row["metadata"])


def _jsonl(path: Path) -> Iterator[tuple[Any, ...]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield (*_of_json(row), row["embedding"])


def _npy(path: Path) -> Iterator[tuple[Any, ...]]:
    lines = path.with_name(f"{path.name}.rows.jsonl").read_text(encoding="utf-8").splitlines()
    for line, vector in zip(lines, np.load(path), strict=True):
        yield (*_of_json(json.loads(line)), vector)


def _parquet(path: Path) -> Iterator[tuple[Any, ...]]:
    import pyarrow.parquet

    for row in pyarrow.parquet.read_table(path).to_pylist():
        yield (*_of_json({**row, "metadata": json.loads(row["metadata"])}), row["embedding"])


def _edge(path: Path) -> Iterator[tuple[Any, ...]]:
    import qdrant_edge

    shard = qdrant_edge.EdgeShard.load(str(path / "shard"))
    offset = None
    while True:
        points, offset = shard.scroll(
            qdrant_edge.ScrollRequest(
                offset=offset, limit=1000, with_payload=True, with_vector=True
            )
        )
        for point in points:
            yield of_point(point.id, point.payload or {}, point.vector)
        if offset is None:
            shard.close()
            return


def _qdrant(url: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `qdrant+local:PATH?collection=NAME` or `qdrant://HOST:PORT/NAME`."""
    from qdrant_client import QdrantClient

    parts = urlsplit(url)
    if parts.scheme == "qdrant+local":
        client = QdrantClient(path=parts.path)
        name = parts.query.partition("=")[2]
    else:
        client = QdrantClient(
            host=parts.hostname, grpc_port=parts.port, prefer_grpc=True, check_compatibility=False
        )
        name = parts.path.strip("/")
    offset = None
    while True:
        records, offset = client.scroll(name, limit=1000, offset=offset, with_vectors=True)
        for record in records:
            if "_embedlib" in (record.payload or {}):  # not the lease
                yield of_point(record.id, record.payload or {}, record.vector)
        if offset is None:
            client.close()
            return


def of_point(point_id: Any, payload: Mapping[str, Any], vector: Any) -> tuple[Any, ...]:
    """Return the row of a point; its key is an object, or in Qdrant Edge one line."""
    own = payload["_embedlib"]
    if isinstance(own, str):
        _, chunk, source_id = own.split(" ", 2)
    else:
        chunk, source_id = own["chunk"], own["source_id"]
    return (point_id, source_id, chunk, payload["page_content"], payload["metadata"], vector)


def _pglocal(path: Path, table: str) -> Iterator[tuple[Any, ...]]:
    from embedlib_pgvector.local_server import LocalServer

    server = LocalServer(path, "the campaign")
    try:
        yield from postgres_rows(server.start(), table)
    finally:
        server.stop()


def postgres_rows(dsn: str, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        for *fields, vector in connection.execute(
            "SELECT langchain_id, source_id, chunk, content, langchain_metadata, embedding::text "
            f"FROM {table}"
        ):
            yield (*fields, json.loads(vector))
