"""Kills drawn over a load into a real Qdrant server: of the load, of the server, of both.

Each trial loads two collections, one at one go and one with kills. In the end their rows must be
equal.
"""

from __future__ import annotations

import multiprocessing
import random
import runpy
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integrations.qdrant.real_server import NONE, QdrantServer, find_binary

_CHILD = Path(__file__).parents[1] / "integrations" / "kill_child.py"
_NUM_DOCUMENTS = 6000
_BATCH_ROWS = 200
_LEAST_KILLS = 5  # also where the load without kills has used up the time
_MAX_LIFE_S = 1.0
_MAX_ABSENCE_S = 3.0
_END_S = 300.0


@dataclass
class Findings:
    """What a run did, and what was wrong."""

    skipped: str | None = None
    num_load_kills: int = 0
    num_server_kills: int = 0
    num_trials: int = 0
    failures: list[str] = field(default_factory=list)


def run(seed: int, budget_s: float) -> Findings:
    """Kill loads and servers until the time is over, then compare what is stored.

    Args:
        seed: of every draw.
        budget_s: after this no new trial is begun, and a running one only loads to its end.
    """
    findings = Findings()
    binary = find_binary()
    if binary is None:
        findings.skipped = NONE
        return findings
    end = time.monotonic() + budget_s
    while time.monotonic() < end:
        dice = random.Random(f"{seed} {findings.num_trials}")
        findings.num_trials += 1
        with tempfile.TemporaryDirectory(prefix="embedlib-qdrant-kills-") as folder:
            server = QdrantServer(binary, Path(folder) / "server").start()
            try:
                _try_once(server, Path(folder), dice, end, findings)
            finally:
                server.kill()
    return findings


def _try_once(
    server: QdrantServer, folder: Path, dice: random.Random, end: float, findings: Findings
) -> None:
    place = f"trial {findings.num_trials}"
    is_sparse = dice.random() < 0.5
    whole = _start(server, "whole", folder / "whole.log", is_sparse)
    whole.join(_END_S)
    if whole.exitcode != 0:
        findings.failures.append(f"{place}: a load without kills ended with {whole.exitcode}")
        return
    for number in range(dice.randrange(_LEAST_KILLS, 15)):
        if number >= _LEAST_KILLS and time.monotonic() > end:
            break
        load = _start(server, "killed", folder / "killed.log", is_sparse)
        load.join(dice.uniform(0.0, _MAX_LIFE_S))
        if dice.random() < 0.4:
            server.kill()
            findings.num_server_kills += 1
            load.join(dice.uniform(0.0, _MAX_ABSENCE_S))
            server.start()
            load.join(dice.uniform(0.0, _MAX_LIFE_S))
        findings.num_load_kills += load.exitcode is None
        load.kill()
        load.join()
    load = _start(server, "killed", folder / "killed.log", is_sparse)
    load.join(_END_S)
    if load.exitcode != 0:
        findings.failures.append(f"{place}: the last load ended with {load.exitcode}")
        return
    expected, found = _read(server, "whole"), _read(server, "killed")
    if len(expected) != _NUM_DOCUMENTS or expected != found:
        differing = sum(expected.get(key) != found.get(key) for key in {*expected, *found})
        findings.failures.append(
            f"{place}: {len(expected)} rows without kills, {len(found)} with; {differing} differ"
        )


def _start(
    server: QdrantServer, collection: str, log: Path, is_sparse: bool
) -> multiprocessing.process.BaseProcess:
    """Start a load, forked from a process that has imported what it needs."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(
        ["embedlib.testing", "embedlib.indexing.pipeline", "embedlib_qdrant.server"]
    )
    job = {
        "url": f"{server.url}/{collection}",
        "num_documents": _NUM_DOCUMENTS,
        "batch_rows": _BATCH_ROWS,
        "log": str(log),
        "is_sparse": is_sparse,
    }
    process = forking.Process(target=runpy.run_path, args=(str(_CHILD), {"job": job}), daemon=True)
    process.start()
    return process


def _read(server: QdrantServer, collection: str) -> dict[str, Any]:
    """Every point of a collection: payload and vector by id."""
    from qdrant_client import QdrantClient

    client = QdrantClient(
        host="127.0.0.1", grpc_port=server.port, prefer_grpc=True, check_compatibility=False
    )
    points: dict[str, Any] = {}
    offset = None
    while True:
        records, offset = client.scroll(
            collection, limit=1000, offset=offset, with_payload=True, with_vectors=True
        )
        points |= {str(record.id): (record.payload, record.vector) for record in records}
        if offset is None:
            client.close()
            return points
