"""Which engine runs a model here, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.errors import EngineUnavailableError
from embedlib.models.files import ModelFiles


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine and whether it can run here."""

    name: str
    is_available: bool
    reason: str
    """Why it can or cannot be used; one line."""
    version: str | None = None
    """Of the library it stands on, where that is installed."""


def available_engines() -> list[EngineChoice]:
    """Return every engine, fastest first, with whether it can run here; imports none of them."""
    later = "not part of this version of embedlib"
    return [
        EngineChoice(name="tensorrt_llm", is_available=False, reason=later),
        EngineChoice(name="cuda", is_available=False, reason=later),
        _openvino(),
    ]


def choose_engine(config: Config) -> EngineChoice:
    """Return the engine for these options.

    Raises:
        EngineUnavailableError: the wanted engine or device cannot be used here.
    """
    engines = available_engines()
    if config.device not in (None, "cpu"):
        raise EngineUnavailableError(
            f"device = {config.device!r}: this version of embedlib computes on the CPU only; "
            "leave device out"
        )
    wanted = [choice for choice in engines if config.engine in ("auto", choice.name)]
    for choice in wanted:
        if choice.is_available:
            return choice
    reasons = "; ".join(f"{choice.name}: {choice.reason}" for choice in wanted)
    raise EngineUnavailableError(f"engine = {config.engine!r} cannot be used here: {reasons}")


def make_engine(choice: EngineChoice, files: ModelFiles, config: Config) -> Engine:
    """Load a model's weights into the chosen engine.

    Raises:
        ModelWeightsError: the weights do not fit the model.
        EngineUnsupportedError: the engine cannot run this model.
        EngineBuildError: compiling failed.
    """
    # Imported only now: an engine's library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine
    from embedlib.models.weights import load_weights

    assert choice.name == "openvino", f"no engine {choice.name}; this is a bug in embedlib"
    return OpenVINOEngine(
        files.spec,
        load_weights(files),
        threads=config.num_threads,
        max_batch_tokens=config.max_batch_tokens,
        max_inflight_bulk=config.max_inflight_batches,
        cache_dir=config.engine_cache_path / "openvino",
    )


def _openvino() -> EngineChoice:
    if importlib.util.find_spec("openvino") is None:
        reason = "the package openvino is missing; pip install openvino"
        return EngineChoice(name="openvino", is_available=False, reason=reason)
    return EngineChoice(
        name="openvino",
        is_available=True,
        reason="runs on any x86-64 or ARM CPU, in float32",
        version=importlib.metadata.version("openvino"),
    )
