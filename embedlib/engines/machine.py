"""Facts about this machine that decide how fast it embeds, read from the operating system."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from embedlib.engines.gpus import list_gpus
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
# Instruction sets that matrix products gain from, in ascending order, as Linux names them.
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
_GIB = 1 << 30


def describe_machine() -> dict[str, str]:
    """Return names and values to show; what cannot be found out is left out."""
    cpuinfo = _cpuinfo()
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cpu": cpuinfo.get("model name", platform.processor()),
        "cores": _cores(),
        "instructions": _instructions(cpuinfo.get("flags", "")),
        "memory": _memory(),
        "gpu": _gpus(),
    }
    return {name: value for name, value in facts.items() if value}


def describe_packages() -> dict[str, str | None]:
    """Return the version of each package that matters here, without importing any."""
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry."""
    entry = _read("/proc/cpuinfo").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in entry.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _instructions(flags: str) -> str:
    present = set(flags.split())
    return ", ".join(flag for flag in _CPU_FLAGS if flag in present)


def _cores() -> str:
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    text = f"{usable} of {total} usable"
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        text += f", limited to the time of {int(quota) / int(period):g} by the container"
    return text


def _memory() -> str:
    pairs = (line.partition(":") for line in _read("/proc/meminfo").splitlines())
    kib = {name: int(value.split()[0]) for name, _, value in pairs if value.split()}
    if not {"MemTotal", "MemAvailable"} <= kib.keys():
        return ""
    total, free = (kib[name] * 1024 / _GIB for name in ("MemTotal", "MemAvailable"))
    text = f"{total:.1f} GiB, {free:.1f} GiB free"
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and int(limit) / _GIB < total:
        text += f", limited to {int(limit) / _GIB:.1f} GiB by the container"
    return text


def _gpus() -> str:
    """One line per GPU that this process may use."""
    try:
        gpus = list_gpus()
    except EngineUnavailableError as error:
        return f"none: {error}"
    lines = []
    for index, gpu in enumerate(gpus):
        memory = "memory unknown"
        if gpu.total_bytes is not None and gpu.free_bytes is not None:
            memory = f"{gpu.total_bytes / _GIB:.1f} GiB, {gpu.free_bytes / _GIB:.1f} GiB free"
        major, minor = gpu.compute_capability
        lines.append(
            f"cuda:{index}: {gpu.name}, {memory}, driver {gpu.driver}, compute capability "
            f"{major}.{minor}"
        )
    return "\n".join(lines) or "none: CUDA_VISIBLE_DEVICES leaves none"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
