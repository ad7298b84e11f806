"""Which engine runs a model here, on which devices and in which precision."""

from __future__ import annotations

import logging
from typing import Final

from embedlib.config import Config
from embedlib.engines.gpus import Gpu, check_room, needed_bytes
from embedlib.engines.make import EnginePlan
from embedlib.engines.precision import (
    ENGINE_PRECISIONS,
    ChosenPrecision,
    check_precision,
    choose_precision,
)
from embedlib.engines.registry import EngineChoice, available_engines, version_text
from embedlib.errors import ConfigError, EngineError, EngineUnavailableError
from embedlib.models.compiled.engine_folder import Manifest
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.reading.files import ModelFiles

MIN_FP8_CAPABILITY: Final = (8, 9)
"""FP8 in the matrix units of a GPU, which came with Ada."""


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
    if POOLED_ROWS in manifest.excluded:
        raise ConfigError(
            f"{files.folder} was compiled with {POOLED_ROWS}, which take the model's own weights "
            "as well; give the model it was made from"
        )
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
    elif choice.name == "cuda":
        from embedlib.engines.cuda.lowering import build_plan

        build_plan(files.spec)
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
            f"{version_text(gpu.compute_capability)}, FP8 needs "
            f"{version_text(MIN_FP8_CAPABILITY)}); precision = 'bf16' runs on it"
        )
    tokens = batch_tokens(files.spec, config.max_batch_tokens)
    needed = needed_bytes(files.spec, precision.name, precision.excluded, tokens)
    try:
        check_room(gpu, needed, config.gpu_memory_fraction)
    except EngineUnavailableError as error:
        raise EngineUnavailableError(f"{device}: {error}") from error
