"""The engine of the float32 reference, as tests make it: on this machine."""

from __future__ import annotations

from embedlib.engines.base import Engine
from embedlib.engines.machine import Machine
from embedlib.fidelity.measure import cpu_engine, plan_cpu_reference
from embedlib.fidelity.model import MeasuredModel
from embedlib.models.weights.tensor_roles import ArraysByRole


def reference_engine(model: MeasuredModel, weights: ArraysByRole) -> Engine:
    """Return the reference engine with these weights; the caller closes it."""
    return cpu_engine(model, weights, plan_cpu_reference(model, Machine()))
