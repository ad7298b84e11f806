"""`verify`: what a model loses in a precision on this machine."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Literal, cast

from embedlib.config import Config, EngineName, PrecisionName
from embedlib.engines.compiled.checkpoint import quantized_layers
from embedlib.engines.compiled.engine_folder import (
    check_not_compiled,
    file_hashes,
    model_fingerprint,
)
from embedlib.engines.compiled.fidelity_report import MIN_TEXTS, write_report
from embedlib.engines.int8 import int8_hardware
from embedlib.engines.make import make_engine
from embedlib.engines.precision import ENGINE_PRECISIONS, compiled_weights
from embedlib.engines.select import choose_engine, plan_engine
from embedlib.errors import ConfigError
from embedlib.fidelity.compare import Comparison, Embedded, Subject, compare, embed
from embedlib.fidelity.embedders import (
    ALONE,
    CPU_ENGINE,
    around_engine,
    limited,
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
    """Measure a precision on the engine that computes in it here.

    A compiled model that is missing is made. A report on at least `MIN_TEXTS` texts is stored with
    the compiled model, in the place of an older one: with precision "auto" an Embedder then takes
    or leaves it.

    Args:
        model: a folder, a hub name, or `package:NAME`.
        texts: what to embed; None: the built-in ones.
        reference: what is taken for right: "float32" on the CPU, or "bf16" on the engine that is
            measured, where float32 would take hours.
        config: the options, with the precision to measure; "auto": the engine's fastest one.

    Raises:
        ConfigError: the precision is what it would be compared with, the engine does not have it,
            or the model is a compiled one.
        EngineUnavailableError: no engine of this precision can run here.
        what `Embedder` raises.
    """
    config = config or Config()
    if config.precision == "auto":
        fastest = ENGINE_PRECISIONS[choose_engine(config).name][0]
        config = replace(config, precision=cast(PrecisionName, fastest))
    if config.precision == reference:
        raise ConfigError(f"precision = {reference!r} would be compared with itself")
    if config.precision == "float32":
        raise ConfigError("precision = 'float32' is what others are compared with; give another")
    files = _read_files(model, config)
    plan = plan_engine(files, config)
    # Of the engine that is measured, should there be others.
    config = replace(config, engine=cast(EngineName, plan.engine))
    texts = texts or built_in_texts(files.spec.max_seq_tokens)
    right = _reference(files, texts, reference, config)
    folder = compiled_weights(plan.precision, files, config)
    plan = replace(plan, precision=replace(plan.precision, folder=folder))
    if plan.engine == CPU_ENGINE:
        config = replace(config, max_batch_tokens=ALONE)
    with around_engine(make_engine(plan, files, config), files, config) as embedder:
        found = embed(embedder, texts)
    subject = Subject(
        fingerprint=model_fingerprint(files, file_hashes(config)),
        engine=plan.engine,
        hardware=plan.hardware,
        precision=plan.precision.name,
        excluded=tuple(sorted(plan.precision.excluded)),
        reference=reference,
        max_seq_tokens=files.spec.max_seq_tokens,
        versions=versions(plan.engine),
    )
    comparison = compare(right, found, texts, subject)
    if len(texts.all) >= MIN_TEXTS:
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
        fingerprint=model_fingerprint(files, file_hashes(config)),
        engine=CPU_ENGINE,
        hardware=int8_hardware(),
        precision=FP8_WEIGHTS,
        excluded=(),
        reference="float32",
        max_seq_tokens=files.spec.max_seq_tokens,
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
    check_not_compiled(folder.path)
    return limited(read_model_files(folder.path), config)


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
