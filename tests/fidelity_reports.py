"""Reports on accuracy, as tests store them beside compiled models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embedlib.engines.machine import Machine
from embedlib.models.compiled.fidelity_report import FidelityReport


def make_report(**changes: Any) -> FidelityReport:
    """Return a report that passes every gate: int8 on the CPU engine of this machine."""
    report = FidelityReport(
        fingerprint="",
        engine="openvino",
        hardware=Machine().cpu_hardware(),
        precision="int8",
        excluded=(),
        reference="float32",
        max_seq_tokens=512,
        template=None,
        num_texts=200,
        texts_digest="",
        mean=1.0,
        p1=1.0,
        min=1.0,
        top10_overlap=None,
        worst=(),
        versions={},
    )
    return replace(report, **changes)
