"""What tokens know of one another's places: masks, rotary embeddings, relative position biases.

`positions` is int32[L] everywhere: 0, 1, 2 ...
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as op

from embedlib.engines.openvino.nodes import MASKED, float_constant, int_constant, int_constants
from embedlib.models.position_bias import buckets
from embedlib.models.rope import inverse_frequencies
from embedlib.models.spec import PositionBias, Rope

Rotation = Callable[[ov.Node], ov.Node]


def attention_mask(
    positions: ov.Node, is_token: ov.Node, window: int | None, is_causal: bool
) -> ov.Node:
    """What is added to attention scores: float32[B or 1, 1, L or 1, L].

    Padding is on the right, so causal attention never sees it. The window of a causal model counts
    the token itself, that of another does not. Source: the two sliding_window overlays of
    transformers' masking_utils.py.

    Args:
        positions: see above.
        is_token: bool[B, L], False on padding.
        window: see `Encoder.windows`.
        is_causal: whether a token sees only what stands before it.
    """
    query, key = (
        op.unsqueeze(positions, int_constant(1)),
        op.unsqueeze(positions, int_constant(0)),
    )
    distance = op.subtract(query, key)
    if is_causal:
        visible = op.greater_equal(distance, int_constant(0))
        if window is not None:
            visible = op.logical_and(visible, op.less(distance, int_constant(window)))
        return _additive(op.unsqueeze(visible, int_constants(0, 1)))
    visible = op.unsqueeze(is_token, int_constants(1, 2))
    if window is not None:
        near = op.less_equal(op.abs(distance), int_constant(window))
        visible = op.logical_and(visible, op.unsqueeze(near, int_constants(0, 1)))
    return _additive(visible)


def rotation(positions: ov.Node, rope: Rope, head_dim: int, num_positions: int) -> Rotation:
    """Return what turns float32[B, heads, L, head_dim] by the positions.

    Source: Su et al., RoFormer (arXiv:2104.09864), with the halves of the vector as pairs, as
    transformers' `apply_rotary_pos_emb` has it.

    Args:
        positions: see above.
        rope: the kind and its parameters.
        head_dim: dimensions of one head.
        num_positions: the longest L.
    """
    frequencies, scale = inverse_frequencies(rope, head_dim)
    # float32 before the cosine, as in transformers: the rounding is part of the model.
    angles = np.outer(np.arange(num_positions, dtype=np.float32), frequencies.astype(np.float32))
    half = head_dim // 2
    cos, sin = (
        op.gather(
            op.constant((turn(angles) * scale).astype(np.float32)), positions, int_constant(0)
        )
        for turn in (np.cos, np.sin)
    )

    def rotate(vectors: ov.Node) -> ov.Node:
        halves = op.variadic_split(vectors, int_constant(-1), int_constants(half, half))
        first, second = halves.outputs()
        return op.concat(
            [
                op.subtract(op.multiply(first, cos), op.multiply(second, sin)),
                op.add(op.multiply(second, cos), op.multiply(first, sin)),
            ],
            -1,
        )

    return rotate


def position_scores(
    positions: ov.Node, bias: PositionBias, table: NDArray[np.float32], num_positions: int
) -> ov.Node:
    """What the distances add to attention scores: float32[1, heads, L, L].

    Args:
        positions: see above.
        bias: how distances are divided into buckets.
        table: float32[buckets, heads], the learned numbers.
        num_positions: the longest L.
    """
    distances = np.arange(1 - num_positions, num_positions)
    by_distance = op.constant(np.ascontiguousarray(table[buckets(bias, distances)].T))
    query, key = (
        op.unsqueeze(positions, int_constant(1)),
        op.unsqueeze(positions, int_constant(0)),
    )
    rows = op.add(op.subtract(key, query), int_constant(num_positions - 1))
    return op.unsqueeze(op.gather(by_distance, rows, int_constant(1)), int_constant(0))


def _additive(visible: ov.Node) -> ov.Node:
    """bool to what is added to a score: 0 where visible."""
    return op.select(visible, float_constant(0), op.constant(MASKED))
