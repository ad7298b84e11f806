"""`verify`: what a model loses in a precision on this machine."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Literal

from embedlib.config import Config
from embedlib.engines.checkpoint import quantized_layers
from embedlib.engines.engine_folder import model_fingerprint
from embedlib.engines.fidelity_report import write_report
from embedlib.engines.precision import compiled_weights
from embedlib.engines.select import make_engine, plan_engine
from embedlib.errors import ConfigError
from embedlib.fidelity.compare import Comparison, Embedded, Subject, compare, embed
from embedlib.fidelity.embedders import (
    ALONE,
    CPU_ENGINE,
    around_engine,
    on_cpu,
    through_fp8,
    versions,
)
from embedlib.fidelity.texts import FidelityTexts, built_in_texts
from embedlib.models.files import ModelFiles, read_model_files
from embedlib.models.hub import resolve
from embedlib.models.weights import load_weights

Reference = Literal["float32", "bf16"]
FP8_WEIGHTS = "fp8 weights, activations not rounded, emulated in float32"


def verify(
    model: str | PathLike[str],
    *,
    texts: FidelityTexts | None = None,
    reference: Reference = "float32",
    config: Config | None = None,
) -> Comparison:
    """Measure the precision that an Embedder with these options computes in.

    A compiled model that is missing is made. The report is stored with the compiled model, in the
    place of an older one: with precision "auto" an Embedder then takes or leaves it.

    Args:
        model: a folder, a hub name, or `package:NAME`.
        texts: what to embed; None: the built-in ones.
        reference: what is taken for right: "float32" on the CPU, or "bf16" on the engine that is
            measured, where float32 would take hours.
        config: the options, with the precision to measure.

    Raises:
        ConfigError: the precision is "auto" or "float32", or the engine does not have it.
        EngineUnavailableError: no engine of this precision can run here.
        what `Embedder` raises.
    """
    config = config or Config()
    if config.precision in ("auto", "float32"):
        raise ConfigError(
            f"precision = {config.precision!r}: give the one to measure: int8, fp8 or bf16"
        )
    files = _read_files(model, config)
    plan = plan_engine(files, config)
    texts = texts or built_in_texts(files.spec.max_seq_tokens)
    right = _reference(files, texts, reference, config)
    folder = compiled_weights(plan.precision, files, config)
    plan = replace(plan, precision=replace(plan.precision, folder=folder))
    if plan.engine == CPU_ENGINE:
        config = replace(config, max_batch_tokens=ALONE)
    with around_engine(make_engine(plan, files, config), files, config) as embedder:
        found = embed(embedder, texts)
    subject = Subject(
        fingerprint=model_fingerprint(files),
        engine=plan.engine,
        precision=plan.precision.name,
        excluded=tuple(sorted(plan.precision.excluded)),
        reference=reference,
        versions=versions(plan.engine),
    )
    comparison = compare(right, found, texts, subject)
    write_report(folder, comparison.report)
    return comparison


def emulate_fp8(
    model: str | PathLike[str], *, texts: FidelityTexts | None = None, config: Config | None = None
) -> Comparison:
    """Measure what rounding the weights to FP8 does, on a CPU, without an engine for FP8.

    An engine rounds the activations as well, so its vectors are further off than these. No report
    is stored.

    Raises:
        what `Embedder` raises.
    """
    config = config or Config()
    files = _read_files(model, config)
    texts = texts or built_in_texts(files.spec.max_seq_tokens)
    right = _reference(files, texts, "float32", config)
    layers = quantized_layers(files, "fp8", ())
    roles = frozenset(f"{layer}.weight" for layer in layers)
    with on_cpu(through_fp8(load_weights(files), roles), files, config) as embedder:
        found = embed(embedder, texts)
    subject = Subject(
        fingerprint=model_fingerprint(files),
        engine=CPU_ENGINE,
        precision=FP8_WEIGHTS,
        excluded=(),
        reference="float32",
        versions=versions(CPU_ENGINE),
    )
    return compare(right, found, texts, subject)


def _read_files(model: str | PathLike[str], config: Config) -> ModelFiles:
    folder = resolve(
        model,
        revision=config.revision,
        token=config.token,
        cache_folder=config.cache_folder,
        local_files_only=config.local_files_only,
    )
    return read_model_files(folder.path)


def _reference(
    files: ModelFiles, texts: FidelityTexts, reference: Reference, config: Config
) -> Embedded:
    """Return the vectors that are taken for right."""
    if reference == "float32":
        with on_cpu(load_weights(files), files, config) as embedder:
            return embed(embedder, texts)
    config = replace(config, precision=reference)
    plan = plan_engine(files, config)
    with around_engine(make_engine(plan, files, config), files, config) as embedder:
        return embed(embedder, texts)
