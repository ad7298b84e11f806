"""The facts of a machine that `doctor` and the benchmarks print beside their results."""

from __future__ import annotations

import os
import platform

from embedlib.engines.gpus import version_text
from embedlib.engines.machine import Machine
from embedlib.errors import EngineUnavailableError
from embedlib.system.cores import allowed_cores, cpu_limit
from embedlib.system.memory import gib

_PACKAGES = (
    "embedlib",
    "numpy",
    "tokenizers",
    "huggingface-hub",
    "openvino",
    "torch",
    "triton",
    "tensorrt-llm",
    "transformers",
    "sentence-transformers",
    "qdrant-client",
    "psycopg",
    "langchain-core",
)
# Instruction sets that speed up matrix products, in ascending order, by their Linux names.
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def describe_machine(machine: Machine | None = None) -> dict[str, str]:
    """Return names and values for display, without those that are unknown."""
    machine = machine or Machine()
    cpu = machine.cpu_fields()
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cpu": cpu.get("model name", platform.processor()),
        "cores": _cores(machine),
        "instructions": _instructions(cpu.get("flags", "")),
        "memory": _memory(machine),
        "gpu": _gpus(machine),
    }
    return {name: value for name, value in facts.items() if value}


def describe_packages(machine: Machine | None = None) -> dict[str, str | None]:
    """Return the versions of embedlib and the packages it works with; imports none of them."""
    machine = machine or Machine()
    return {name: machine.version(name) for name in _PACKAGES}


def _instructions(flags: str) -> str:
    present = set(flags.split())
    return ", ".join(flag for flag in _CPU_FLAGS if flag in present)


def _cores(machine: Machine) -> str:
    text = f"{allowed_cores()} of {os.cpu_count() or 1} usable"
    limit = cpu_limit(machine.read)
    if limit is not None:
        text += f", limited to the time of {limit:g} by the container"
    return text


def _memory(machine: Machine) -> str:
    total_kib = machine.read("/proc/meminfo").partition("MemTotal:")[2].split()
    room = machine.memory().room
    if not total_kib or room is None:
        return ""
    return f"{gib(int(total_kib[0]) * 1024)}, {gib(room.num_bytes)} free ({room.limit})"


def _gpus(machine: Machine) -> str:
    """Return one line per GPU that this process may use."""
    try:
        gpus = machine.gpus()
    except EngineUnavailableError as error:
        return f"none: {error}"
    lines = []
    for index, gpu in enumerate(gpus):
        memory = "memory unknown"
        if gpu.total_bytes is not None and gpu.free_bytes is not None:
            memory = f"{gib(gpu.total_bytes)}, {gib(gpu.free_bytes)} free"
        lines.append(
            f"cuda:{index}: {gpu.name}, {memory}, driver {gpu.driver}, compute capability "
            f"{version_text(gpu.compute_capability)}"
        )
    return "\n".join(lines) or "none: CUDA_VISIBLE_DEVICES leaves none"
