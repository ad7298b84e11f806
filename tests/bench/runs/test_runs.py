"""Whole runs of the benchmark, with processes and a server of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib.bench import serving
from embedlib.bench.options import ServeBenchOptions
from embedlib.bench.serve_table import render_serve
from embedlib.bench.serving import run_serve
from embedlib.config import Config
from tests.waiting import WAIT_SECONDS

URL = "http://127.0.0.1:1/v1/embeddings"


def test_the_command_with_a_tiny_model(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    arguments = ["--num-texts", "8", "--rounds", "1", "--query-seconds", "1e-3", "--threads", "1"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "embedlib", "bench", str(tiny_folder("bert"))),
            *(*arguments, "--json", str(path)),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["num_texts"] == 8
    assert result["num_tokens"] > 8
    assert "--rounds 1" in result["command"]
    assert result["contestants"][0]["query"]["num_queries"] >= 16
    assert "| bulk, tokens/s" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_server_with_a_tiny_model(
    tiny_folder: Callable[[str], Path], course: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CLIENTS", 20)
    monkeypatch.setenv("EMBEDLIB_DEVICE", "cuda")  # nothing of it reaches the server
    options = ServeBenchOptions(
        model=str(tiny_folder("bert")),
        urls={"nobody": URL},
        num_texts=140,
        rounds=1,
        query_seconds=0.01,
        config=Config(threads=1),
    )
    result = run_serve(options, machine={}, start=course.start)
    bulk = [line for line in course.log if line.endswith(" bulk")]
    assert len(bulk) == 3, "one to count tokens, one before the server's turn and one after it"
    [ours] = result.servers
    assert (ours.name, ours.request_texts) == ("embedlib serve", 128)
    assert ours.query.num_queries >= 16
    assert ours.server_share is not None
    assert [one.name for one in result.skipped] == ["nobody"]
    assert result.alone.crowd_requests == 100
    assert result.alone.crowd_failures == {}
    assert result.alone.requests_per_core_s > 0
    json.dumps(result.as_json())
    text = render_serve(result)
    for label in ("bulk rate over that in process", "20 clients at once", "nobody: not measured"):
        assert label in text


def test_the_soak_of_a_server_whose_engine_answers_at_once() -> None:
    command = [sys.executable, "-m", "tests.acceptance.serve_soak", "many", "--requests", "200"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "kept: every answer had its status" in done.stdout
