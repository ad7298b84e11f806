"""Shared by several kernels: activations, and the number of warps for a row."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

COLUMNS_PER_WARP: Final = 512
"""16 numbers per thread: enough loads in flight, and not too many registers."""
MAX_WARPS: Final = 16


def num_warps(block: int) -> int:
    """Return the warps of a program for a row of `block` columns."""
    return min(MAX_WARPS, max(1, block // COLUMNS_PER_WARP))


@triton.jit
def activated(values: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Apply an activation to float32 numbers; see `models.spec.Activation`."""
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
    """Return the hyperbolic tangent, 2 sigmoid(2 x) - 1: off by about 1e-7, less than rounding."""
    return 2.0 * tl.sigmoid(2.0 * values) - 1.0
