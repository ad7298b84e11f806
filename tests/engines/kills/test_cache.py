"""Processes that share a cache of compiled models, and those that die while they use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.waiting import WAIT_SECONDS

DIES = """
import os, signal, sys
from embedlib.engines.openvino.running import compiling
from embedlib.engines.openvino.kept import model_cache

if sys.argv[3]:
    number, place = sys.argv[3].split()
    holder, name = place.rsplit(".", 1)
    holder = eval(holder)
    act = getattr(holder, name)

    def signalled(*args, **kwargs):
        os.kill(os.getpid(), signal.Signals[number])
        return act(*args, **kwargs)

    setattr(holder, name, signalled)
from embedlib import Embedder
with Embedder(sys.argv[1], threads=1, engine_cache_dir=sys.argv[2]) as embedder:
    print(embedder.encode("a text").tolist())
"""


def start(folder: Path, cache: Path, dies_in: str = "", **env: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", DIES, str(folder), str(cache), dies_in]
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | env
    )


def result(child: subprocess.Popen[str]) -> tuple[list[float], str]:
    out, err = child.communicate(timeout=WAIT_SECONDS)
    assert child.returncode == 0, err
    return json.loads(out), err


def kill_in(what: str, folder: Path, cache: Path, number: signal.Signals = signal.SIGKILL) -> None:
    child = start(folder, cache, f"{number.name} {what}")
    child.communicate(timeout=WAIT_SECONDS)
    assert child.returncode == -number


def entry_of(folder: Path) -> Path:
    [entry] = [path for path in folder.iterdir() if path.is_dir()]
    return entry


def test_a_process_that_dies_leaves_a_cache_that_others_can_use(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_folder("bert")
    kill_in("model_cache._Sink.seek", folder, tmp_path)
    entry = entry_of(tmp_path / "openvino")
    assert [path.name for path in entry.iterdir()] == ["model.blob.part"]
    first, err = result(start(folder, tmp_path))
    assert err == "", "nothing was kept that could be at fault"
    kill_in("compiling.ov.Tensor", folder, tmp_path)
    assert (entry / "trying").exists()
    again, err = result(start(folder, tmp_path))
    assert again == first
    assert "a process died while it loaded it" in err
    left = {path.name for path in entry.iterdir()}
    assert left == {"model.blob", "tried", "entry.json", "deaths"}


def test_a_process_that_is_told_to_end_says_nothing_against_the_cache(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # As multiprocessing's Pool does at the end of its block to workers that are not loaded yet.
    folder = tiny_folder("bert")
    result(start(folder, tmp_path))
    entry = entry_of(tmp_path / "openvino")
    for _ in range(2):
        kill_in("compiling.ov.Tensor", folder, tmp_path, signal.SIGTERM)
        assert {path.name for path in entry.iterdir()} == {"model.blob", "tried", "entry.json"}


def test_processes_and_kinds_of_cpus_share_a_cache(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # Three processes that started at once with an empty cache of OpenVINO's died of SIGBUS.
    folder = tiny_folder("bert")
    switches: list[dict[str, str]] = [{}, {}, {"ONEDNN_MAX_CPU_ISA": "AVX"}]
    for _ in range(2):
        found = [result(child) for child in [start(folder, tmp_path, **env) for env in switches]]
        assert [err for _, err in found] == [""] * 3
        for vector, _ in found:
            np.testing.assert_allclose(vector, found[0][0], atol=1e-6)
        assert len(list((tmp_path / "openvino").iterdir())) == 2
