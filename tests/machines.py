"""Machines that tests hand in: GPUs and packages that exist only as far as selection can see."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Final

import pytest

from embedlib.engines.gpus import Gpu
from embedlib.engines.machine import Machine
from embedlib.errors import EngineUnavailableError

needs_bf16: Final = pytest.mark.skipif(
    Machine().bf16_instructions() is None,
    reason="needs a CPU with AMX_BF16 or AVX512_BF16",
)


def gpu(name: str, mib: int, free_mib: int, capability: tuple[int, int]) -> Gpu:
    return Gpu(
        name=name,
        total_bytes=mib << 20,
        free_bytes=free_mib << 20,
        driver="580.1",
        compute_capability=capability,
    )


H200: Final = gpu("NVIDIA H200", 143771, 143000, (9, 0))
A100: Final = gpu("NVIDIA A100", 40960, 40000, (8, 0))
T4: Final = gpu("Tesla T4", 15360, 15000, (7, 5))
CUDA: Final = {"torch": "2.13.0", "triton": "3.9.0"}
TRTLLM: Final = {"tensorrt_llm": "1.3.0rc26"}
GPU_PACKAGES: Final = frozenset({"tensorrt_llm", "torch", "triton"})


def fake_machine(
    *gpus: Gpu,
    packages: Mapping[str, str] | None = None,
    plugins: Sequence[EntryPoint] = (),
    probe: Callable[[], Sequence[Gpu]] | None = None,
    files: Mapping[str, str] | None = None,
) -> Machine:
    """Return a machine with these GPUs and, of what GPU engines need, these packages.

    The packages are not imported, so that the GPUs count as usable.

    Args:
        gpus: what its driver lists; none: there is no driver.
        packages: versions of torch, triton and tensorrt_llm; what is not named is missing.
        plugins: entry points of other packages' engines.
        probe: takes the place of the list of GPUs.
        files: contents of the system's files; None: those of this machine.
    """
    given = packages or {}

    def list_gpus() -> Sequence[Gpu]:
        if not gpus:
            raise EngineUnavailableError("no NVIDIA GPU was found (there is no nvidia-smi)")
        return gpus

    def has_module(name: str) -> bool:
        return name in given or (
            name not in GPU_PACKAGES and importlib.util.find_spec(name) is not None
        )

    def version(name: str) -> str | None:
        name = name.replace("-", "_")
        is_given = name in given or name in GPU_PACKAGES
        return given.get(name) if is_given else Machine().version(name)

    read = Machine().read if files is None else lambda path: files.get(path, "")
    return Machine(
        probe_gpus=probe or list_gpus,
        has_module=has_module,
        version=version,
        probe_plugins=lambda: plugins,
        read=read,
        ask_library=lambda check: None,
    )


def with_cpu(machine: Machine, *features: str) -> Machine:
    """Return a copy of a machine whose CPU has these features and no others."""
    cpuinfo = f"flags\t\t: {' '.join(features)}\n"
    read = machine.read
    return replace(machine, read=lambda path: cpuinfo if path == "/proc/cpuinfo" else read(path))
