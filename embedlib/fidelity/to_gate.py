"""`compile_to_gate`: 8 bits in as many layers as a wanted fidelity allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.errors import ConfigError
from embedlib.fidelity.choices import MAX_UNITS, LayerChoices, SearchedPrecision, searching_kinds
from embedlib.fidelity.compare import Comparison
from embedlib.fidelity.measure import (
    Reference,
    compare_planned,
    reference_vectors,
    store_report,
)
from embedlib.fidelity.model import open_model
from embedlib.fidelity.plans import plan_measurement
from embedlib.fidelity.search import Choices, Search, Target, max_measurements
from embedlib.fidelity.texts import FidelityTexts, built_in_texts
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.fidelity_report import MIN_TEXTS, Gate

SEARCH_STEP: Final = 4
"""The gain of a layer is measured on every fourth text."""

Report = Callable[[int, int], object]


@dataclass(frozen=True, kw_only=True)
class SearchSize:
    """How much a search measures."""

    min_texts: int = MIN_TEXTS
    """Fewer are refused: what they choose would not hold on others."""
    max_units: int = MAX_UNITS
    """Groups of layers that are tried one at a time."""


def compile_to_gate(
    model: str | PathLike[str],
    precision: SearchedPrecision,
    *,
    gate: Gate | None = None,
    texts: FidelityTexts | None = None,
    reference: Reference = "float32",
    config: Config | None = None,
    out: Path | None = None,
    report: Report = lambda num_done, num_all: None,
    size: SearchSize = SearchSize(),
    machine: Machine | None = None,
) -> tuple[Path, Comparison]:
    """Return the engine directory of a model in 8 bits that passes a gate, and what was measured.

    `search.Search` says which layers are kept. The same texts on the same kind of machine give the
    same ones, in FP8 up to gains that are equal in six digits: its batches are not always the same.
    The report is stored in the directory: where the engine was a real one, an Embedder with the
    precision "auto" goes by it; an emulation, which FP8 without a GPU is, decides nothing.

    Args:
        model: a folder, a hub name, or `package:NAME`.
        precision: "int8", measured on the CPU engine, or "fp8", on our CUDA engine or its
            emulation.
        gate: what to reach; None: the default one.
        texts: what to measure on; None: the built-in ones.
        reference: what is taken for right, see `verify`.
        config: the options; where the cache is, and what computes.
        out: where to write; None: into the cache, where an Embedder finds it.
        report: called with the number of measurements done and the most there can be.
        size: how much is measured.
        machine: answers what is here; None: this machine.

    Raises:
        ConfigError: there are too few texts, or the precision has no search.
        EngineUnavailableError: what measures cannot run here.
        EngineBuildError: even with half of the weights kept the gate is not passed.
        what `verify` and `compile_model` raise.
    """
    config, machine = config or Config(), machine or Machine()
    kinds = searching_kinds()
    if precision not in kinds:
        raise ConfigError(
            f"precision = {precision!r}: layers are searched for {' and '.join(kinds)}"
        )
    engine = kinds[precision].name
    if config.engine not in ("auto", engine):
        raise ConfigError(
            f"engine = {config.engine!r}: for {precision}, layers are searched on the engine "
            f"{engine}; leave engine out"
        )
    config = replace(config, engine=engine, precision=precision)
    measured = open_model(model, config)
    texts = texts or built_in_texts(measured.files.spec.max_seq_tokens)
    num_rows = len(measured.row_texts(texts))
    if num_rows < size.min_texts:
        raise ConfigError(
            f"texts has {num_rows} texts; choosing layers takes {size.min_texts} or more"
        )
    plan = plan_measurement(measured.files, config, machine)
    whole, few = (
        Target(some, reference_vectors(measured, plan, some, reference, machine))
        for some in (texts, texts.thinned(SEARCH_STEP))
    )
    choices = LayerChoices(measured, plan, max_units=size.max_units)
    kept = _find(choices, whole, few, gate or Gate(), report)
    del choices  # what it holds of the device is free again
    folder = compile_model(measured.files, precision, kept, config, out=out)
    plan = replace(plan, precision=ChosenPrecision(name=precision, excluded=kept, folder=folder))
    comparison = compare_planned(measured, plan, texts, whole.right, reference, machine)
    store_report(folder, comparison.report)
    return folder, comparison


def _find(
    choices: Choices,
    whole: Target,
    few: Target,
    gate: Gate,
    report: Report,
) -> tuple[str, ...]:
    """Return the layers to keep."""
    num_done, num_all = 0, max_measurements(choices)

    def count() -> None:
        nonlocal num_done
        num_done += 1
        report(num_done, num_all)

    return Search(choices, whole, few, count).find(gate)
