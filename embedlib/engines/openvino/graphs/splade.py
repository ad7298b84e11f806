"""The weights of all tokens of a vocabulary for a text, without a number for each of its tokens.

A batch of T tokens has T times V logits: for BERT's vocabulary 60 MB in a batch of 512. They are
computed for a block of the vocabulary at a time and pooled at once, so that they stay in a core's
cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.graphs.matrices import check_finite, matrix_rows
from embedlib.engines.openvino.graphs.nodes import float_constant, int_constant, nan_or_zero
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import SpladePooling

BLOCK_TOKENS: Final = 2048
"""Tokens of the vocabulary that are computed at a time."""


def pool_vocabulary(
    hidden: ov.Node,
    is_token: ov.Node,
    weights: Mapping[str, NDArray[Any]],
    role: str,
    module: SpladePooling,
) -> ov.Node:
    """Return float32[B, V]: the weight of every token of the vocabulary.

    Source: `SpladePooling.forward` of sentence-transformers 6.2. Its function grows with the logit,
    so the greatest weight is that of the greatest logit.

    Args:
        hidden: float32[B, L, H], the output of the layers before.
        is_token: bool[B, L], False on padding.
        weights: by role.
        role: of the module.
        module: how to pool.
    """
    is_max = module.strategy == "max"
    real = op.unsqueeze(is_token, int_constant(2))
    if is_max:
        # In place of padding the first token once more, which changes no maximum.
        first = op.gather(hidden, int_constant(0), int_constant(1))
        hidden = op.select(real, hidden, op.unsqueeze(first, int_constant(1)))
    counted = op.convert(real, "f32")
    for name in ("weight", "bias") if module.has_bias else ("weight",):
        check_finite(weights, f"{role}.{name}")
    guard = op.unsqueeze(nan_or_zero(hidden, 1, 2), int_constant(1))
    blocks: list[ov.Node] = []
    for start in range(0, module.vocab_size, BLOCK_TOKENS):
        rows = slice(start, start + BLOCK_TOKENS)
        logits = op.matmul(hidden, matrix_rows(weights, f"{role}.weight", rows), False, True)
        if is_max:
            logits = op.reduce_max(logits, int_constant(1))
        if module.has_bias:
            bias = np.ascontiguousarray(weights[f"{role}.bias"][rows])
            logits = op.add(logits, op.constant(bias, shared_memory=True))
        weight = _weight(logits, module.num_logs)
        if not is_max:
            weight = op.reduce_sum(op.multiply(weight, counted), int_constant(1))
        blocks.append(op.add(weight, guard))
    return op.concat(blocks, 1) if len(blocks) > 1 else blocks[0]


def _weight(logits: ov.Node, num_logs: int) -> ov.Node:
    """Return log(1 + relu(x)), or log(1 + log(1 + relu(x)))."""
    weight = op.relu(logits)
    for _ in range(num_logs):
        weight = op.log(op.add(weight, float_constant(1.0)))
    return weight
