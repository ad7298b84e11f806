from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from embedlib.cli import main
from embedlib.config import Config
from embedlib.engines.gpus import Gpu
from embedlib.engines.machine import Machine
from embedlib.errors import EngineUnavailableError
from embedlib.measuring.machine_facts import describe_machine, describe_packages
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files
from tests.machines import CUDA, H200, TRTLLM, fake_machine
from tests.tiny_models.sparse import write_sparse_model
from tests.tiny_models.static import write_model2vec, write_static_model

Run = Callable[..., Result]

CPUINFO = """\
processor\t: 0
model name\t: Fast Chip 9000
flags\t\t: fpu sse avx2 amx_tile avx512f

processor\t: 1
model name\t: Another One
"""
BF16_CPUINFO = CPUINFO.replace("avx512f", "avx512f avx512_bf16")
MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"


def doctor(machine: Machine, *arguments: str) -> str:
    """Run `embedlib doctor` on a machine and return what it prints."""
    done = CliRunner().invoke(main, ["doctor", *arguments], obj=machine)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_engine_and_the_choice_are_shown() -> None:
    lines = doctor(fake_machine(H200, packages=CUDA)).splitlines()
    for name, state in (("tensorrt_llm", "no:"), ("cuda", "yes:"), ("openvino", "yes:")):
        assert any(line.split()[:2] == [name, state] for line in lines)
    assert any(line.startswith("auto picks     cuda: runs on NVIDIA H200, ") for line in lines)
    assert any(line.startswith(f"python         {sys.version.split()[0]}") for line in lines)


def test_a_gpu_that_a_library_cannot_use() -> None:
    def ask(check: Callable[[], None]) -> None:
        raise EngineUnavailableError("torch sees no NVIDIA GPU")

    machine = replace(fake_machine(H200, packages=CUDA), ask_library=ask)
    lines = [" ".join(line.split()) for line in doctor(machine).splitlines()]
    assert "cuda no: torch sees no NVIDIA GPU" in lines
    assert any(line.startswith("auto picks openvino: ") for line in lines)


def test_it_lists_the_gpus_once() -> None:
    asked: list[None] = []

    def probe() -> list[Gpu]:
        asked.append(None)
        return [H200]

    doctor(fake_machine(packages={**CUDA, **TRTLLM}, probe=probe))
    assert len(asked) == 1


def test_json(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run("doctor", "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["cache_folder"] == str(tmp_path / "embedlib")
    assert content["packages"]["numpy"] == version("numpy")
    assert {engine["name"] for engine in content["engines"]} >= {"openvino"}
    assert content["auto"]


def test_this_machine(run: Run) -> None:
    assert "openvino       yes: runs on any" in run("doctor").stdout


def test_a_machine_without_any_engine() -> None:
    bare = replace(fake_machine(), has_module=lambda name: False)
    told = "auto picks     none: engine = 'auto' cannot be used here: tensorrt_llm: it needs an "
    assert told in doctor(bare)


def test_a_package_that_is_not_installed() -> None:
    versions = describe_packages(fake_machine(packages=CUDA))
    assert (versions["numpy"], versions["torch"]) == (version("numpy"), "2.13.0")
    assert versions["tensorrt-llm"] is None


def test_cpu_and_memory() -> None:
    files = {"/proc/cpuinfo": CPUINFO, "/proc/meminfo": MEMINFO}
    facts = describe_machine(fake_machine(files=files))
    assert facts["cpu"] == "Fast Chip 9000"
    assert facts["instructions"] == "avx2, avx512f, amx_tile"
    assert facts["memory"] == "16.0 GiB, 8.0 GiB free (available on this machine)"
    assert facts["cores"] == f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable"


def test_limits_of_a_container() -> None:
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "0::/inner\n",
        "/sys/fs/cgroup/inner/cpu.max": "150000 100000\n",
        "/sys/fs/cgroup/inner/memory.max": f"{4 << 30}\n",
        "/sys/fs/cgroup/inner/memory.current": f"{1 << 30}\n",
    }
    facts = describe_machine(fake_machine(files=files))
    assert facts["cores"].endswith("usable, limited to the time of 1.5 by the container")
    assert facts["memory"] == "16.0 GiB, 3.0 GiB free (memory limit of its cgroup)"


def test_no_limits_of_a_container() -> None:
    files = {
        "/proc/meminfo": MEMINFO,
        "/sys/fs/cgroup/cpu.max": "max 100000\n",
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/memory.current": f"{1 << 30}\n",
    }
    facts = describe_machine(fake_machine(files=files))
    assert "limited" not in facts["cores"]
    assert facts["memory"] == "16.0 GiB, 8.0 GiB free (available on this machine)"


def test_a_system_without_such_files() -> None:
    assert "memory" not in describe_machine(fake_machine(files={}))


def test_gpus() -> None:
    t4 = Gpu(
        name="NVIDIA T4",
        total_bytes=15360 << 20,
        free_bytes=None,
        driver="570.1",
        compute_capability=(7, 5),
    )
    assert describe_machine(fake_machine(H200, t4))["gpu"].splitlines() == [
        "cuda:0: NVIDIA H200, 140.4 GiB, 139.6 GiB free, driver 580.1, compute capability 9.0",
        "cuda:1: NVIDIA T4, memory unknown, driver 570.1, compute capability 7.5",
    ]
    hidden = fake_machine(probe=lambda: ())
    assert describe_machine(hidden)["gpu"] == "none: CUDA_VISIBLE_DEVICES leaves none"


def test_a_driver_that_does_not_answer() -> None:
    def probe() -> list[Gpu]:
        raise EngineUnavailableError("the GPUs are unknown: nvidia-smi failed")

    facts = describe_machine(fake_machine(probe=probe))
    assert facts["gpu"] == "none: the GPUs are unknown: nvidia-smi failed"


def test_the_memory_of_a_model_in_each_precision(tiny_folder: Callable[[str], Path]) -> None:
    folder = str(tiny_folder("bert"))
    for kib, needs, words in (
        (9 << 20, "needs about 0.3 GiB", "yes, with"),
        (1 << 10, "needs about 0.2 GiB", "no, this process can have 0.0 GiB"),
    ):
        files = {"/proc/meminfo": f"MemAvailable: {kib} kB\n", "/proc/cpuinfo": BF16_CPUINFO}
        machine = fake_machine(files=files)
        rows = doctor(machine, folder).splitlines()[-4:]
        assert [row.split()[:2] for row in rows] == [
            ["openvino", name] for name in ("int8-g128", "int8", "bf16", "float32")
        ]
        assert all(needs in row for row in rows)
        assert all(" for 0.0 GiB of weights: " + words in row for row in rows)
    assert set(json.loads(doctor(machine, folder, "--json"))["memory"]) == {
        "openvino int8-g128",
        "openvino int8",
        "openvino bf16",
        "openvino float32",
    }


@pytest.mark.parametrize("write", [write_static_model, write_model2vec])
def test_a_table_has_no_precisions(write: Callable[[Path], Path], tmp_path: Path) -> None:
    machine = fake_machine(files={"/proc/meminfo": MEMINFO, "/proc/cpuinfo": CPUINFO})
    memory = json.loads(doctor(machine, str(write(tmp_path)), "--json"))["memory"]
    assert memory == {"static float32": "yes, a table of 0.0 GiB, which is looked up"}


@pytest.mark.parametrize("kind", ["sparse", "late"])
def test_only_the_precision_that_a_model_has_is_shown(
    kind: str, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    folder = tiny_folder("late-bert") if kind == "late" else write_sparse_model(tmp_path)
    machine = fake_machine(files={"/proc/meminfo": MEMINFO, "/proc/cpuinfo": CPUINFO})
    memory = json.loads(doctor(machine, str(folder), "--json"))["memory"]
    assert set(memory) == {"openvino float32"}


def test_a_precision_that_the_cpu_does_not_have(tiny_folder: Callable[[str], Path]) -> None:
    machine = fake_machine(files={"/proc/meminfo": MEMINFO, "/proc/cpuinfo": CPUINFO})
    memory = json.loads(doctor(machine, str(tiny_folder("bert")), "--json"))["memory"]
    assert memory["openvino bf16"].startswith("no: this CPU does not compute in bf16, which needs ")
    assert memory["openvino int8"].startswith("needs about ")


def test_an_engine_directory_has_one_precision(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    files = read_model_files(tiny_folder("bert"))
    config = Config(engine_cache_dir=tmp_path / "cache")
    compiled = compile_model(files, "int8", (), config, out=tmp_path / "compiled")
    rows = [
        line.split()[1]
        for line in doctor(fake_machine(), str(compiled)).splitlines()
        if " needs about " in line
    ]
    assert rows == ["int8"]
