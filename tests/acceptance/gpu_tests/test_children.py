from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from embedlib.measuring.process import ContestantFailedError, JsonProcess, OverBudgetError
from tests.acceptance.gpu.children import Children, GpuChild, Place
from tests.acceptance.gpu.worker import CALLS, make_calls

SILENT = [sys.executable, "-c", "import sys; sys.stdin.read()"]
ANSWERS = [sys.executable, "-c", "for line in open(0): print('{\"result\": 7}', flush=True)"]


def test_a_child_that_does_not_answer_is_ended() -> None:
    process = JsonProcess("peer", SILENT, os.environ)
    message = "peer failed: load was given 0 s and took longer"
    with pytest.raises(OverBudgetError, match=message), process:
        process.call("load", timeout_s=0.01)
    assert process._process.returncode == -9


def test_a_child_that_answers_in_time() -> None:
    with JsonProcess("peer", ANSWERS, os.environ) as process:
        assert process.call("bulk", timeout_s=30, lengths="512") == 7
    assert process._process.returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_real_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('libcudart.so.13 is missing')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    loaded: list[Any] = []
    children = Children("cpu", GpuChild, lambda place, found: loaded.append((place, found)))
    load = (("model", "bge-large"), ("folder", "nowhere"), ("quantization", "fp8"))
    place = Place("vllm", load, tmp_path)
    for _ in range(2):  # the second time nothing is started
        with pytest.raises(ContestantFailedError, match=r"ImportError: libcudart.so.13 is missing"):
            children.call(place, "bulk", 60)
    assert loaded == []
    children.end_all()


def test_everybody_can_be_made() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    for name in CALLS:
        assert make_calls(name, "cpu") is not None
