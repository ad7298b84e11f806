"""A mixture of experts: every expert computes only the tokens that chose it."""

from __future__ import annotations

import numpy as np

from embedlib.engines.openvino.graphs.matrices import float_matrix
from embedlib.engines.openvino.graphs.nodes import (
    activate,
    float_constant,
    int_constant,
    int_constants,
)
from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Encoder
from embedlib.models.weights.tensor_roles import ArraysByRole


class ExpertLayers:
    """Builds the MLP of layers with experts; see `Experts`."""

    def __init__(
        self, encoder: Encoder, weights: ArraysByRole, weighted: Weighted, is_token: ov.Node
    ) -> None:
        """Hold what all layers share.

        Args:
            encoder: the transformer.
            weights: its weights by role.
            weighted: builds operators with weights.
            is_token: bool[B, L]: False on padding, which no expert computes.
        """
        assert encoder.experts is not None, "only for such a model; a bug in embedlib"
        self._encoder, self._experts = encoder, encoder.experts
        self._weights, self._weighted, self._is_token = weights, weighted, is_token

    def has(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return layer in self._experts.layers

    def mlp(self, hidden: ov.Node, prefix: str, *, is_pooled: bool) -> ov.Node:
        """Return the sum of the chosen experts' results, float32[B, L, H].

        Args:
            hidden: float32[B, L, H], or float32[B, 1, H] of the pooled tokens.
            prefix: prefix of the layer's roles.
            is_pooled: whether only the pooled tokens are computed.
        """
        width = self._encoder.hidden_size
        rows = op.reshape(hidden, int_constants(-1, width), False)
        chosen = self._chosen(self._weighted.linear(rows, prefix + "router"))
        if not is_pooled:
            flat = op.reshape(op.convert(self._is_token, "f32"), int_constants(-1, 1), False)
            chosen = op.multiply(chosen, flat)
        total = op.multiply(rows, float_constant(0))
        up, down = (
            float_matrix(self._weights, f"{prefix}experts_{way}.weight") for way in ("up", "down")
        )
        inner = self._encoder.intermediate_size
        for expert in range(self._experts.count):
            block = slice(expert * inner, (expert + 1) * inner)
            total = self._add_expert(total, rows, chosen, expert, up[block], down[block])
        summed = self._weighted.add_bias(total, prefix + "experts_down")
        return op.reshape(summed, op.shape_of(hidden, "i32"), False)

    def _chosen(self, logits: ov.Node) -> ov.Node:
        """Return float32[T, experts]: the share of an expert where it is chosen, else 0.

        Args:
            logits: float32[T, experts].
        """
        shares = op.softmax(logits, -1)
        best = op.topk(shares, int_constant(self._experts.num_chosen), -1, "max", "value", "i32")
        places = op.one_hot(
            best.output(1),
            int_constant(self._experts.count),
            float_constant(1),
            float_constant(0),
            -1,
        )
        return op.multiply(shares, op.reduce_sum(places, int_constant(1)))

    def _add_expert(
        self,
        total: ov.Node,
        rows: ov.Node,
        chosen: ov.Node,
        expert: int,
        up: np.ndarray,
        down: np.ndarray,
    ) -> ov.Node:
        """Return the total with an expert's results added to the rows of those who chose it."""
        share = op.gather(chosen, int_constants(expert), int_constant(1))
        flat = op.squeeze(share, int_constant(1))
        # int32[1, number of tokens that chose it]
        found = op.non_zero(flat, "i32")
        places = op.squeeze(found, int_constant(0))
        taken = op.gather(rows, places, int_constant(0))
        wide = op.matmul(
            taken, op.constant(np.ascontiguousarray(up), shared_memory=True), False, True
        )
        wide = activate(wide, self._encoder.activation)
        result = op.matmul(
            wide, op.constant(np.ascontiguousarray(down), shared_memory=True), False, False
        )
        result = op.multiply(result, op.gather(share, places, int_constant(0)))
        return op.scatter_nd_update(total, op.transpose(found, int_constants(1, 0)), result, "sum")
