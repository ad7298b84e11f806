"""Measures how close a lower precision is to the model's own, and which layers it must keep."""

from embedlib.fidelity.compare import Comparison
from embedlib.fidelity.texts import FidelityTexts, built_in_texts, read_texts
from embedlib.fidelity.to_gate import compile_to_gate
from embedlib.fidelity.verify import verify
from embedlib.models.compiled.fidelity_report import FidelityReport, Gate, TextFidelity

__all__ = [
    "Comparison",
    "FidelityReport",
    "FidelityTexts",
    "Gate",
    "TextFidelity",
    "built_in_texts",
    "compile_to_gate",
    "read_texts",
    "verify",
]
