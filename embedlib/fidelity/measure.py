"""Computes the vectors of two precisions of a model, compares them and stores the report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.kind import ChosenPrecision, EngineKind, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.engines.precision import REFERENCE
from embedlib.engines.registry import OWN_KINDS
from embedlib.errors import EngineUnavailableError
from embedlib.fidelity.compare import Comparison, compare
from embedlib.fidelity.model import MeasuredModel
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.plans import plan_reference
from embedlib.fidelity.remembered import RememberedVectors
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.engine_folder import check_unchanged, file_hashes
from embedlib.models.compiled.fidelity_report import FidelityReport, template_facts
from embedlib.models.prompts import Prompts
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import ArraysByRole

_ACTIVITY: Final = "Embedding in {}"

Reference = Literal["float32", "bf16"]
"""The precision compared with: float32 on the CPU, or bf16 on the engine that is measured."""

NOTHING_REMEMBERED: Final = RememberedVectors(None)
ALONE: Final = 1
"""Token budget that makes every text a batch of its own, so that results are reproducible: in int8
a text's vector depends slightly on its batch."""


def reference_vectors(
    model: MeasuredModel,
    plan: EnginePlan,
    texts: FidelityTexts,
    reference: Reference,
    machine: Machine,
    remembered: RememberedVectors = NOTHING_REMEMBERED,
) -> Embedded:
    """Return the vectors of the reference precision, which others are compared with.

    Args:
        model: the model.
        plan: the engine and precision that are measured.
        texts: what to embed.
        reference: the reference precision.
        machine: reports the hardware and packages of this machine.
        remembered: what need not be computed again.

    Raises:
        ConfigError: the engine that is measured does not have the reference precision.
    """

    def compute() -> Embedded:
        if reference == "float32":
            measured = model.for_texts(texts)
            planned = plan_cpu_reference(measured, machine)
            activity = f"{reference}, layer by layer" if planned.is_by_layer else reference
            engine = cpu_engine(measured, load_weights(model.files), planned)
            vectors = measured.embed(engine, texts, _ACTIVITY.format(activity))
        else:
            config = replace(model.config, precision=reference)
            planned = plan_reference(plan, model.files, config, machine)
            vectors = planned_vectors(model, planned, texts)
        return _of_these_files(model, vectors)

    return remembered.get(reference, (), texts, compute)


def remembered_vectors(
    folder: Path | None, model: MeasuredModel, plan: EnginePlan, machine: Machine
) -> RememberedVectors:
    """Return what a folder has of a model's vectors; those of other weights do not count.

    Args:
        folder: the folder; None: nothing is remembered.
        model: the model.
        plan: the engine and its hardware.
        machine: reports the versions of packages.
    """
    return RememberedVectors(
        folder,
        model.fingerprint,
        plan.engine,
        plan.hardware,
        model.files.spec.max_seq_tokens,
        template_facts(model.files.spec),
        Prompts(model.files.spec, model.config, model.known).settings(),
        versions(plan.kind, machine),
    )


def planned_vectors(model: MeasuredModel, plan: EnginePlan, texts: FidelityTexts) -> Embedded:
    """Return the vectors that a planned engine computes; on the CPU each text alone."""
    engine = make_engine(plan, model.files, _alone(model, plan))
    return model.embed(engine, texts, _ACTIVITY.format(plan.precision.name))


def _alone(model: MeasuredModel, plan: EnginePlan) -> Config:
    """Return the options with which a planned engine on the CPU computes each text alone."""
    is_on_cpu = "cpu" in plan.kind.device_types
    return replace(model.config, max_batch_tokens=ALONE) if is_on_cpu else model.config


def reference_kind() -> EngineKind:
    """Return the engine that computes the float32 reference on the CPU."""
    [found] = [
        kind
        for kind in OWN_KINDS
        if REFERENCE in kind.precisions and "cpu" in kind.device_types and kind.lower
    ]
    return found


def cpu_engine(model: MeasuredModel, weights: ArraysByRole, plan: EnginePlan) -> Engine:
    """Return the reference engine with these weights.

    It computes texts in batches: in float32 they change a vector by 2e-7 at most. A model that does
    not fit into memory is computed layer by layer.

    Args:
        model: the model.
        weights: the weights by role.
        plan: as `plan_cpu_reference` returned it.

    Raises:
        EngineUnavailableError: this process lacks the memory.
    """
    assert plan.kind.lower is not None, "`reference_kind` asks for it"
    return plan.kind.lower(model.files.spec, weights, plan, model.config)


def plan_cpu_reference(model: MeasuredModel, machine: Machine) -> EnginePlan:
    """Return the plan of the float32 reference: with one layer at a time if all do not fit.

    Args:
        model: the model.
        machine: asked for its memory.

    Raises:
        EngineUnavailableError: not even one layer fits.
    """
    kind = reference_kind()
    config = replace(model.config, device=None, precision=REFERENCE)
    # With a copy of the machine, which has no answers yet: an engine may have taken memory.
    choice = kind.find(config, replace(machine))
    plan = EnginePlan(
        kind=kind,
        devices=("cpu",),
        hardware="",
        precision=ChosenPrecision(name=REFERENCE),
        memory=choice.memory.for_each_of(model.memory_share),
    )
    if kind.check_memory is None:
        return plan
    files = model.planned_files
    try:
        return replace(plan, needs=kind.check_memory(plan, files, config))
    except EngineUnavailableError:
        if not kind.can_by_layer:
            raise
    plan = replace(plan, is_by_layer=True)
    return replace(plan, needs=kind.check_memory(plan, files, config))


def lowered(model: MeasuredModel, weights: ArraysByRole, plan: EnginePlan) -> Engine:
    """Return the planned engine with weights from memory; on the CPU it computes each text alone.

    Args:
        model: the model.
        weights: the weights by role.
        plan: the engine (its kind must have a `lower`), its device, and the kept layers.
    """
    assert plan.kind.lower is not None, "only searched engines get here; a bug in embedlib"
    return plan.kind.lower(model.files.spec, weights, plan, _alone(model, plan))


def compare_planned(
    model: MeasuredModel,
    plan: EnginePlan,
    texts: FidelityTexts,
    right: Embedded,
    reference: Reference,
    machine: Machine,
    remembered: RememberedVectors = NOTHING_REMEMBERED,
) -> Comparison:
    """Compare the vectors of a planned engine with the reference vectors `right`.

    Raises:
        PassingBuildError: the model's files have changed since it was opened.
    """
    make_report = partial(
        FidelityReport,
        fingerprint=model.fingerprint,
        engine=plan.engine,
        hardware=plan.hardware,
        precision=plan.precision.name,
        excluded=tuple(sorted(plan.precision.excluded)),
        reference=reference,
        max_seq_tokens=model.files.spec.max_seq_tokens,
        template=template_facts(model.files.spec),
        texts_digest=texts.digest,
        versions=versions(plan.kind, machine),
    )
    found = remembered.get(
        plan.precision.name,
        plan.precision.excluded,
        texts,
        lambda: _of_these_files(model, planned_vectors(model, plan, texts)),
    )
    return compare(right, found, model.row_texts(texts), make_report)


def _of_these_files(model: MeasuredModel, vectors: Embedded) -> Embedded:
    """Return vectors, before they are remembered, if the files are still those that were opened."""
    check_unchanged(model.files, model.fingerprint, file_hashes(model.config), "measured")
    return vectors


def versions(kind: EngineKind, machine: Machine) -> dict[str, str]:
    """Return the versions of embedlib, numpy and those packages of the engine that are installed.

    An emulation does not need all of them.
    """
    return machine.versions(("embedlib", "numpy", *kind.packages))
