"""`prepare`: measure faster precisions of a model, and search for layers to keep.

It runs in a process beside the Embedder, see `fidelity.preparing_process`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from embedlib.config import Config, PrecisionName
from embedlib.engines.kind import ChosenPrecision, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.precision import faithful_versions, with_weights
from embedlib.engines.select import plan_engine
from embedlib.errors import EngineError
from embedlib.fidelity.known_here import Here
from embedlib.fidelity.measure import (
    NOTHING_REMEMBERED,
    compare_planned,
    plan_cpu_reference,
    reference_vectors,
    remembered_vectors,
)
from embedlib.fidelity.model import MeasuredModel, open_model
from embedlib.fidelity.outputs import NUM_CANDIDATES, NUM_ROWS_PER_QUERY, Embedded
from embedlib.fidelity.remembered import RememberedVectors
from embedlib.fidelity.search import OutOfReachError
from embedlib.fidelity.texts import (
    MAX_TOKENS,
    WORDS_PER_TOKEN,
    FidelityTexts,
    built_in_texts,
    quick_texts,
)
from embedlib.fidelity.to_gate import compile_to_gate
from embedlib.models.compiled.engine_folder import CompiledPrecision, compiled_folder
from embedlib.models.compiled.fidelity_report import FidelityReport, Gate, write_report
from embedlib.models.compiled.new_folder import place_lock, try_place_lock
from embedlib.models.compiled.report_cache import (
    has_given_up,
    model_place,
    remove_old_searches,
    report_place,
    search_place,
)
from embedlib.models.weights.tensor_roles import linear_weights
from embedlib.reranker import Reranker
from embedlib.session.preparing import Task

SHARE_OF_MEMORY: Final = 2
"""It takes at most one of so many parts of what is free, unless nothing can be loaded before."""
CUTS: Final = (MAX_TOKENS, 512, 256, 128, 64, 32)
"""Where documents are cut beside the work, in tokens."""
MAX_PRODUCTS: Final = 8e12
"""Maximum number of multiplications and additions in linear layers for all texts, so that they take
about a minute in float32 on two cores. BERT-base takes texts of all lengths, BERT-large those of
256 tokens and fewer; longer ones are as near to float32 or nearer. Source: docs/fidelity.md."""


def prepare(task: Task, machine: Machine | None = None) -> str:
    """Measure a model as far as the task asks; return what was found, in one line.

    Two processes that measure the same model take turns; the second finds what the first has
    stored. Of two searches for layers to keep the second is left out.

    Args:
        task: what to measure.
        machine: reports hardware and packages; None: this machine.

    Raises:
        EmbedlibError: the model cannot be measured, or the result not be stored.
    """
    machine = machine or Machine()
    config = Config(**task.options, prepare=False)
    measured = replace(
        open_model(task.model, config),
        memory_share=1 if task.is_needed else SHARE_OF_MEMORY,
    )
    here = Here.find(measured, machine)
    place = model_place(measured.files, config)
    with place_lock(place):
        found, searched = _measure(here, task)
    if task.is_background:
        for precision in searched:
            with try_place_lock(place.with_name(f"{place.name}-search")) as is_mine:
                if is_mine and here.is_open(precision):
                    found.append(_search(task, here, precision))
            if not has_given_up(*here.facts(precision)):  # layers are found, or searched elsewhere
                break
    return "; ".join(found) or "all that can be measured is measured"


def _measure(here: Here, task: Task) -> tuple[list[str], list[str]]:
    """Measure precisions until one passes.

    Returns:
        What was found, and the precisions that did not pass, but may do so with layers kept.
    """
    found: list[str] = []
    failed: list[str] = []
    has_passed = False
    right: Embedded | None = None
    remembered = _remembered(here, task)
    measured, machine = here.measured, here.machine
    if task.is_background:
        texts = texts_beside_work(measured)
    else:
        limit = min(measured.files.spec.max_seq_tokens, task.max_text_tokens)
        texts = quick_texts(limit, are_pairs=measured.kind is Reranker)
    measured = measured.for_texts(texts)
    made: list[str] = []
    for precision in task.precisions:
        if has_given_up(*here.facts(precision)):  # since the task was written
            continue
        report = here.known_report(precision)
        if report is None:
            try:
                plan = _plan(measured, precision, machine)
                if right is None:
                    right = reference_vectors(measured, plan, texts, "float32", machine, remembered)
                if _compiled(measured, precision) is None:
                    made.append(precision)
                report = _compare(measured, plan, texts, right, machine, remembered)
            except EngineError as error:
                found.append(f"{precision}: {error}")
                if not task.is_needed:  # without a precision the model could never be loaded
                    here.remember_error(precision, error)
                continue
            found.append(_figures(report))
        if has_passed := report.passes(Gate()):
            break
        failed.append(precision)
    searched = _to_search(here, failed, made)
    if (has_passed or failed) and not searched:
        remembered.forget()  # no search will read it
    return found, searched


def _to_search(here: Here, failed: Sequence[str], made: Sequence[str]) -> list[str]:
    """Return for which failed precisions layers to keep are worth a search.

    A coarser form is given up where its closer form passes. Its weights are removed if they were
    compiled for this measurement: others are somebody's.

    Args:
        here: the model and the engine.
        failed: precisions that do not pass the gate.
        made: those compiled for this measurement.
    """
    kind, hardware, files = here.kind, here.float32.hardware, here.measured.files
    faithful = faithful_versions(kind, hardware, files, here.known())
    passing = {version.name for version in faithful}
    searched = []
    for precision in failed:
        closer = kind.coarser_forms.get(precision)
        if closer in passing:
            reason = f"it does not pass the gate, and {closer} does"
            here.give_up(precision, reason)
            if precision in made:
                _remove(_compiled(here.measured, precision))
        elif precision in kind.searched_precisions:
            searched.append(precision)
    return searched


def _remembered(here: Here, task: Task) -> RememberedVectors:
    """Return the vectors that survive this process: for a search, or a load that cannot do without.

    What a load waits for otherwise takes seconds.
    """
    searched = [name for name in here.kind.searched_precisions if name in task.precisions]
    if not searched or not (task.is_needed or task.is_background):
        return NOTHING_REMEMBERED
    place = search_place(*here.facts(searched[0]))
    remove_old_searches(place)
    return remembered_vectors(place, here.measured, here.float32, here.machine)


def texts_beside_work(measured: MeasuredModel) -> FidelityTexts:
    """Return the built-in texts, with documents cut to the first of `CUTS` that a model can afford.

    Args:
        measured: the model; of one that is too large for any, documents are cut to the last.
    """
    spec = measured.files.spec
    for cut in CUTS:
        texts = built_in_texts(min(spec.max_seq_tokens, cut))
        num_tokens = sum(len(text.split()) for text in texts.all) / WORDS_PER_TOKEN
        if measured.kind is Reranker:  # pairs of each query with some of the documents
            num_pairs = NUM_CANDIDATES * NUM_ROWS_PER_QUERY * len(texts.queries)
            num_tokens = num_pairs * num_tokens / len(texts.documents)
        if 2 * linear_weights(spec.encoder) * num_tokens <= MAX_PRODUCTS:
            break
    return texts


def _compare(
    measured: MeasuredModel,
    plan: EnginePlan,
    texts: FidelityTexts,
    right: Embedded,
    machine: Machine,
    remembered: RememberedVectors,
) -> FidelityReport:
    """Measure a planned precision, compile it first if need be, and store the report."""
    plan = with_weights(plan, measured.files, measured.config)
    comparison = compare_planned(measured, plan, texts, right, "float32", machine, remembered)
    report = comparison.report
    place = plan.precision.folder or report_place(measured.files, report, measured.config)
    write_report(place, report)
    return report


def _compiled(measured: MeasuredModel, precision: str) -> Path | None:
    """Return the cache's engine directory of a precision without kept layers, if there is one."""
    name = cast(CompiledPrecision, precision)
    return compiled_folder(measured.files, name, (), measured.config)


def _remove(folder: Path | None) -> None:
    if folder is not None:
        with place_lock(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _plan(measured: MeasuredModel, precision: str, machine: Machine) -> EnginePlan:
    """Return the plan for a precision without kept layers.

    Raises:
        EngineUnavailableError: measuring would take more than its share of the free memory.
    """
    plan_cpu_reference(measured, machine)
    files = measured.planned_files
    config = replace(measured.config, precision=cast(PrecisionName, precision))
    plan = plan_engine(files, config, machine=replace(machine))
    share = plan.memory.for_each_of(measured.memory_share)
    plan = replace(plan, precision=ChosenPrecision(name=precision), memory=share)
    if plan.kind.check_memory is not None:
        plan.kind.check_memory(plan, files, config)
    return plan


def _search(task: Task, here: Here, precision: str) -> str:
    """Search for the layers to keep, and remember it if there are none; return what was found."""
    measured, machine = here.measured, here.machine
    texts = texts_beside_work(measured)
    try:
        _plan(measured.for_texts(texts), precision, machine)  # raises if memory is short
        _, comparison = compile_to_gate(
            task.model,
            cast(Any, precision),
            texts=texts,
            config=measured.config,
            machine=machine,
            keep_in=search_place(*here.facts(precision)),
            memory_share=SHARE_OF_MEMORY,
        )
    except OutOfReachError as error:
        here.give_up(precision, str(error))
        return str(error)
    except EngineError as error:
        return f"{precision}: {error}"
    return _figures(comparison.report)


def _figures(report: FidelityReport) -> str:
    measured = ChosenPrecision(name=report.precision, excluded=report.excluded)
    return f"{measured} has a mean cosine of {report.mean:.5f}, p1 {report.p1:.5f}"
