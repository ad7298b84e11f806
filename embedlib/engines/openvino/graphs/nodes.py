"""Small building blocks of graphs: inputs, constants, activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Activation

MASKED = np.float32(np.finfo(np.float32).min / 2)
"""Added to the attention score of a masked token; half the minimum, so that sums stay finite."""


def int_input(name: str, shape: Sequence[int]) -> ov.Node:
    """Return an int32 input of the graph; -1 marks a dynamic dimension."""
    return op.parameter(list(shape), np.int32, name=name)


def int_constant(value: int) -> ov.Node:
    """Return a constant int32[]."""
    return op.constant(np.int32(value))


def int_constants(*values: int) -> ov.Node:
    """Return a constant int32[number of values]."""
    return op.constant(np.array(values, np.int32))


def float_constant(value: float) -> ov.Node:
    """Return a constant float32[]."""
    return op.constant(np.float32(value))


def activate(vectors: ov.Node, activation: Activation) -> ov.Node:
    """Apply the activation to every element; NaN stays NaN."""
    match activation:
        case "gelu":
            return op.gelu(vectors, "erf")
        case "gelu_tanh":
            return op.gelu(vectors, "tanh")
        case "relu":
            zero = float_constant(0.0)
            return op.select(op.less(vectors, zero), zero, vectors)  # `op.relu` makes 0 of NaN
        case "silu":
            return op.swish(vectors)
        case "tanh":
            return op.tanh(vectors)
        case "sigmoid":
            return op.sigmoid(vectors)
        case "identity":
            return vectors


def nan_or_zero(vectors: ov.Node, *axes: int) -> ov.Node:
    """Return the sum over these axes of NaN for what is not finite, and of 0 for all else.

    The plugin's `reduce_max` passes NaN over; who adds this to its result has it again.
    """
    return op.reduce_sum(op.multiply(vectors, float_constant(0.0)), int_constants(*axes))


def activate_apart(vectors: ov.Node, activation: Activation) -> ov.Node:
    """Apply an activation that the plugin does not fuse with the product before it.

    It multiplies with MLAS, which packs a matrix once for any number of rows, only where nothing is
    fused. So a view lies between. Other activations than these are fused.
    """
    if activation not in ("gelu", "gelu_tanh", "silu"):
        return activate(vectors, activation)
    width = int(vectors.get_output_partial_shape(0)[-1].get_length())
    rows = op.reshape(vectors, int_constants(-1, width), False)
    return op.reshape(activate(rows, activation), op.shape_of(vectors, "i32"), False)
