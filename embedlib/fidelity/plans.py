"""What computes a precision here: an engine, or for FP8 without a GPU its emulation on the CPU."""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import replace
from typing import Final, cast

from embedlib.config import Config, EngineName
from embedlib.engines.make import EnginePlan
from embedlib.engines.precision import choose_precision
from embedlib.engines.registry import available_engines
from embedlib.engines.select import MIN_FP8_CAPABILITY, plan_engine
from embedlib.errors import EngineUnavailableError
from embedlib.models.reading.files import ModelFiles

EMULATING_ENGINE: Final = "cuda"
"""On the CPU it computes in plain torch, and rounds where it rounds on a GPU."""
EMULATED: Final = "emulated on "
"""How the hardware of an emulation begins. No GPU is called so: no report of an emulation is taken
for one of a GPU."""


def plan_measurement(files: ModelFiles, config: Config) -> EnginePlan:
    """Return what computes `config.precision` here.

    FP8 is emulated where no GPU here has it, or where the CPU is asked for.

    Raises:
        EngineUnavailableError: torch is missing, which emulates.
        EngineUnsupportedError: the model cannot be computed in FP8.
        what `plan_engine` raises.
    """
    if not _is_to_be_emulated(config):
        return plan_engine(files, config)
    if importlib.util.find_spec("torch") is None:
        raise EngineUnavailableError(
            "precision = 'fp8': no GPU that has it was found, and emulating it takes the package "
            "torch, which is missing; pip install torch"
        )
    # Imported only now: it is of one engine.
    from embedlib.engines.cuda.lowering import build_plan, linear_roles

    build_plan(files.spec, linear_roles(files.spec.encoder))  # refused now, not after minutes
    return _emulation(files, config)


def plan_reference(plan: EnginePlan, files: ModelFiles, config: Config) -> EnginePlan:
    """Return what computes `config.precision` where `plan` computes another one.

    Raises:
        ConfigError: that engine does not have the precision.
        what `plan_engine` raises.
    """
    if is_emulated(plan.hardware):
        return _emulation(files, config)
    return plan_engine(files, replace(config, engine=cast(EngineName, plan.engine)))


def is_emulated(hardware: str) -> bool:
    """Whether the hardware of a plan or report is an emulation."""
    return hardware.startswith(EMULATED)


def _emulation(files: ModelFiles, config: Config) -> EnginePlan:
    hardware = EMULATED + platform.machine()
    return EnginePlan(
        engine=EMULATING_ENGINE,
        devices=("cpu",),
        hardware=hardware,
        precision=choose_precision(EMULATING_ENGINE, hardware, files, config, None),
    )


def _is_to_be_emulated(config: Config) -> bool:
    if config.precision != "fp8" or config.engine not in ("auto", EMULATING_ENGINE):
        return False
    if config.devices:
        return config.devices == ("cpu",)
    gpus = [
        gpu for choice in available_engines(config) if choice.is_available for gpu in choice.gpus
    ]
    return not any(gpu.compute_capability >= MIN_FP8_CAPABILITY for gpu in gpus)
