"""The row of an engine in the table of engines: its properties and functions before it is loaded.

The rows of embedlib's own engines are in `engines/NAME/kind.py`; those of other packages come from
entry points. `engines.registry` reads both. Importing a row imports no engine and no library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from embedlib.system.memory import Memory

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.gpus import Gpu
    from embedlib.engines.machine import Machine
    from embedlib.engines.profile import Profile, ProfileKey
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec

DeviceType: TypeAlias = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and whether it can run on this machine."""

    name: str
    is_available: bool
    reason: str
    """Why it can or cannot run here; one line."""
    version: str | None = None
    """Version of the library it computes with, if that is installed."""
    devices: tuple[str, ...] = ()
    """The devices it would run on."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs of `devices`, in the same order; empty for an engine that uses none."""
    hardware: str = ""
    """The hardware that lower precisions are computed on. Machines with equal values round alike,
    so a fidelity report made on one is valid on the other."""
    memory: Memory = field(default_factory=Memory)
    """What the process may still take; without a limit if the engine does not ask."""
    cpu_features: frozenset[str] = frozenset()
    """As in `Machine`; empty for an engine that does not compute on the CPU."""
    warning: str = ""
    """Logged when the engine is loaded: an option that it can follow only in part."""


@dataclass(frozen=True, kw_only=True)
class ChosenPrecision:
    """A precision and the place of its weights."""

    name: str
    excluded: tuple[str, ...] = ()
    """Roles of linear layers that stay in a higher precision, and `models.compiled.pooled_rows`."""
    folder: Path | None = None
    """The engine directory; None: not compiled yet, or computed from the model's own files."""
    faithful_to: str | None = None
    """The precision that a report compared this one with, if it passes the gate. Vectors of both
    may stand side by side, so they have one fingerprint."""

    def __str__(self) -> str:
        """Return what the vectors depend on, for a fingerprint."""
        return f"{self.name} without {', '.join(self.excluded)}" if self.excluded else self.name


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """The engine, devices and precision that were chosen to run a model."""

    kind: EngineKind
    devices: tuple[str, ...]
    hardware: str
    """As in `EngineChoice`."""
    precision: ChosenPrecision
    gpus: tuple[Gpu, ...] = ()
    """As in `EngineChoice`."""
    tried: tuple[str, ...] = ()
    """With precision = "auto": what it could take here, best first (`engines.worthwhile`)."""
    version: str | None = None
    """As in `EngineChoice`."""
    memory: Memory = field(default_factory=Memory)
    """As in `EngineChoice`."""
    cpu_features: frozenset[str] = frozenset()
    """As in `EngineChoice`."""
    warning: str = ""
    """As in `EngineChoice`."""
    profile: Profile | None = None
    """How the engine computes; None: as its rule says."""
    is_by_layer: bool = False
    """Whether one layer of the model is in memory at a time: slow, and takes least memory. Only for
    `lower` of a kind that `can_by_layer`."""
    needs: object = None
    """What `check_memory` of its kind has returned, for `make` and `lower`; None: not asked."""

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.kind.name

    def threads_each(self, config: Config) -> int:
        """Return how many threads each device has: they share those of the options."""
        return max(1, config.num_threads // len(self.devices))


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One engine: its name, its abilities, and the functions that find and make it."""

    name: str
    """The value of the option `engine`."""
    precisions: tuple[str, ...]
    """Values of the option `precision` that it supports, fastest first (but see `fastest_with`).
    `auto` takes the last one without a fidelity report."""
    packages: tuple[str, ...]
    """Packages it computes with; fidelity reports record their versions."""
    device_types: tuple[DeviceType, ...]
    """The types of devices it supports."""
    find: Callable[[Config, Machine], EngineChoice]
    """Returns the devices that the options ask for; imports no library.

    Raises EngineUnavailableError, with the reason in one line, if the engine cannot run here."""
    check: Callable[[ModelSpec], None]
    """Raises EngineUnsupportedError, with the trait and its value, for a model it cannot run."""
    make: Callable[[EnginePlan, ModelFiles, Config], Engine]
    """Loads a model onto one device, `plan.devices[0]`; `plan.precision.folder` is the engine
    directory, or None for one of `computed_precisions`. Called once for each device of a plan."""
    check_devices: Callable[[Sequence[str], Sequence[Gpu]], None] | None = None
    """Raises EngineUnavailableError, with the reason in one line, if its library cannot use these
    devices; imports the library. Asked before weights are compiled. None: `make` raises instead."""
    computed_precisions: frozenset[str] = frozenset({"float32"})
    """Precisions computed from the model's own files; the weights of all others are an engine
    directory. Their fidelity reports are in the cache, see `models.compiled.report_cache`."""
    faster_with: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """CPU features by precision: with any of them it is faster than the last precision. A precision
    that is not named here is always faster. Those named are measured at the first load of a model,
    see `session.preparing`."""
    fastest_with: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """CPU features by precision: with any of them it is the fastest one."""
    check_memory: Callable[[EnginePlan, ModelFiles, Config], object] | None = None
    """Raises EngineUnavailableError for a device that lacks the memory or the precision for the
    model; returns `EnginePlan.needs`. None: `make` raises instead."""
    profile_key: Callable[[EnginePlan, ModelFiles, Config, Machine], ProfileKey] | None = None
    """Returns what a profile of a planned model is valid for; None: `embedlib tune` has nothing to
    vary."""
    choose_profile: Callable[[EnginePlan, ModelFiles, Config, Profile | None], Profile] | None = (
        None
    )
    """Returns how to compute: as the options say, then as was measured, then by rule. Given with
    `profile_key`."""
    describe_memory: Callable[[EnginePlan, ModelFiles, Config], str] | None = None
    """Returns one line: the memory that a model needs in the precision of a plan, and whether the
    process can have it. None: the engine has no estimate."""
    reads_packs: bool = True
    """Whether it reads an engine directory that is inside a pack."""
    can_per_token: bool = False
    """Whether it can return per-token vectors, for a spec without pooling."""
    can_splade: bool = False
    """Whether it computes the weights of a sparse model."""
    keeps_pooled_rows: bool = False
    """Whether it can keep `models.compiled.pooled_rows` out of FP8."""
    lower: Callable[[ModelSpec, Mapping[str, Any], EnginePlan, Config], Engine] | None = None
    """Makes an engine from weights in memory and writes nothing to disk; `fidelity` measures with
    it. None: the engine can only be made from files, by `make`."""
    can_by_layer: bool = False
    """Whether `lower` and `check_memory` follow `EnginePlan.is_by_layer`."""
    open_weights: Callable[[ModelFiles, Path, EnginePlan], Mapping[str, Any]] | None = None
    """Returns the weights of an engine directory for `lower`, to measure often on the first device
    of a plan."""
    searched_precisions: tuple[str, ...] = ()
    """Precisions in which `embedlib compile --fidelity` searches layers to exclude, on this engine;
    needs `lower` and `open_weights`. A process beside an Embedder searches in one after the other
    until one passes."""
    coarser_forms: Mapping[str, str] = field(default_factory=dict)
    """Precisions that are faster than another one of the same size and less accurate, and that
    other one. Layers of a coarser form are kept only if the other form does not pass either."""
    forget_process: Callable[[int, Config], None] | None = None
    """Called with the id of a process that embedlib itself has killed: it died of nothing that it
    was trying. None: the engine keeps no marks of trials."""
    check_emulation: Callable[[ModelSpec, Machine], None] | None = None
    """Raises EngineUnavailableError or EngineUnsupportedError if a model cannot be emulated on the
    CPU. None: the engine has no emulation."""
