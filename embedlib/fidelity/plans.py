"""Plans what computes a precision here: an engine, or for FP8 without a GPU a CPU emulation."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import EngineKind, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.precision import choose_precision
from embedlib.engines.registry import OWN_KINDS, find_devices
from embedlib.engines.select import plan_engine
from embedlib.models.reading.files import ModelFiles

EMULATED: Final = "emulated on "
"""Prefix of an emulation's hardware. No GPU has such a name, so the report of an emulation is never
mistaken for the report of a GPU."""


def plan_measurement(files: ModelFiles, config: Config, machine: Machine) -> EnginePlan:
    """Return the plan of what computes `config.precision` on this machine.

    FP8 is emulated if no GPU of this machine has it, or if the device is "cpu".

    Args:
        files: the model.
        config: the options, with the precision to measure.
        machine: reports the hardware and packages of this machine.

    Raises:
        EngineUnavailableError: the emulation needs torch, which is not installed.
        EngineUnsupportedError: the model cannot be computed in FP8.
        what `plan_engine` raises.
    """
    emulating = _emulating_kind(config)
    if emulating is None or not _is_to_be_emulated(config, machine):
        return plan_engine(files, config, machine=machine)
    assert emulating.check_emulation is not None, "it can emulate; a bug in embedlib"
    emulating.check_emulation(files.spec, machine)  # reject now, not after minutes
    return _emulation(emulating, files, config)


def plan_reference(
    plan: EnginePlan, files: ModelFiles, config: Config, machine: Machine
) -> EnginePlan:
    """Return the plan for `config.precision` on the engine of `plan`.

    Raises:
        ConfigError: that engine does not have the precision.
        what `plan_engine` raises.
    """
    if is_emulated(plan.hardware):
        return _emulation(plan.kind, files, config)
    return plan_engine(files, replace(config, engine=plan.engine), machine=machine)


def is_emulated(hardware: str) -> bool:
    """Return whether the hardware of a plan or report is an emulation."""
    return hardware.startswith(EMULATED)


def _emulation(kind: EngineKind, files: ModelFiles, config: Config) -> EnginePlan:
    """Return a plan for the CPU in which the engine rounds as it does on a GPU."""
    hardware = EMULATED + platform.machine()
    return EnginePlan(
        kind=kind,
        devices=("cpu",),
        hardware=hardware,
        precision=choose_precision(kind, hardware, files, config),
    )


def _emulating_kind(config: Config) -> EngineKind | None:
    """Return the engine that the options allow and that can emulate FP8 on the CPU, if any."""
    for kind in OWN_KINDS:
        if kind.check_emulation is not None and config.engine in ("auto", kind.name):
            return kind
    return None


def _is_to_be_emulated(config: Config, machine: Machine) -> bool:
    if config.precision != "fp8":
        return False
    if config.devices:
        return config.devices == ("cpu",)
    choices = [find_devices(kind, config, machine) for kind in OWN_KINDS]
    return not any(gpu.has_fp8 for choice in choices for gpu in choice.gpus)
