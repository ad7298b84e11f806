"""A prefix's keys and values on the device: the memory, the steps.

`prefixes` decides which prefix is kept.
"""

from __future__ import annotations

import torch

from embedlib.engines.cuda.plan import (
    ActivateExperts,
    Attend,
    KeepKeys,
    Matrix,
    Norm,
    NormColumns,
    Plan,
    PutPooled,
    Rotate,
    Step,
)
from embedlib.models.spec import ModelSpec


def prefix_steps(plan: Plan) -> tuple[Step, ...]:
    """Return the steps of a plan that compute the keys and values of all tokens and keep them."""
    steps: list[Step] = []
    for step in plan.steps:
        if isinstance(step, Attend):
            steps.append(KeepKeys(step.key_value, step.layer))
        if _written(step).rows == "token" and not isinstance(step, PutPooled):
            steps.append(step)
    return tuple(steps)


def prefix_keys(
    spec: ModelSpec, num_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Allocate memory for a prefix's keys and values, [num_tokens, 2 * key columns] per layer.

    Raises:
        torch.OutOfMemoryError: the device has too little free memory.
    """
    encoder = spec.encoder
    shape = (num_tokens, 2 * encoder.num_kv_heads * encoder.head_dim)
    layers = range(encoder.num_layers if num_tokens else 0)
    return tuple(torch.empty(shape, dtype=dtype, device=device) for _ in layers)


def _written(step: Step) -> Matrix:
    """Return the matrix that a step writes; of several, one of the same kind of rows."""
    match step:
        case Norm():
            return step.residual
        case Rotate() | NormColumns() | ActivateExperts():
            return step.values
        case KeepKeys():
            return step.source
        case _:
            return step.out
