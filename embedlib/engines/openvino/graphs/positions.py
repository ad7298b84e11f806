"""Positions in attention: masks, rotary embeddings, relative position biases.

`positions` is int32[L] everywhere: 0, 1, 2 ... `askers` are the positions of the tokens whose
attention is computed: int32[1, 1, L, 1] for all tokens, fewer for a block of them, and
int32[B, 1, 1, 1] for one per sequence.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.graphs.nodes import (
    MASKED,
    float_constant,
    int_constant,
    int_constants,
)
from embedlib.engines.openvino.library import op, ov
from embedlib.models.encoder_parts import Rope
from embedlib.models.rope import inverse_frequencies

Rotation = Callable[[ov.Node], ov.Node]


def visible_keys(
    askers: ov.Node,
    positions: ov.Node,
    is_token: ov.Node | None,
    window: int | None,
    is_causal: bool,
) -> ov.Node:
    """Return which tokens attend to which: bool[B or 1, 1, L or 1, L].

    Padding is on the right, so causal attention never reaches it. The window of a causal model
    includes the token itself, the window of a bidirectional one does not. Source: the two
    sliding_window overlays of transformers' masking_utils.py.

    Args:
        askers: see the module's docstring.
        positions: see the module's docstring.
        is_token: bool[B, L], False on padding; None only if `is_causal`.
        window: see `Encoder.windows`.
        is_causal: whether a token attends only to itself and the tokens before it.
    """
    distance = op.subtract(askers, positions)
    if is_causal:
        visible = op.greater_equal(askers, positions)
        if window is not None:
            visible = op.logical_and(visible, op.less(distance, int_constant(window)))
        return visible
    visible = op.unsqueeze(is_token, int_constants(1, 2))
    if window is not None:
        near = op.less_equal(op.abs(distance), int_constant(window))
        visible = op.logical_and(visible, near)
    return visible


def rotation_tables(
    places: ov.Node, rope: Rope, head_dim: int, num_positions: int
) -> tuple[ov.Node, ov.Node]:
    """Return the cosines and sines of all angles at these positions: float32[tokens, d / 2] each.

    Args:
        places: int32[tokens], positions, the same for all sequences.
        rope: the kind and its parameters.
        head_dim: dimensions d of one head.
        num_positions: the maximum L.
    """
    frequencies, factor = inverse_frequencies(rope, head_dim)
    # float32 before the cosine, as in transformers: the rounding is part of the model.
    angles = np.outer(np.arange(num_positions, dtype=np.float32), frequencies.astype(np.float32))
    cos, sin = (
        op.gather(op.constant((turn(angles) * factor).astype(np.float32)), places, int_constant(0))
        for turn in (np.cos, np.sin)
    )
    return cos, sin


def rotation(cos: ov.Node, sin: ov.Node) -> Rotation:
    """Return a function that rotates float32[B, heads, tokens, d] by the tokens' angles.

    Source: Su et al., RoFormer (arXiv:2104.09864). Pairs are formed from the two halves of the
    vector, as in transformers' `apply_rotary_pos_emb`.

    Args:
        cos: float32[tokens, d / 2], see `rotation_tables`.
        sin: the same. What both are multiplied with scales the vectors, too.
    """

    def rotate(vectors: ov.Node) -> ov.Node:
        halves = op.split(vectors, int_constant(-1), 2)
        first, second = halves.outputs()
        return op.concat(
            [
                op.subtract(op.multiply(first, cos), op.multiply(second, sin)),
                op.add(op.multiply(second, cos), op.multiply(first, sin)),
            ],
            -1,
        )

    return rotate


def rotation_of_one(rotate: Rotation) -> Rotation:
    """Return a function that rotates float32[B, heads, 1, d], one token per sequence.

    The batch and token axes are swapped around `rotate`. With int32[B, 1, 1] positions instead,
    OpenVINO 2026.4 rotates by wrong angles when the model is loaded from its cache.
    """

    def exchange(vectors: ov.Node) -> ov.Node:
        return op.transpose(vectors, int_constants(2, 1, 0, 3))

    return lambda vectors: exchange(rotate(exchange(vectors)))


def position_scores(
    askers: ov.Node,
    positions: ov.Node,
    by_distance: NDArray[np.float32],
) -> ov.Node:
    """Return the relative position bias of attention scores: float32[B or 1, heads, L or 1, L].

    Args:
        askers: see the module's docstring.
        positions: see the module's docstring.
        by_distance: float32[heads, 2 * positions - 1], see `bias_by_distance`.
    """
    farthest = by_distance.shape[1] // 2
    distance = op.add(op.subtract(positions, askers), int_constant(farthest))
    by_head = op.gather(
        op.constant(by_distance), op.squeeze(distance, int_constant(1)), int_constant(1)
    )
    return op.transpose(by_head, int_constants(1, 0, 2, 3))


def additive(visible: ov.Node) -> ov.Node:
    """Return the additive mask: 0 where visible, MASKED elsewhere."""
    return op.select(visible, float_constant(0), op.constant(MASKED))
