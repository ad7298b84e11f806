"""The table of engines: embedlib's own rows in the order of `auto`, then those of other packages.

Another package adds an engine by an entry point of the group `embedlib.engines`: its name is the
engine's, its value an `EngineKind`. The package is imported only when that engine is named or
listed; `auto` chooses among embedlib's own engines only. So installing a package never changes the
engine of an existing program, and a broken package leaves the other engines usable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import EntryPoint
from typing import Final

from embedlib.config import Config
from embedlib.engines.cuda.kind import KIND as CUDA
from embedlib.engines.gpus import Gpu
from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.engines.machine import Machine, package_of
from embedlib.engines.openvino.kind import KIND as OPENVINO
from embedlib.engines.tensorrt_llm.kind import KIND as TENSORRT_LLM
from embedlib.errors import ConfigError, EngineUnavailableError

OWN_KINDS: Final[tuple[EngineKind, ...]] = (TENSORRT_LLM, CUDA, OPENVINO)
"""In the order of `auto`, fastest first."""


def available_engines(machine: Machine | None = None) -> list[EngineChoice]:
    """Return every engine, fastest first, and whether it can run here; imports no engine.

    Args:
        machine: what the machine has; None: this machine.
    """
    config, machine = Config(), machine or Machine()
    own = [find_devices(kind, config, machine) for kind in OWN_KINDS]
    names = dict.fromkeys(point.name for point in machine.plugins)
    return [*own, *(_plugin_choice(name, config, machine) for name in names)]


def engine_names(machine: Machine | None = None) -> tuple[str, ...]:
    """Return the values of the option `engine`; imports no other package."""
    own = ("auto", *(kind.name for kind in OWN_KINDS))
    return tuple(dict.fromkeys([*own, *(point.name for point in (machine or Machine()).plugins)]))


def find_kind(name: str, machine: Machine) -> EngineKind:
    """Return the row of an engine; imports the package that adds it.

    Raises:
        ConfigError: there is no engine of this name.
        EngineUnavailableError: two packages add it, or the package is broken; the message is only
            the reason, which follows the engine's name.
    """
    points = [point for point in machine.plugins if point.name == name]
    own = next((kind for kind in OWN_KINDS if kind.name == name), None)
    if own is None and not points:
        names = ", ".join(engine_names(machine))
        raise ConfigError(f"engine = {name!r}; it must be one of {names}")
    _check_unique(name, own, points)
    return own or _load(points[0])


def find_devices(kind: EngineKind, config: Config, machine: Machine) -> EngineChoice:
    """Return the devices of an engine, or the reason why it cannot run here."""
    if kind.name in machine.refused:
        return _unavailable(kind.name, machine.refused[kind.name])
    try:
        return kind.find(config, machine)
    except EngineUnavailableError as error:
        return _unavailable(kind.name, str(error))
    except Exception as error:
        if kind in OWN_KINDS:
            raise
        reason = f"its find() failed: {_one_line(error)}; report it to the authors of the engine"
        return _unavailable(kind.name, reason)


def check_devices(
    kind: EngineKind, devices: Sequence[str], gpus: Sequence[Gpu], machine: Machine
) -> None:
    """Check that the library of an engine can use its devices; imports the library.

    Raises:
        EngineUnavailableError: it cannot, though the driver lists them.
    """
    if kind.check_devices is not None:
        machine.ask_library(partial(kind.check_devices, devices, gpus))


def without_unusable(machine: Machine) -> Machine:
    """Return a machine without embedlib's own engines whose libraries cannot use its devices.

    It imports the libraries of all engines that it does not rule out otherwise.
    """
    config = Config()
    for kind in OWN_KINDS:
        choice = find_devices(kind, config, machine)
        if not choice.is_available:
            continue
        try:
            check_devices(kind, choice.devices, choice.gpus, machine)
        except EngineUnavailableError as error:
            machine = machine.without(kind.name, str(error))
    return machine


def _plugin_choice(name: str, config: Config, machine: Machine) -> EngineChoice:
    try:
        kind = find_kind(name, machine)
    except EngineUnavailableError as error:
        return _unavailable(name, str(error))
    return find_devices(kind, config, machine)


def _unavailable(name: str, reason: str) -> EngineChoice:
    return EngineChoice(name=name, is_available=False, reason=reason)


def _check_unique(name: str, own: EngineKind | None, points: Sequence[EntryPoint]) -> None:
    packages = [package_of(point) for point in points]
    if own is not None and packages:
        raise EngineUnavailableError(
            f"the package {packages[0]} brings an engine of the name {name!r} too, which is "
            f"embedlib's own; pip uninstall {packages[0]}"
        )
    if len(packages) > 1:
        raise EngineUnavailableError(
            f"the packages {' and '.join(packages)} each bring an engine of this name; uninstall "
            "all but one"
        )


def _load(point: EntryPoint) -> EngineKind:
    """Import the package and return its row.

    Raises:
        EngineUnavailableError: it cannot be imported, or the value is not a row of this name.
    """
    package = package_of(point)
    try:
        kind = point.load()
    except Exception as error:  # whatever the package's import raises
        raise EngineUnavailableError(
            f"the package {package} cannot be imported: {_one_line(error)}; upgrade or uninstall it"
        ) from error
    if not isinstance(kind, EngineKind):
        raise _broken(point, f"is a {type(kind).__name__} and must be an EngineKind")
    if kind.name != point.name:
        raise _broken(point, f"has the name {kind.name!r}, and its entry point {point.name!r}")
    return kind


def _broken(point: EntryPoint, problem: str) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"the package {package_of(point)} is broken: {point.value} {problem}; upgrade or uninstall "
        "it"
    )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
