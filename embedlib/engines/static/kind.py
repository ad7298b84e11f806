"""The row of the engine of static models; imports no library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.errors import EngineUnavailableError, EngineUnsupportedError

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec

NAME: Final = "static"


def find(config: Config, machine: Machine) -> EngineChoice:
    """Return the device "cpu".

    Raises:
        EngineUnavailableError: the options name another device.
    """
    others = [name for name in config.devices if name not in ("cpu", "all")]
    if others:
        raise EngineUnavailableError(
            f"a static model is computed on the CPU, not on {', '.join(others)}; leave device out"
        )
    return EngineChoice(
        name=NAME,
        is_available=True,
        reason="looks up the rows of a static model with numpy",
        version=machine.version("numpy"),
        devices=("cpu",),
    )


def check(spec: ModelSpec) -> None:
    """Refuse a transformer.

    Raises:
        EngineUnsupportedError: the model has layers.
    """
    if not spec.encoder.is_table:
        raise EngineUnsupportedError(
            f"engine static cannot run this {spec.encoder.family} model: it has "
            f"{spec.encoder.num_layers} layers"
        )


def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Map the table; one that is stored in another type than float32 is converted."""
    from embedlib.models.weights.load import load_weights

    return lower(files.spec, load_weights(files), plan, config)


def lower(spec: ModelSpec, weights: Mapping[str, Any], plan: EnginePlan, config: Config) -> Engine:
    """Make an engine from weights in memory."""
    from embedlib.engines.static.engine import StaticEngine

    del plan
    return StaticEngine(spec, weights, max_batch_tokens=config.max_batch_tokens)


KIND: Final = EngineKind(
    name=NAME,
    precisions=("float32",),
    packages=("numpy",),
    device_types=("cpu",),
    find=find,
    check=check,
    make=make,
    can_per_token=True,
    lower=lower,
)
