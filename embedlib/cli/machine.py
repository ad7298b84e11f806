"""Facts about this machine that decide how fast it embeds, read from the operating system."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

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
    "ray",
)
# Instruction sets that matrix products gain from, in ascending order, as Linux names them.
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
_GPU_TIMEOUT_S = 20
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
    """One line per GPU, asked from the driver's own tool: no library needs to be installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "none (no nvidia-smi here)"
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    try:
        answer = subprocess.run(
            [tool, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_GPU_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: nvidia-smi failed ({type(error).__name__})"
    lines = []
    for row in answer.stdout.strip().splitlines():
        name, memory, driver, capability = (cell.strip() for cell in row.split(","))
        lines.append(f"{name}, {memory}, driver {driver}, compute capability {capability}")
    return "\n".join(lines) or "none"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
