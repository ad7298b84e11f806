"""Some loads with kills; `python -m tests.ray.kills` makes more of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.ray.fakes import all_pids
from tests.ray.kills import NUM_WORKERS, Killer, check, load_alone

NUM_DOCUMENTS = 4_000


@pytest.mark.parametrize(
    ("kind", "kills"),
    [("jsonl", ["worker", "driver"]), ("postgres", ["worker", "node"])],
)
def test_a_killed_load_ends_like_one_of_one_process(
    kind: str, kills: list[str], cluster: object, tmp_path: Path, postgres: str
) -> None:
    places = {
        "jsonl": (f"jsonl:{tmp_path}/alone", f"jsonl:{tmp_path}/shared"),
        "postgres": (
            f"{postgres}&table=kill_alone&index=none",
            f"{postgres}&table=kill_shared&index=none",
        ),
    }
    alone, shared = places[kind]
    expected = load_alone(alone, NUM_DOCUMENTS)
    killer = Killer(cluster, shared, tmp_path, random.Random(0), NUM_DOCUMENTS)
    assert killer.run(kills)
    check(killer, kills, expected)
    # No machine had two: what was on the killed node did not begin again beside the other one.
    num_drivers = 1 + kills.count("driver")
    assert len(all_pids(killer.log)) <= NUM_WORKERS * num_drivers + kills.count("worker")
