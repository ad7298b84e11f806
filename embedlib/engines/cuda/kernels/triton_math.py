"""What several kernels share: activations, how many warps a row takes, how numbers are fused."""

# What is fixed when a kernel is compiled is in capitals, as in Triton's own.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

COLUMNS_PER_WARP: Final = 512
"""16 numbers of each thread: enough loads in flight, and few enough registers."""
MAX_WARPS: Final = 16
FP_FUSION: Final = True
"""A product and the sum behind it are one instruction with one rounding, as the exponents of a
softmax want it. Said at every launch: Triton's own choice changes with 3.10, of which 3.9 warns."""


def num_warps(block: int) -> int:
    """Return the warps of a program that holds a row of so many columns."""
    return min(MAX_WARPS, max(1, block // COLUMNS_PER_WARP))


@triton.jit
def activated(values: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Float32 numbers through an activation; see `models.spec.Activation`."""
    if ACTIVATION == "gelu":
        values = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    if ACTIVATION == "gelu_tanh":
        # Source: Hendrycks and Gimpel, "Gaussian error linear units", arXiv:1606.08415, section 2.
        inner = 0.7978845608028654 * (values + 0.044715 * values * values * values)
        values = 0.5 * values * (1.0 + tanh(inner))
    if ACTIVATION == "relu":
        # Not tl.maximum: it would turn NaN into 0.
        values = tl.where(values < 0.0, 0.0, values)
    if ACTIVATION == "silu":
        values = values * tl.sigmoid(values)
    if ACTIVATION == "tanh":
        values = tanh(values)
    if ACTIVATION == "sigmoid":
        values = tl.sigmoid(values)
    return values


@triton.jit
def tanh(values: tl.tensor) -> tl.tensor:
    """The hyperbolic tangent, 2 sigmoid(2 x) - 1: off by some 1e-7, less than what is rounded."""
    return 2.0 * tl.sigmoid(2.0 * values) - 1.0
