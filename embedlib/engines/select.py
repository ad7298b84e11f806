"""Which engine runs a model here, on which devices and in which precision, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.engine_folder import Manifest
from embedlib.engines.gpus import Gpu, check_room, list_gpus, needed_bytes
from embedlib.engines.int8 import int8_hardware
from embedlib.engines.many import ManyEngines
from embedlib.engines.precision import (
    ENGINE_PRECISIONS,
    NOT_COMPILED,
    ChosenPrecision,
    check_precision,
    choose_precision,
    compiled_weights,
)
from embedlib.errors import (
    ConfigError,
    EngineError,
    EngineUnavailableError,
    EngineUnsupportedError,
)
from embedlib.models.files import ModelFiles
from embedlib.models.heads import AnswerRows

_Check = Callable[[Config], "EngineChoice"]
"""Raises where the engine cannot be used."""

MIN_CAPABILITY: Final = (8, 0)
"""Of a GPU: bfloat16 in its matrix units, which came with Ampere."""
MIN_FP8_CAPABILITY: Final = (8, 9)
"""FP8 in its matrix units, which came with Ada."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and whether it can run here."""

    name: str
    is_available: bool
    reason: str
    """Why it can or cannot be used; one line."""
    version: str | None = None
    """Of the library it stands on, where that is installed."""
    devices: tuple[str, ...] = ()
    """What it would run on."""
    gpus: tuple[Gpu, ...] = ()
    """What the devices are, where they are GPUs."""
    hardware: str = ""
    """What lower precisions are computed with; vectors of two of the same name are alike."""


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What runs a model."""

    engine: str
    devices: tuple[str, ...]
    hardware: str
    """As `EngineChoice` has it."""
    precision: ChosenPrecision


def available_engines(config: Config | None = None) -> list[EngineChoice]:
    """Return every engine, fastest first, with whether it can run here; imports none of them.

    Args:
        config: the devices that are wanted; None: the default options.
    """
    config = config or Config()
    later = "not part of this version of embedlib"
    return [
        _checked("tensorrt_llm", _tensorrt_llm, config),
        EngineChoice(name="cuda", is_available=False, reason=later),
        _checked("openvino", _openvino, config),
    ]


def choose_engine(config: Config) -> EngineChoice:
    """Return the engine for these options, whatever the model.

    Raises:
        ConfigError: the wanted engine does not have the wanted precision.
        EngineUnavailableError: the wanted engine or device cannot be used here.
    """
    return _candidates(config)[0]


def plan_engine(files: ModelFiles, config: Config, manifest: Manifest | None = None) -> EnginePlan:
    """Return the engine, devices and precision for a model.

    With engine = "auto" an engine that cannot run this model is passed over.

    Args:
        files: the model, or an engine directory.
        config: the options.
        manifest: of the engine directory, where it is one.

    Raises:
        ConfigError: the engine does not have the wanted precision.
        EngineUnavailableError: no engine for the model can be used here.
        EngineUnsupportedError: the wanted engine cannot run this model.
    """
    if manifest is not None:
        _check_compiled(files, config, manifest)
    candidates = _candidates(config, manifest)
    for choice in candidates:
        try:
            return _plan(choice, files, config, manifest)
        except EngineError as error:
            if choice is candidates[-1]:
                raise
            logging.getLogger(__name__).info("engine %s is not used: %s", choice.name, error)
    raise AssertionError("the last candidate returns or raises")


def make_engine(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Load a model's weights into the planned engine.

    Raises:
        ModelWeightsError: the weights do not fit the model.
        EngineBuildError: compiling failed.
    """
    folder = None
    if plan.precision.name != NOT_COMPILED:
        folder = compiled_weights(plan.precision, files, config)
    if "all" in config.devices and plan.engine == "tensorrt_llm" and len(list_gpus()) > 1:
        logging.getLogger(__name__).warning(
            "device = 'all': TensorRT-LLM works on one GPU of a process, %s; start a process for "
            "each of the others, with CUDA_VISIBLE_DEVICES",
            plan.devices[0],
        )
    engines: list[tuple[str, Engine]] = []
    try:
        for device in plan.devices:
            if plan.engine == "openvino":
                engine = _make_openvino(folder, files, config, len(plan.devices))
            else:
                engine = _make_tensorrt_llm(folder, plan, files, config)
            engines.append((device, engine))
    except BaseException:
        for _, engine in engines:
            engine.close()
        raise
    return engines[0][1] if len(engines) == 1 else ManyEngines(engines)


def _candidates(config: Config, manifest: Manifest | None = None) -> list[EngineChoice]:
    """Return the engines that these options allow and that can run here; never none."""
    names = [name for name in ENGINE_PRECISIONS if config.engine in ("auto", name)]
    if config.engine == "auto" and config.precision != "auto":
        names = [name for name in names if config.precision in ENGINE_PRECISIONS[name]]
    elif config.engine != "auto":
        check_precision(config.engine, config)
    what = f"engine = {config.engine!r}"
    if manifest is not None and not _is_model(manifest):
        names = [name for name in names if manifest.precision in ENGINE_PRECISIONS[name]]
        what = f"a model compiled to {manifest.precision}"
    wanted = [choice for choice in available_engines(config) if choice.name in names]
    usable = [choice for choice in wanted if choice.is_available]
    if usable:
        return usable
    reasons = "; ".join(f"{choice.name}: {choice.reason}" for choice in wanted)
    if config.precision != "auto":
        what += f", precision = {config.precision!r}"
    if config.devices:
        what += f", device = {','.join(config.devices)!r}"
    raise EngineUnavailableError(f"{what} cannot be used here: {reasons}")


def _check_compiled(files: ModelFiles, config: Config, manifest: Manifest) -> None:
    """Refuse an engine and a precision that an engine directory was not made for."""
    if _is_model(manifest):
        return
    if config.precision not in ("auto", manifest.precision):
        raise ConfigError(
            f"precision = {config.precision!r}: {files.folder} was compiled to "
            f"{manifest.precision}; give the model it was made from, or leave precision out"
        )
    if config.engine != "auto" and manifest.precision not in ENGINE_PRECISIONS[config.engine]:
        raise ConfigError(
            f"engine = {config.engine!r} cannot run {files.folder}, which was compiled to "
            f"{manifest.precision}; give the model it was made from, or leave engine out"
        )


def _is_model(manifest: Manifest) -> bool:
    """Whether an engine directory is a model like any other, only with other numbers."""
    return manifest.precision == "bf16"


def _plan(
    choice: EngineChoice, files: ModelFiles, config: Config, manifest: Manifest | None
) -> EnginePlan:
    if choice.name == "tensorrt_llm":
        from embedlib.engines.tensorrt_llm.support import check_supported

        check_supported(files.spec)
    precision = choose_precision(choice.name, choice.hardware, files, config, manifest)
    for device, gpu in zip(choice.devices, choice.gpus, strict=False):
        _check_gpu(device, gpu, precision, files, config)
    return EnginePlan(
        engine=choice.name,
        devices=choice.devices,
        hardware=choice.hardware,
        precision=precision,
    )


def _check_gpu(
    device: str, gpu: Gpu, precision: ChosenPrecision, files: ModelFiles, config: Config
) -> None:
    """Refuse a GPU that lacks the precision or the memory.

    Raises:
        EngineUnavailableError: it does.
    """
    from embedlib.engines.tensorrt_llm.support import batch_tokens

    if precision.name == "fp8" and gpu.compute_capability < MIN_FP8_CAPABILITY:
        raise EngineUnavailableError(
            f"{device}: {gpu.name} has no FP8 (compute capability "
            f"{_version(gpu.compute_capability)}, FP8 needs {_version(MIN_FP8_CAPABILITY)}); "
            "precision = 'bf16' runs on it"
        )
    tokens = batch_tokens(files.spec, config.max_batch_tokens)
    needed = needed_bytes(files.spec, precision.name, precision.excluded, tokens)
    try:
        check_room(gpu, needed, config.gpu_memory_fraction)
    except EngineUnavailableError as error:
        raise EngineUnavailableError(f"{device}: {error}") from error


def _make_openvino(
    folder: Path | None, files: ModelFiles, config: Config, num_engines: int
) -> Engine:
    # Imported only now: an engine's library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.models.weights import load_weights

    weights: Mapping[str, Any]
    if folder is None:
        weights = load_weights(files)
    else:
        from embedlib.engines.compiled import int8_weights

        weights = int8_weights(folder)
        if files.folder != folder:  # what the directory lacks: a head made of answers' rows
            weights = ChainMap(cast(Any, weights), cast(Any, load_weights(files)))
        elif any(isinstance(place, AnswerRows) for place in files.module_tensors.values()):
            raise EngineUnsupportedError(
                f"{folder} has no head, a compiled model that answers in words has none; give the "
                "model it was made from, with precision = 'int8'"
            )
    return OpenVINOEngine(
        files.spec,
        weights,
        threads=max(1, config.num_threads // num_engines),
        max_batch_tokens=config.max_batch_tokens,
        max_inflight_bulk=config.max_inflight_batches,
        cache_dir=config.engine_cache_path / "openvino",
    )


def _make_tensorrt_llm(
    folder: Path | None, plan: EnginePlan, files: ModelFiles, config: Config
) -> Engine:
    from embedlib.engines.tensorrt_llm.engine import TensorRTLLMEngine

    assert folder is not None, "this engine reads engine directories; this is a bug in embedlib"
    return TensorRTLLMEngine(
        files,
        folder,
        excluded=plan.precision.excluded,
        max_batch_tokens=config.max_batch_tokens,
        max_inflight_bulk=config.max_inflight_batches,
        gpu_memory_fraction=config.gpu_memory_fraction,
        cache_dir=config.engine_cache_path / "tensorrt_llm",
    )


def _checked(name: str, check: _Check, config: Config) -> EngineChoice:
    """Return an engine's choice from a function that raises where it cannot be used."""
    try:
        return check(config)
    except EngineUnavailableError as error:
        return EngineChoice(name=name, is_available=False, reason=str(error))


def _openvino(config: Config) -> EngineChoice:
    if importlib.util.find_spec("openvino") is None:
        raise EngineUnavailableError("the package openvino is missing; pip install openvino")
    wanted = config.devices or ("cpu",)
    others = [name for name in wanted if name not in ("cpu", "all")]
    if others:
        raise EngineUnavailableError(f"it computes on the CPU, not on {', '.join(others)}")
    return EngineChoice(
        name="openvino",
        is_available=True,
        reason="runs on any x86-64 or ARM CPU, in float32 or int8",
        version=importlib.metadata.version("openvino"),
        devices=("cpu",) if "all" in wanted else wanted,
        hardware=int8_hardware(),
    )


def _tensorrt_llm(config: Config) -> EngineChoice:
    from embedlib.engines.tensorrt_llm.support import check_version

    if importlib.util.find_spec("tensorrt_llm") is None:
        raise EngineUnavailableError(
            "the package tensorrt-llm is missing; pip install 'embedlib[trtllm]' with NVIDIA's "
            "package index, see docs/engines.md"
        )
    try:
        version = importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    check_version(version)
    gpus = list_gpus()
    _check_gpus(gpus, config.devices)
    others = f", one of {len(gpus)} GPUs here" if len(gpus) > 1 else ""
    return EngineChoice(
        name="tensorrt_llm",
        is_available=True,
        reason=f"runs on cuda:0, {gpus[0].name}{others}, in FP8 or bfloat16",
        version=version,
        devices=("cuda:0",),
        gpus=(gpus[0],),
        hardware=gpus[0].name,
    )


def _check_gpus(gpus: Sequence[Gpu], wanted: Sequence[str]) -> None:
    """Refuse all but the first visible GPU of the process, where `LLM.encode` works.

    Raises:
        EngineUnavailableError: there is none, it is too old, or another one was asked for.
    """
    if not gpus:
        raise EngineUnavailableError(
            "no NVIDIA GPU was found (nvidia-smi and CUDA_VISIBLE_DEVICES leave none)"
        )
    for name in wanted:
        if name == "cpu":
            raise EngineUnavailableError("it computes on NVIDIA GPUs, not on cpu")
        if name != "all" and _gpu_index(name) >= len(gpus):
            raise EngineUnavailableError(
                f"there is no {name}; this process sees {len(gpus)} GPUs, from cuda:0 on"
            )
        if name not in ("all", "cuda", "cuda:0") or len(wanted) > 1:
            raise EngineUnavailableError(
                "it works on one GPU of a process, the first visible one; set "
                f"CUDA_VISIBLE_DEVICES={_gpu_index(name)} and leave device out"
            )
    if gpus[0].compute_capability < MIN_CAPABILITY:
        raise EngineUnavailableError(
            f"{gpus[0].name} is too old: compute capability "
            f"{_version(gpus[0].compute_capability)}, at least {_version(MIN_CAPABILITY)} is needed"
        )


def _gpu_index(device: str) -> int:
    """Return N of `cuda:N`; `cuda` is the first."""
    return int(device.partition(":")[2] or 0)


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
