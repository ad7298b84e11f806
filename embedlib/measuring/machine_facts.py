"""The facts of a machine that `doctor` and the benchmarks print beside their results."""

from __future__ import annotations

import os
import platform

from embedlib.engines.gpus import GIB
from embedlib.engines.machine import Machine
from embedlib.errors import EngineUnavailableError

_PACKAGES = (
    "embedlib",
    "numpy",
    "tokenizers",
    "safetensors",
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
    cpuinfo = _cpuinfo(machine)
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cpu": cpuinfo.get("model name", platform.processor()),
        "cores": _cores(machine),
        "instructions": _instructions(cpuinfo.get("flags", "")),
        "memory": _memory(machine),
        "gpu": _gpus(machine),
    }
    return {name: value for name, value in facts.items() if value}


def describe_packages(machine: Machine | None = None) -> dict[str, str | None]:
    """Return the versions of embedlib and the packages it works with; imports none of them."""
    machine = machine or Machine()
    return {name: machine.version(name) for name in _PACKAGES}


def _cpuinfo(machine: Machine) -> dict[str, str]:
    """Return the first processor's entry."""
    entry = machine.read("/proc/cpuinfo").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in entry.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _instructions(flags: str) -> str:
    present = set(flags.split())
    return ", ".join(flag for flag in _CPU_FLAGS if flag in present)


def _cores(machine: Machine) -> str:
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    text = f"{usable} of {total} usable"
    quota, _, period = machine.read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        text += f", limited to the time of {int(quota) / int(period):g} by the container"
    return text


def _memory(machine: Machine) -> str:
    pairs = (line.partition(":") for line in machine.read("/proc/meminfo").splitlines())
    kib = {name: int(value.split()[0]) for name, _, value in pairs if value.split()}
    if not {"MemTotal", "MemAvailable"} <= kib.keys():
        return ""
    total, free = (kib[name] * 1024 / GIB for name in ("MemTotal", "MemAvailable"))
    text = f"{total:.1f} GiB, {free:.1f} GiB free"
    limit = machine.read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and int(limit) / GIB < total:
        text += f", limited to {int(limit) / GIB:.1f} GiB by the container"
    return text


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
            memory = f"{gpu.total_bytes / GIB:.1f} GiB, {gpu.free_bytes / GIB:.1f} GiB free"
        major, minor = gpu.compute_capability
        lines.append(
            f"cuda:{index}: {gpu.name}, {memory}, driver {gpu.driver}, compute capability "
            f"{major}.{minor}"
        )
    return "\n".join(lines) or "none: CUDA_VISIBLE_DEVICES leaves none"
