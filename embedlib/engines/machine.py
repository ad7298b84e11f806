"""What this machine has: GPUs, packages, CPU instructions; each is looked up on first use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

from embedlib.engines.gpus import GIB, Gpu, list_gpus
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

ENTRY_POINT_GROUP: Final = "embedlib.engines"
"""The name of an entry point is an engine's, its value an `EngineKind`."""
VNNI_FLAGS: Final = frozenset({"avx512_vnni", "avx_vnni"})
"""x86 flags: with either, OpenVINO rounds activations to int8 too; without, they stay float32.

Source: `useDynamicQuantizationImpl` of OpenVINO 2026, intel_cpu/src/nodes/executors/dnnl.
"""


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plugins() -> Iterable[EntryPoint]:
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def package_of(point: EntryPoint) -> str:
    """Return the package that declares an entry point."""
    return point.dist.name if point.dist is not None else point.module


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Looks up what engines need to know about this machine; caches its GPUs and plug-ins.

    `load_model` makes one and passes it to every step, so that nvidia-smi runs once per load. Tests
    replace the fields.
    """

    probe_gpus: Callable[[], Sequence[Gpu]] = list_gpus
    """Returns the GPUs of this process, or raises EngineUnavailableError with the reason."""
    has_module: Callable[[str], bool] = _has_module
    """Whether a module can be imported; imports nothing."""
    version: Callable[[str], str | None] = _version
    """The installed version of a package; None: it is not installed."""
    probe_plugins: Callable[[], Iterable[EntryPoint]] = _plugins
    """Returns the entry points of engines that other packages declare."""
    read: Callable[[str], str] = _read
    """The content of a system file; empty if there is none."""
    architecture: Callable[[], str] = platform.machine
    """The CPU's architecture: "x86_64"."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that this process may use; `cuda:N` is the N-th of them.

        Raises:
            EngineUnavailableError: there is no driver, or it does not respond.
        """
        found = self._gpus_or_reason
        if isinstance(found, str):
            raise EngineUnavailableError(found)
        return found

    @cached_property
    def _gpus_or_reason(self) -> tuple[Gpu, ...] | str:
        # A failure is kept too, since a driver that does not respond costs seconds each time; as
        # text, since the error's traceback would keep the frames of the load, and so the model.
        try:
            return tuple(self.probe_gpus())
        except EngineUnavailableError as error:
            return str(error)

    @cached_property
    def plugins(self) -> tuple[EntryPoint, ...]:
        """The entry points of other packages' engines, sorted by name and package."""
        found = self.probe_plugins()
        return tuple(sorted(found, key=lambda point: (point.name, package_of(point))))

    def int8_hardware(self) -> str:
        """Return the properties of the CPU that int8 vectors depend on: "x86_64 with VNNI"."""
        flags = self.read("/proc/cpuinfo").split()
        return self.architecture() + " with VNNI" * (not VNNI_FLAGS.isdisjoint(flags))


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
