from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import Result

from embedlib.config import Config
from embedlib.engines import machine
from embedlib.errors import EngineUnavailableError

Run = Callable[..., Result]

CPUINFO = """\
processor\t: 0
model name\t: Fast Chip 9000
flags\t\t: fpu sse avx2 amx_tile avx512f

processor\t: 1
model name\t: Another One
"""
MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the system's files hold; those that are not named do not exist."""
    contents: dict[str, str] = {}
    monkeypatch.setattr(machine, "_read", lambda path: contents.get(path, ""))
    return contents


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a tool of that name in front of all others; it runs the given shell lines."""

    def install(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_every_engine_and_the_choice_are_shown(run: Run) -> None:
    from embedlib.engines.registry import available_engines
    from embedlib.engines.select import choose_engine

    done = run("doctor")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    for engine in available_engines():
        state = "yes" if engine.is_available else "no"
        assert any(line.split()[:2] == [engine.name, f"{state}:"] for line in lines)
    assert any(
        line.startswith(f"auto picks     {choose_engine(Config()).name}: ") for line in lines
    )
    assert f"python         {sys.version.split()[0]}" in done.stdout


def test_json(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run("doctor", "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["cache_folder"] == str(tmp_path / "embedlib")
    assert content["packages"]["numpy"] == version("numpy")
    assert {engine["name"] for engine in content["engines"]} >= {"openvino"}
    assert content["auto"]


def test_a_machine_without_any_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(config: Config) -> None:
        raise EngineUnavailableError("nothing runs here")

    monkeypatch.setattr("embedlib.engines.select.choose_engine", choose)
    done = run("doctor")
    assert done.exit_code == 0, done.output
    assert "auto picks     none: nothing runs here" in done.stdout


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PACKAGES", ("numpy", "no-such-package"))
    assert machine.describe_packages() == {"numpy": version("numpy"), "no-such-package": None}


def test_cpu_and_memory(files: dict[str, str]) -> None:
    files |= {"/proc/cpuinfo": CPUINFO, "/proc/meminfo": MEMINFO}
    facts = machine.describe_machine()
    assert facts["cpu"] == "Fast Chip 9000"
    assert facts["instructions"] == "avx2, avx512f, amx_tile"
    assert facts["memory"] == "16.0 GiB, 8.0 GiB free"
    assert facts["cores"] == f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable"


def test_limits_of_a_container(files: dict[str, str]) -> None:
    files |= {
        "/proc/meminfo": MEMINFO,
        "/sys/fs/cgroup/cpu.max": "150000 100000\n",
        "/sys/fs/cgroup/memory.max": f"{4 << 30}\n",
    }
    facts = machine.describe_machine()
    assert facts["cores"].endswith("usable, limited to the time of 1.5 by the container")
    assert facts["memory"].endswith("free, limited to 4.0 GiB by the container")


def test_no_limits_of_a_container(files: dict[str, str]) -> None:
    files |= {
        "/proc/meminfo": MEMINFO,
        "/sys/fs/cgroup/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/memory.max": "max\n",
    }
    facts = machine.describe_machine()
    assert "limited" not in facts["cores"] + facts["memory"]


def test_a_system_without_such_files(files: dict[str, str]) -> None:
    assert "memory" not in machine.describe_machine()


def test_gpus(nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi(
        "echo 'GPU-1, NVIDIA H200, 143771, 143000, 570.1, 9.0'\n"
        "echo 'GPU-2, NVIDIA T4, 15360, [N/A], 570.1, 7.5'"
    )
    assert machine.describe_machine()["gpu"].splitlines() == [
        "cuda:0: NVIDIA H200, 140.4 GiB, 139.6 GiB free, driver 570.1, compute capability 9.0",
        "cuda:1: NVIDIA T4, memory unknown, driver 570.1, compute capability 7.5",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.describe_machine()["gpu"] == "none: CUDA_VISIBLE_DEVICES leaves none"


def test_a_driver_that_does_not_answer(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("echo 'no devices were found' >&2\nexit 9")
    assert "nvidia-smi failed (CalledProcessError)" in machine.describe_machine()["gpu"]


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = "none: no NVIDIA GPU was found (there is no nvidia-smi)"
    assert machine.describe_machine()["gpu"] == told
