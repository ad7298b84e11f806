"""What embedlib knows of an engine before it loads it: one row per engine, as a family is a row.

The rows of embedlib's own engines are in `engines/NAME/kind.py`; those of other packages come by
entry point. `engines.registry` reads both. Importing a row imports no engine and no library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.gpus import Gpu
    from embedlib.engines.machine import Machine
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec

DeviceType: TypeAlias = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and whether it can run on this machine."""

    name: str
    is_available: bool
    reason: str
    """Why it can or cannot be used; one line."""
    version: str | None = None
    """Version of the library it computes with, where that is installed."""
    devices: tuple[str, ...] = ()
    """What it would run on."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs of `devices`, in the same order; empty for an engine that uses none."""
    hardware: str = ""
    """What lower precisions are computed with. Two machines with the same value round alike, so a
    fidelity report made on one is valid on the other."""
    warning: str = ""
    """Logged when the engine is loaded: an option that it follows only in part."""


@dataclass(frozen=True, kw_only=True)
class ChosenPrecision:
    """A precision and where its weights are."""

    name: str
    excluded: tuple[str, ...] = ()
    """Roles of linear layers that stay in a higher precision, and `models.compiled.pooled_rows`."""
    folder: Path | None = None
    """The engine directory; None: not compiled yet, or the model's own files."""

    def __str__(self) -> str:
        """Return what decides the vectors, for a fingerprint."""
        return f"{self.name} without {', '.join(self.excluded)}" if self.excluded else self.name


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What runs a model: an engine, its devices and the precision."""

    kind: EngineKind
    devices: tuple[str, ...]
    hardware: str
    """As in `EngineChoice`."""
    precision: ChosenPrecision
    warning: str = ""
    """As in `EngineChoice`."""

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.kind.name


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One engine: what it is called, what it can do, and the functions that find and make it."""

    name: str
    """The value of the option `engine`."""
    precisions: tuple[str, ...]
    """Values of the option `precision` that it computes in, fastest first. `auto` takes the last
    one without a fidelity report. "float32" is read from the model's own files, every other one
    from an engine directory."""
    packages: tuple[str, ...]
    """Packages it computes with; fidelity reports record their versions."""
    device_types: tuple[DeviceType, ...]
    """What it computes on."""
    find: Callable[[Config, Machine], EngineChoice]
    """Returns the devices that the options ask for; imports no library.

    Raises EngineUnavailableError with the reason, one line, where the engine cannot be used."""
    check: Callable[[ModelSpec], None]
    """Raises EngineUnsupportedError, with the trait and its value, for a model it cannot run."""
    make: Callable[[EnginePlan, ModelFiles, Config], Engine]
    """Loads a model onto one device, `plan.devices[0]`; `plan.precision.folder` is the engine
    directory, or None for float32. Called once for each device of a plan."""
    check_memory: Callable[[EnginePlan, EngineChoice, ModelSpec, Config], None] | None = None
    """Raises EngineUnavailableError for a device that lacks the memory or the precision for the
    model; None: the engine fails in `make`."""
    can_per_token: bool = False
    """It can return one vector per token, for a spec without pooling."""
    keeps_pooled_rows: bool = False
    """It can keep `models.compiled.pooled_rows` out of FP8."""
    lower: Callable[[ModelSpec, Mapping[str, Any], EnginePlan, Config], Engine] | None = None
    """Makes an engine from weights in memory and writes nothing to disk; `fidelity` measures with
    it. None: the engine runs only what `make` loads."""
    open_weights: Callable[[ModelFiles, Path, str], Mapping[str, Any]] | None = None
    """Returns what `lower` takes, from an engine directory, for many measurements on one device."""
    searched_precision: str | None = None
    """The precision whose layers `embedlib compile --fidelity` searches on this engine; needs
    `lower` and `open_weights`."""
    check_emulation: Callable[[ModelSpec, Machine], None] | None = None
    """Raises EngineUnavailableError or EngineUnsupportedError where a model cannot be emulated on
    the CPU; None: the engine emulates nothing."""
