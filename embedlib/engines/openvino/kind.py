"""The row of the CPU engine; imports no openvino."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from embedlib.engines.kind import EngineChoice, EngineKind
from embedlib.errors import EngineUnavailableError, EngineUnsupportedError

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.engines.base import Engine
    from embedlib.engines.kind import EnginePlan
    from embedlib.engines.machine import Machine
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import ModelSpec

NAME: Final = "openvino"


def find(config: Config, machine: Machine) -> EngineChoice:
    """Return the device "cpu", as many times as the options list it.

    Raises:
        EngineUnavailableError: the package is missing, or the options name another device.
    """
    if not machine.has_module("openvino"):
        raise EngineUnavailableError("the package openvino is missing; pip install openvino")
    wanted = config.devices or ("cpu",)
    others = [name for name in wanted if name not in ("cpu", "all")]
    if others:
        raise EngineUnavailableError(f"it computes on the CPU, not on {', '.join(others)}")
    return EngineChoice(
        name=NAME,
        is_available=True,
        reason="runs on any x86-64 or ARM CPU, in float32 or int8",
        version=machine.version("openvino"),
        devices=("cpu",) if "all" in wanted else wanted,
        hardware=machine.int8_hardware(),
    )


def check(spec: ModelSpec) -> None:
    """Accept every model: this engine is the reference and has every trait of a spec."""


def make(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Compile the graph with the model's own weights, or with those of an engine directory.

    Raises:
        EngineUnsupportedError: the engine directory lacks the head.
        EngineBuildError: OpenVINO cannot compile the graph.
    """
    # A late import: the library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine

    return OpenVINOEngine(
        files.spec,
        _weights(plan.precision.folder, files),
        threads=config.num_threads,
        max_batch_tokens=config.max_batch_tokens,
        max_inflight_bulk=config.max_inflight_batches,
        cache_dir=config.engine_cache_path / NAME,
    )


def _weights(folder: Path | None, files: ModelFiles) -> Mapping[str, Any]:
    from embedlib.models.reading.head_modules import AnswerRows
    from embedlib.models.weights.load import load_weights

    if folder is None:
        return load_weights(files)
    from embedlib.models.compiled.cache import int8_weights

    weights = int8_weights(folder)
    if files.folder != folder:
        # The directory lacks a head that is made of the rows of the answer words.
        return ChainMap(cast(Any, weights), cast(Any, load_weights(files)))
    if any(isinstance(place, AnswerRows) for place in files.module_tensors.values()):
        raise EngineUnsupportedError(
            f"{folder} has no head, a compiled model that answers in words has none; give the "
            "model it was made from, with precision = 'int8'"
        )
    return weights


def lower(spec: ModelSpec, weights: Mapping[str, Any], plan: EnginePlan, config: Config) -> Engine:
    """Compile the graph with weights in memory; caches no compiled graph on disk."""
    from embedlib.engines.openvino.engine import OpenVINOEngine

    return OpenVINOEngine(
        spec,
        weights,
        threads=config.num_threads,
        max_batch_tokens=config.max_batch_tokens,
        cache_dir=None,
    )


def open_weights(files: ModelFiles, folder: Path, device: str) -> Mapping[str, Any]:
    """Map the weights of an int8 engine directory."""
    from embedlib.models.compiled.cache import int8_weights

    return int8_weights(folder)


KIND: Final = EngineKind(
    name=NAME,
    precisions=("int8", "float32"),
    packages=("openvino",),
    device_types=("cpu",),
    find=find,
    check=check,
    make=make,
    can_per_token=True,
    lower=lower,
    open_weights=open_weights,
    searched_precision="int8",
)
