"""Loads in real processes, killed ten times at random instants; also one whose database is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import embedlib
from embedlib import Document
from embedlib.indexing.report import IndexProgress
from embedlib.testing import FakeEngine, fake_embedder
from tests.integrations.killing import (
    BATCH_ROWS,
    NUM_DOCUMENTS,
    Stored,
    kill,
    read_edge,
    read_jsonl,
    read_postgres,
    run,
    run_until_killed,
)
from tests.waiting import WAIT_SECONDS

NUM_KILLS = 10


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
        run_until_killed(url("killed"), log, last_text=dice.randrange(1, 250))
    for _ in range(3):
        kill(url("killed"), log, seconds=dice.uniform(0.5, 4))
    run(url("killed"), log)
    assert read("killed") == read("whole")
    assert len(read("whole")) == NUM_DOCUMENTS
    assert log.stat().st_size <= NUM_DOCUMENTS + NUM_KILLS * BATCH_ROWS


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
            psutil.wait_procs([postmaster], timeout=WAIT_SECONDS)
            is_down.set()

    def restart() -> None:
        assert is_down.wait(timeout=WAIT_SECONDS), "the load waits for a server that runs"
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
