"""Loads on a cluster, killed at random instants and run again: `python -m tests.ray.kills`.

Each load begins empty and is hit by some kills, of a worker, a node or the driver; the driver is
started again when it was killed. In the end the destination must be that of one process.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import embedlib
from embedlib.indexing import open_sink
from embedlib.testing import fake_embedder
from tests.ray.fakes import documents, num_embedded, worker_pids

NUM_DOCUMENTS = 20_000
BATCH_ROWS = 1024
NUM_WORKERS = 2
STORE_BYTES = 200 << 20
_WAIT_SECONDS = 180.0
_LOST = {"worker": 1, "node": NUM_WORKERS, "driver": NUM_WORKERS}
"""Workers that lose what they have in flight. Both workers may be on the node."""

Row = tuple[str, str, str, bytes]


@dataclass
class Killer:
    """One load, and what is done to it."""

    cluster: Any
    url: str
    folder: Path
    dice: random.Random
    num_documents: int = NUM_DOCUMENTS
    child: Any = None

    @property
    def log(self) -> Path:
        return self.folder / "embedded.log"

    def start(self) -> None:
        """Start the driver, and return when its first worker is there."""
        program = [sys.executable, "-m", "tests.ray.kill_child"]
        self.child = subprocess.Popen(
            [*program, self.url, str(self.num_documents), str(self.log)],
            stdout=subprocess.PIPE,
            stderr=(self.folder / "child.err").open("a"),
            text=True,
        )
        assert self.child.stdout.readline() == "open\n", (self.folder / "child.err").read_text()

    def run(self, kills: list[str]) -> None:
        """Run the load to its end through these kills, at random instants of its work."""
        self.start()
        for kill in kills:
            self.wait_for(self.dice.randrange(1, self.num_documents * 2 // (len(kills) + 1)))
            if self.child.poll() is None:
                getattr(self, f"kill_{kill}")()
        while self.child.wait(_WAIT_SECONDS) != 0:
            error = (self.folder / "child.err").read_text()
            assert self.child.returncode == -9, error
            self.start()

    def wait_for(self, num_more: int) -> None:
        """Wait until so many more texts were embedded, or the load is over."""
        wanted = num_embedded(self.log) + num_more
        give_up = time.monotonic() + _WAIT_SECONDS
        while num_embedded(self.log) < wanted and self.child.poll() is None:
            assert time.monotonic() < give_up, (self.folder / "child.err").read_text()
            time.sleep(0.002)

    def kill_worker(self) -> None:
        pids = worker_pids(self.log)
        with suppress(ProcessLookupError):
            os.kill(self.dice.choice(pids), 9)

    def kill_node(self) -> None:
        self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)
        self.cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)

    def kill_driver(self) -> None:
        self.child.kill()


def read_rows(url: str) -> list[Row]:
    """Every row of a destination: ids, text and the vector's bytes."""
    if url.startswith("jsonl:"):
        return _read_jsonl(Path(url.removeprefix("jsonl:")))
    sink: Any = open_sink(url)
    try:
        keys = sorted(str(key.id) for key in _scan(sink))
        hits = sink.search(np.ones(6, np.float32), len(keys))
        by_id = {str(hit.id): hit for hit in hits}
        assert sorted(by_id) == keys, "a row is not found, or there twice"
        # Vectors are compared by their similarity to one that no row has.
        return [
            (id_, by_id[id_].source_id, by_id[id_].text, np.float32(by_id[id_].score).tobytes())
            for id_ in keys
        ]
    finally:
        sink.close()


def _scan(sink: Any) -> Any:
    with fake_embedder() as embedder:
        state = sink.inspect()
        assert state is not None
        assert state.fingerprint == embedder.fingerprint
    from embedlib.indexing import Target

    target = Target(
        dim=state.dim, similarity=state.similarity, fingerprint=state.fingerprint, model=state.model
    )
    sink.begin(target, lambda _: None)
    return list(sink.scan())


def _read_jsonl(path: Path) -> list[Row]:
    import json

    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        vector = np.array(row["embedding"], np.float32).tobytes()
        rows.append((row["id"], row["source_id"], row["text"], vector))
    assert len({row[0] for row in rows}) == len(rows), "a row is there twice"
    return sorted(rows)


def check(killer: Killer, kills: list[str], expected: list[Row]) -> int:
    """Compare with a load of one process; return how many texts were embedded again."""
    assert read_rows(killer.url) == expected
    num_again = num_embedded(killer.log) - killer.num_documents
    allowed = sum(_LOST[kill] for kill in kills) * BATCH_ROWS
    assert 0 <= num_again <= allowed, f"{num_again} texts were embedded again, not {allowed}"
    return num_again


def load_alone(url: str, num_documents: int = NUM_DOCUMENTS) -> list[Row]:
    """Load a destination in this process, and return its rows."""
    with fake_embedder() as embedder:
        embedlib.index(documents(num_documents), url, embedder=embedder, chunk=False)
    return read_rows(url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    os.environ["RAY_ADDRESS"] = cluster.address
    dice = random.Random(given.seed)
    expected: dict[str, list[Row]] = {}
    for number in range(given.loads):
        with tempfile.TemporaryDirectory(prefix="embedlib-ray-", dir="/tmp") as name:
            folder = Path(name)
            folder.chmod(0o755)
            kind = ("jsonl", "edge", "pglocal")[number % 3]
            if kind not in expected:
                expected[kind] = load_alone(f"{kind}:{folder}/alone")
            kills = [dice.choice(("worker", "node", "driver")) for _ in range(dice.randint(1, 3))]
            killer = Killer(cluster, f"{kind}:{folder}/shared", folder, dice)
            started = time.monotonic()
            killer.run(kills)
            num_again = check(killer, kills, expected[kind])
            seconds = time.monotonic() - started
            print(f"{number}: {kind}, {', '.join(kills)}: {num_again} again, {seconds:.0f} s")
    cluster.shutdown()


if __name__ == "__main__":
    main()
