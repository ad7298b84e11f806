"""Loads in real processes, killed at random instants and run again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CHILD = Path(__file__).with_name("kill_child.py")
NUM_DOCUMENTS = 6000
BATCH_ROWS = 200
NUM_KILLS = 20

Stored = dict[str, tuple[Any, ...]]
"""By row id: every other field and the vector's bytes."""


def command(url: str, log: Path) -> list[str]:
    numbers = [str(NUM_DOCUMENTS), str(BATCH_ROWS)]
    return [sys.executable, str(CHILD), url, *numbers, str(log)]


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
    started = time.perf_counter()
    subprocess.run(command(url("whole"), tmp_path / "whole.log"), check=True, timeout=120)
    seconds = time.perf_counter() - started
    log = tmp_path / "killed.log"
    dice = random.Random(0)
    num_kills = 0
    for _ in range(NUM_KILLS):
        process = subprocess.Popen(command(url("killed"), log))
        try:
            # Any instant is as good as another: the machine's speed decides where it falls.
            process.wait(timeout=dice.uniform(0.2, 1.0) * seconds * 0.6)
        except subprocess.TimeoutExpired:
            process.kill()
            num_kills += 1
        process.wait(timeout=60)
    subprocess.run(command(url("killed"), log), check=True, timeout=120)
    assert num_kills > NUM_KILLS // 4, f"only {num_kills} runs were killed"
    assert read("killed") == read("whole")
    assert len(read("whole")) == NUM_DOCUMENTS
    assert log.stat().st_size <= NUM_DOCUMENTS + num_kills * BATCH_ROWS


def test_files_survive_kills(tmp_path: Path) -> None:
    kill_test(
        lambda name: f"jsonl:{tmp_path / name}.jsonl",
        lambda name: read_jsonl(tmp_path / f"{name}.jsonl"),
        tmp_path,
    )
