"""A planned engine with its weights: the constructors of all engines in one place."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.gpus import list_gpus
from embedlib.engines.many import ManyEngines
from embedlib.engines.precision import NOT_COMPILED, ChosenPrecision, compiled_weights
from embedlib.errors import EngineUnsupportedError
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.head_modules import AnswerRows


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What runs a model."""

    engine: str
    devices: tuple[str, ...]
    hardware: str
    """As `EngineChoice` has it."""
    precision: ChosenPrecision


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
            elif plan.engine == "cuda":
                engine = _make_cuda(folder, device, plan, files, config)
            else:
                engine = _make_tensorrt_llm(folder, plan, files, config)
            engines.append((device, engine))
    except BaseException:
        for _, engine in engines:
            engine.close()
        raise
    return engines[0][1] if len(engines) == 1 else ManyEngines(engines)


def _make_openvino(
    folder: Path | None, files: ModelFiles, config: Config, num_engines: int
) -> Engine:
    # Imported only now: an engine's library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.models.weights.load import load_weights

    weights: Mapping[str, Any]
    if folder is None:
        weights = load_weights(files)
    else:
        from embedlib.models.compiled.cache import int8_weights

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


def _make_cuda(
    folder: Path | None, device: str, plan: EnginePlan, files: ModelFiles, config: Config
) -> Engine:
    from embedlib.engines.cuda.engine import CudaEngine
    from embedlib.engines.cuda.engine_directory import open_weights
    from embedlib.models.weights.load import load_weights

    assert folder is not None, "this engine reads engine directories; this is a bug in embedlib"
    weights: Mapping[str, Any] = open_weights(files, folder)
    if POOLED_ROWS in plan.precision.excluded:
        # They want layers in both precisions, and rounded at load FP8 is the directory's own.
        weights = load_weights(files)
    return CudaEngine(
        files.spec,
        weights,
        precision=cast(Any, plan.precision.name),
        excluded=plan.precision.excluded,
        device=device,
        max_batch_tokens=config.max_batch_tokens,
        max_inflight_bulk=config.max_inflight_batches,
        memory_fraction=config.gpu_memory_fraction,
    )
