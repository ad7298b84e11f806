"""A command that finds no cluster, or is not let in, says so in one line and writes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("address", "token", "told"),
    [
        ("127.0.0.1:1", None, "no Ray cluster answers there"),
        ("nonsense", None, "it must be auto, local or HOST:PORT"),
        ("ray://127.0.0.1:1", None, "run the command on a machine of the cluster"),
        ("auto", "0" * 64, "does not take this program's token"),
    ],
)
def test_a_wrong_cluster(
    address: str, token: str | None, told: str, cluster: object, tmp_path: Path
) -> None:
    source = tmp_path / "source.txt"
    source.write_text("a text")
    environment = dict(os.environ)
    if token is not None:
        environment["RAY_AUTH_TOKEN"] = token
    command = ("index", source, "--model", "m", "--to", f"jsonl:{tmp_path}/out", "--ray", address)
    done = subprocess.run(
        [sys.executable, "-m", "embedlib", *command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert told in line
    assert [path.name for path in tmp_path.iterdir()] == ["source.txt"]
