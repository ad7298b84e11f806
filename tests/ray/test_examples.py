"""The examples for Ray run as they are; each starts a cluster of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "ray_index.py": "0 embedded, 200 unchanged\nsorting a list",
    "ray_serve.py": "2 vectors of 384 dimensions",
}


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All examples at the same time: they mostly wait for processes of Ray to start."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    started = {
        name: subprocess.Popen(
            [sys.executable, EXAMPLES / name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path_factory.mktemp("example"),
            env=environment,
        )
        for name in EXPECTED
    }
    yield started
    for process in started.values():
        process.kill()


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(name: str, running: dict[str, subprocess.Popen[str]]) -> None:
    said, errors = running[name].communicate(timeout=240)
    assert running[name].returncode == 0, errors
    assert EXPECTED[name] in said
