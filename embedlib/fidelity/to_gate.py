"""`compile_to_gate`: compile a model to 8 bits in as many layers as a fidelity gate allows."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.precision import REFERENCE, decides
from embedlib.errors import ConfigError
from embedlib.fidelity.choices import LayerChoices, SearchedPrecision, searching_kinds
from embedlib.fidelity.compare import Comparison
from embedlib.fidelity.measure import (
    Reference,
    compare_planned,
    reference_vectors,
    remembered_vectors,
)
from embedlib.fidelity.model import open_model
from embedlib.fidelity.plans import plan_measurement
from embedlib.fidelity.search import LayerSearch, OutOfReachError, Target
from embedlib.fidelity.texts import FidelityTexts, built_in_texts
from embedlib.models.compiled.compile import ReportProgress, check_writable, compile_model
from embedlib.models.compiled.fidelity_report import MIN_TEXTS, Gate, write_report
from embedlib.reranker import Reranker

SEARCH_STEP: Final = 4
"""The gain of a layer is measured on every fourth text, or query of a reranker, to save time."""


def compile_to_gate(
    model: str | PathLike[str],
    precision: SearchedPrecision,
    *,
    gate: Gate | None = None,
    texts: FidelityTexts | None = None,
    reference: Reference = "float32",
    config: Config | None = None,
    out: Path | None = None,
    report: ReportProgress = lambda num_done, num_all: None,
    machine: Machine | None = None,
    keep_in: Path | None = None,
    memory_share: int = 1,
) -> tuple[Path, Comparison]:
    """Compile a model to 8 bits so that it passes a gate; return its engine directory and figures.

    `search.LayerSearch` chooses the layers to keep. The same texts on the same kind of machine give
    the same layers; in FP8, whose batches vary, layers whose gains agree to six digits may change
    places. The report is stored in the directory. An Embedder with the precision "auto" uses it,
    unless it is the report of an emulation (FP8 without a GPU).

    Args:
        model: a folder, a hub name, or `package:NAME`.
        precision: "int8" or "int8-g128", measured on the CPU engine, or "fp8", on our CUDA engine
            or its emulation.
        gate: the cosines to reach; None: the default gate.
        texts: the texts to measure on; None: the built-in ones.
        reference: the precision to compare with, see `verify`.
        config: the options, such as the cache folder, the engine and the device.
        out: the folder to write; None: one in the cache, where an Embedder finds it.
        report: called with the number of measurements done and their maximum number.
        machine: reports hardware and packages; None: this machine.
        keep_in: folder of what a process that was ended has measured; removed when the search is
            over. None: nothing is kept.
        memory_share: the reference takes at most one of so many parts of the free memory.

    Raises:
        ConfigError: there are too few texts, the precision or engine has no search, or `auto` would
            not go by the reference.
        EngineUnavailableError: the engine that measures cannot run on this machine.
        EngineBuildError: the gate does not pass even with half of the weights kept.
        what `verify` and `compile_model` raise.
    """
    config, machine = config or Config(), machine or Machine()
    kinds = searching_kinds()
    if precision not in kinds:
        raise ConfigError(
            f"precision = {precision!r}: layers are searched for {', '.join(sorted(kinds))}"
        )
    engine = kinds[precision].name
    if config.engine not in ("auto", engine):
        raise ConfigError(
            f"engine = {config.engine!r}: for {precision}, layers are searched on the engine "
            f"{engine}; leave engine out"
        )
    if not decides(kinds[precision], reference):
        raise ConfigError(
            f"reference = {reference!r}: the engine {engine} has {REFERENCE}, and auto goes by "
            "what was compared with that; leave out reference (--against)"
        )
    config = replace(config, engine=engine, precision=precision)
    measured = replace(open_model(model, config), memory_share=memory_share)
    texts = texts or built_in_texts(measured.files.spec.max_seq_tokens)
    num_rows = len(measured.row_texts(texts))
    if num_rows < MIN_TEXTS:  # layers chosen on fewer would not suit other texts
        raise ConfigError(f"texts has {num_rows} texts; choosing layers needs {MIN_TEXTS} or more")
    check_writable(measured.files, config, out=out)
    plan = plan_measurement(measured.files, config, machine)
    remembered = remembered_vectors(keep_in, measured, plan, machine)
    some = texts.thinned(SEARCH_STEP)
    if measured.kind is Reranker:  # pairs each query with so many documents, were there more
        some = replace(some, documents=texts.documents)
    whole, few = (
        Target(each, reference_vectors(measured, plan, each, reference, machine, remembered))
        for each in (texts, some)
    )
    choices = LayerChoices(measured, plan, remembered)
    try:
        kept = LayerSearch(choices, whole, few, report).find(gate or Gate())
    except OutOfReachError:
        remembered.forget()
        raise
    del choices  # frees its weights on the device
    folder = compile_model(measured.files, precision, kept, config, out=out)
    plan = replace(plan, precision=ChosenPrecision(name=precision, excluded=kept, folder=folder))
    comparison = compare_planned(measured, plan, texts, whole.right, reference, machine)
    write_report(folder, comparison.report)
    remembered.forget()
    return folder, comparison
