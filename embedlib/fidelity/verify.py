"""`verify`: measure what a model loses in a lower precision on this machine."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import cast

from embedlib.config import Config, PrecisionName
from embedlib.engines.machine import Machine
from embedlib.engines.precision import decides, with_weights
from embedlib.engines.registry import find_kind
from embedlib.engines.select import choose_engine
from embedlib.engines.worthwhile import fastest_first
from embedlib.errors import ConfigError
from embedlib.fidelity.compare import Comparison
from embedlib.fidelity.measure import Reference, compare_planned, reference_vectors
from embedlib.fidelity.model import open_model
from embedlib.fidelity.plans import plan_measurement
from embedlib.fidelity.texts import FidelityTexts, built_in_texts
from embedlib.models.compiled.compile import check_writable
from embedlib.models.compiled.fidelity_report import MIN_TEXTS, write_report
from embedlib.models.compiled.report_cache import report_place
from embedlib.progress.phases import Watch, ignore_progress
from embedlib.progress.screens import Reading


def verify(
    model: str | PathLike[str],
    *,
    texts: FidelityTexts | None = None,
    reference: Reference = "float32",
    config: Config | None = None,
    machine: Machine | None = None,
    watch: Watch = ignore_progress,
) -> Comparison:
    """Measure a precision on the engine that computes it here; FP8 without a GPU is emulated.

    Compiles the model first if the precision needs an engine directory and the cache has none.
    Stores a report on at least `MIN_TEXTS` texts in that directory, or in the cache for a precision
    computed from the model's own files and for a pack, in place of an older one, unless both pass
    and that one is of longer texts; an Embedder with the precision "auto" then decides by it. The
    report of an emulation says so in its `hardware`, and "auto" ignores it. One against bf16 is
    stored only for an engine that has nothing higher: it would take the place of one that decides.

    Args:
        model: a folder, a hub name, or `package:NAME`.
        texts: the texts to embed; None: the built-in ones.
        reference: the precision to compare with: "float32" on the CPU, or "bf16" on the engine that
            is measured, for models that would take hours in float32.
        config: the options, with the precision to measure; "auto": the engine's fastest one, but
            "int8" rather than "int8-g128".
        machine: reports hardware and packages; None: this machine.
        watch: shows what is computed, and how far it is.

    Raises:
        ConfigError: the precision equals the reference, the engine does not have it, or the model
            is an engine directory.
        EngineUnavailableError: no engine of this precision can run on this machine.
        what `Embedder` raises.
    """
    config, machine = config or Config(), machine or Machine()
    if config.precision == "auto":
        choice = choose_engine(config, machine)
        kind = find_kind(choice.name, machine)
        ordered = fastest_first(kind, choice.cpu_features)
        fastest = next(name for name in ordered if name not in kind.coarser_forms)
        config = replace(config, precision=cast(PrecisionName, fastest))
    if config.precision == reference:
        raise ConfigError(f"precision = {reference!r} would be compared with itself; give another")
    if config.precision == "float32":
        raise ConfigError(
            "precision = 'float32' is the reference of others; give int8, int8-g128, fp8 or bf16"
        )
    measured = open_model(model, config, watch)
    plan = plan_measurement(measured.files, config, machine)
    texts = texts or built_in_texts(measured.files.spec.max_seq_tokens)
    is_computed = plan.precision.name in plan.kind.computed_precisions
    is_to_compile = plan.precision.folder is None and not is_computed
    is_stored = len(measured.row_texts(texts)) >= MIN_TEXTS and decides(plan.kind, reference)
    if is_stored or is_to_compile:
        check_writable(measured.files, config)
    right = reference_vectors(measured, plan, texts, reference, machine)
    if is_to_compile:
        watch(f"Compiling to {plan.precision.name}", "", Reading)
    plan = with_weights(plan, measured.files, config)
    comparison = compare_planned(measured, plan, texts, right, reference, machine)
    if is_stored:
        place = plan.precision.folder
        if place is None or not place.is_dir():  # computed from the model's own files, or in a pack
            place = report_place(measured.files, comparison.report, config)
        write_report(place, comparison.report)
    return comparison
