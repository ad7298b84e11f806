"""Loads on a cluster, killed at random instants and run again: `python -m tests.ray.kills`.

Each load begins empty and is hit by some kills, of a worker, a node or the driver; a driver that
was killed is started again at once. In the end the destination must be that of one process. Prints
a table.
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
_LOST = {"worker": 1, "node": 1, "driver": NUM_WORKERS}
"""Workers that lose what they have in flight; each node has one."""

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

    @property
    def said(self) -> str:
        """What the drivers printed; Ray prints there, too."""
        return (self.folder / "child.log").read_text(encoding="utf-8")

    def start(self) -> None:
        """Start the driver."""
        program = [sys.executable, "-m", "tests.ray.kill_child"]
        with (self.folder / "child.log").open("a") as said:
            self.child = subprocess.Popen(
                [*program, self.url, str(self.num_documents), str(self.log)],
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def run(self, kills: list[str]) -> list[str]:
        """Run the load to its end through kills at random instants of its work.

        Returns:
            the kills that hit it; it may be over before the last ones.
        """
        self.start()
        made = []
        instants = sorted(self.dice.sample(range(self.num_documents), len(kills)))
        for instant, kill in zip(instants, kills, strict=True):
            if not self.wait_for(instant):
                break
            getattr(self, f"kill_{kill}")()
            made.append(kill)
        assert self.child.wait(_WAIT_SECONDS) == 0, self.said
        self.restore_node()
        return made

    def wait_for(self, num_texts: int) -> bool:
        """Wait until so many texts were embedded; False: the load is over before that."""
        give_up = time.monotonic() + _WAIT_SECONDS
        while num_embedded(self.log) <= num_texts:
            if self.child.poll() is not None:
                return False
            assert time.monotonic() < give_up, self.said
            time.sleep(0.002)
        return True

    def kill_worker(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.dice.choice(worker_pids(self.log)), 9)

    def kill_node(self) -> None:
        """Kill the node beside the head; its worker waits until there is another one."""
        self.restore_node()
        self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)

    def restore_node(self) -> None:
        """Start another node if one was killed; that takes seconds, in which the load goes on."""
        if len(self.cluster.list_all_nodes()) == 1:
            self.cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)

    def kill_driver(self) -> None:
        self.child.kill()
        self.child.wait()
        self.start()


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


def most_again(kills: list[str]) -> int:
    """Return how many texts these kills may cost: a batch of each worker that they hit."""
    return sum(_LOST[kill] for kill in kills) * BATCH_ROWS


def check(killer: Killer, kills: list[str], expected: list[Row]) -> int:
    """Compare with a load of one process; return how many texts were embedded again."""
    assert read_rows(killer.url) == expected
    num_again = num_embedded(killer.log) - killer.num_documents
    allowed = most_again(kills)
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
    print("| load | destination | killed | embedded again | allowed | seconds |")
    print("|---:|---|---|---:|---:|---:|", flush=True)
    for number in range(given.loads):
        with tempfile.TemporaryDirectory(prefix="embedlib-ray-", dir="/tmp") as name:
            folder = Path(name)
            folder.chmod(0o755)
            kind = ("jsonl", "edge", "pglocal")[number % 3]
            if kind not in expected:
                expected[kind] = load_alone(f"{kind}:{folder}/alone")
            kills = dice.choices(list(_LOST), k=dice.randint(1, 3))
            killer = Killer(cluster, f"{kind}:{folder}/shared", folder, dice)
            started = time.monotonic()
            made = killer.run(kills)
            num_again = check(killer, made, expected[kind])
            seconds = time.monotonic() - started
            row = (number, kind, ", ".join(made), num_again, most_again(made), round(seconds))
            print(f"| {' | '.join(map(str, row))} |", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
