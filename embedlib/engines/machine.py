"""What this machine has: GPUs, packages, CPU instructions; each is looked up on first use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import EntryPoint
from itertools import takewhile
from pathlib import Path
from typing import Final

from embedlib.engines.gpus import Gpu, list_gpus
from embedlib.errors import EngineUnavailableError
from embedlib.system.cgroups import read_system_file
from embedlib.system.memory import Memory, address_limit, data_limit, read_memory

ENTRY_POINT_GROUP: Final = "embedlib.engines"
"""The name of an entry point is an engine's, its value an `EngineKind`."""
BF16_FLAGS: Final = {"amx_bf16": "AMX_BF16", "avx512_bf16": "AVX512_BF16"}
"""x86 flags, and the names of the instructions: with either, OpenVINO computes in bfloat16.

Source: `hasHardwareSupport` of OpenVINO 2026, intel_cpu/src/utils/precision_support.cpp. It accepts
bfloat16 with AVX-512 alone too, and emulates it, which is slower than float32.
"""
AMX_FLAGS: Final = frozenset({"amx_bf16"})
"""x86 flags of units that multiply whole tiles of bfloat16."""
CPU_INFO: Final = "/proc/cpuinfo"
CPU_FIELDS: Final = (
    *("vendor_id", "cpu family", "model", "model name", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)
"""Fields of it, on x86 and on ARM, that tell kinds of CPUs apart."""
VNNI_FLAGS: Final = frozenset({"avx512_vnni", "avx_vnni"})
"""x86 flags: with either, OpenVINO rounds activations to int8 too; without, they stay float32.

Source: `useDynamicQuantizationImpl` of OpenVINO 2026, intel_cpu/src/nodes/executors/dnnl.
"""


def _read(path: str) -> str:
    """Return the content of a system file; of /proc/cpuinfo only what it tells of the first core.

    The kernel makes that file as it is read, core by core, and a load asks for it dozens of times.
    """
    if path != CPU_INFO:
        return read_system_file(path)
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            return "".join(takewhile(str.strip, lines))
    except OSError:
        return ""


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plugins() -> Iterable[EntryPoint]:
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)


def _ask_library(check: Callable[[], None]) -> None:
    check()


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
    address_limit: Callable[[], int] = address_limit
    """The limit of `ulimit -v` in bytes."""
    data_limit: Callable[[], int] = data_limit
    """The limit of `ulimit -d` in bytes."""
    ask_library: Callable[[Callable[[], None]], None] = _ask_library
    """Makes a check that imports an engine's library."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Engines that could not be started here, and why."""

    def without(self, engine: str, reason: str) -> Machine:
        """Return this machine, with the same GPUs, for a choice among the other engines."""
        return replace(self, probe_gpus=self.gpus, refused={**self.refused, engine: reason})

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

    def versions(self, packages: Iterable[str]) -> dict[str, str]:
        """Return the versions of those packages that are installed."""
        found = {name: self.version(name) for name in packages}
        return {name: version for name, version in found.items() if version is not None}

    def memory(self) -> Memory:
        """Return the memory that this process may still take now."""
        return read_memory(self.read, self.address_limit, self.data_limit)

    def cpu_hardware(self) -> str:
        """Return what lower precisions depend on: "x86_64 with VNNI", and ", AMX_BF16" or so."""
        has = ["VNNI"] * (not VNNI_FLAGS.isdisjoint(self.cpu_features()))
        names = ", ".join(filter(None, [*has, self.bf16_instructions()]))
        return f"{self.architecture()} with {names}" if names else self.architecture()

    def bf16_instructions(self) -> str | None:
        """Return the CPU's instructions that multiply bfloat16: "AMX_BF16"; None: it has none."""
        features = self.cpu_features()
        return next((name for flag, name in BF16_FLAGS.items() if flag in features), None)

    def cpu_features(self) -> frozenset[str]:
        """Return the CPU's features by the names that Linux gives them; empty elsewhere."""
        fields = self.cpu_fields()
        return frozenset((fields.get("flags") or fields.get("Features") or "").split())

    def cpu_identity(self) -> tuple[str, ...]:
        """Return what tells the kinds of CPUs apart: architecture, model, instructions."""
        fields = self.cpu_fields()
        return (self.architecture(), *(fields.get(name, "") for name in CPU_FIELDS))

    def cpu_fields(self) -> dict[str, str]:
        """Return what Linux tells of the first core."""
        first_core = self.read(CPU_INFO).split("\n\n", 1)[0]
        rows = (line.partition(":") for line in first_core.splitlines())
        return {name.strip(): words.strip() for name, _, words in rows}


def has_avx2_alone(cpu_features: frozenset[str]) -> bool:
    """Return whether a CPU has AVX2 and no AVX-512; elsewhere than on Linux that is not known."""
    return "avx2" in cpu_features and "avx512f" not in cpu_features
