"""One precision of a model against another: vectors of both, and the report."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from numpy.typing import NDArray

from embedlib.engines.base import Engine
from embedlib.engines.make import EnginePlan, make_engine
from embedlib.fidelity.compare import Comparison, Subject, compare
from embedlib.fidelity.model import MeasuredModel
from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.plans import is_emulated, plan_reference
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.models.compiled.fidelity_report import (
    FidelityReport,
    read_report,
    template_facts,
    write_report,
)
from embedlib.models.weights.load import load_weights

Reference = Literal["float32", "bf16"]
"""What is taken for right: float32 on the CPU, or bf16 on the engine that is measured."""

CPU_ENGINE: Final = "openvino"
ALONE: Final = 1
"""Token budget with which every text is a batch of its own, so that results can be repeated: in
int8 a text's vector depends a little on its batch."""
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "openvino": ("openvino",),
    "cuda": ("torch", "triton"),
    "tensorrt_llm": ("tensorrt_llm",),
}
"""What an engine computes with; an emulation does without some."""

Weights = Mapping[str, NDArray[Any]]


def reference_vectors(
    model: MeasuredModel, plan: EnginePlan, texts: FidelityTexts, reference: Reference
) -> Embedded:
    """Return the vectors that are taken for right.

    Args:
        model: the model.
        plan: what is measured.
        texts: what to embed.
        reference: its precision.

    Raises:
        ConfigError: the engine that is measured does not have it.
    """
    if reference == "float32":
        return model.embed(cpu_engine(model, load_weights(model.files)), texts)
    config = replace(model.config, precision=reference)
    return planned_vectors(model, plan_reference(plan, model.files, config), texts)


def planned_vectors(model: MeasuredModel, plan: EnginePlan, texts: FidelityTexts) -> Embedded:
    """Return the vectors of a planned engine."""
    config = model.config
    if plan.engine == CPU_ENGINE:
        config = replace(config, max_batch_tokens=ALONE)
    return model.embed(make_engine(plan, model.files, config), texts)


def cpu_engine(model: MeasuredModel, weights: Weights) -> Engine:
    """Return an engine on the CPU that computes with these weights, each text alone."""
    # Imported only now: an engine's library is heavy.
    from embedlib.engines.openvino.engine import OpenVINOEngine

    return OpenVINOEngine(
        model.files.spec,
        weights,
        threads=model.config.num_threads,
        max_batch_tokens=ALONE,
        cache_dir=None,
    )


def compare_planned(
    model: MeasuredModel,
    plan: EnginePlan,
    texts: FidelityTexts,
    right: Embedded,
    reference: Reference,
) -> Comparison:
    """Compare the vectors of a planned engine with those that are right."""
    subject = Subject(
        fingerprint=model_fingerprint(model.files, file_hashes(model.config)),
        engine=plan.engine,
        hardware=plan.hardware,
        precision=plan.precision.name,
        excluded=tuple(sorted(plan.precision.excluded)),
        reference=reference,
        max_seq_tokens=model.files.spec.max_seq_tokens,
        template=template_facts(model.files.spec),
        texts_digest=texts.digest,
        versions=versions(plan.engine),
    )
    found = planned_vectors(model, plan, texts)
    return compare(right, found, model.row_texts(texts), subject)


def versions(engine: str) -> dict[str, str]:
    """Return the versions of what computes."""
    names = ("embedlib", "numpy", *PACKAGES[engine])
    return {
        name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)
    }


def store_report(folder: Path, report: FidelityReport) -> None:
    """Put a report into an engine directory, in the place of an older one.

    What a GPU gave is worth more than an emulation, and stays.

    Raises:
        EngineBuildError: it cannot be written.
    """
    older = read_report(folder)
    if older is not None and is_emulated(report.hardware) and not is_emulated(older.hardware):
        return
    write_report(folder, report)
