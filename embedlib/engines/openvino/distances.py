"""Relative positions: products of queries and keys with vectors of distances (DeBERTa)."""

from __future__ import annotations

import numpy as np

from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.matrices import float_matrix
from embedlib.engines.openvino.nodes import int_constant, int_constants
from embedlib.models.position_bias import signed_buckets
from embedlib.models.spec import Encoder
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.vectors.modules import layer_norm


class Distances:
    """The vectors of all distances, and the one that each query has for each key."""

    def __init__(self, encoder: Encoder, weights: ArraysByRole, indices: ov.Node) -> None:
        """Hold what all layers share.

        Args:
            encoder: the transformer.
            weights: its weights by role.
            indices: int32[L]: positions 0, 1, 2 ...
        """
        relative = encoder.relative_positions
        assert relative is not None, "only for such a model; a bug in embedlib"
        self._encoder, self._weights = encoder, weights
        normed = layer_norm(np.asarray(weights["relative"]), encoder.norm_eps)
        self._vectors = normed * weights["relative_norm.weight"] + weights["relative_norm.bias"]
        num_positions = encoder.num_positions
        rows = signed_buckets(relative, np.arange(1 - num_positions, num_positions))
        distance = op.subtract(
            op.unsqueeze(indices, int_constant(1)), op.unsqueeze(indices, int_constant(0))
        )
        self._rows = op.gather(
            op.constant(rows.astype(np.int32)),
            op.add(distance, int_constant(num_positions - 1)),
            int_constant(0),
        )
        """int32[L, L]: the row of the distance of query i to key j."""

    def projected(self, role: str) -> ov.Node:
        """Return the distances' vectors after a linear layer: float32[1, heads, 2 buckets, d].

        Computed here, in float32: they are the same for every text.

        Args:
            role: that of the layer's queries or keys.
        """
        matrix = float_matrix(self._weights, f"{role}.weight")
        vectors = self._vectors @ matrix.T + self._weights[f"{role}.bias"]
        by_head = vectors.reshape(1, len(vectors), self._encoder.num_heads, -1)
        return op.constant(np.ascontiguousarray(by_head.transpose(0, 2, 1, 3), np.float32))

    def scores(self, query: ov.Node, key: ov.Node, asked: ov.Node, asking: ov.Node) -> ov.Node:
        """Return what distances add to the scores: float32[B, heads, L, L].

        Args:
            query: float32[B, heads, L, d], scaled.
            key: float32[B, heads, L, d].
            asked: float32[1, heads, 2 buckets, d], the vectors of the distances as keys.
            asking: the same as queries, scaled.
        """
        by_query = self._picked(op.matmul(query, asked, False, True), self._rows)
        turned = op.transpose(self._rows, int_constants(1, 0))
        by_key = self._picked(op.matmul(key, asking, False, True), turned)
        return op.add(
            op.transpose(by_query, int_constants(1, 2, 0, 3)),
            op.transpose(by_key, int_constants(1, 2, 3, 0)),
        )

    def _picked(self, products: ov.Node, rows: ov.Node) -> ov.Node:
        """Return float32[L, B, heads, L]: of each token's products those of these rows.

        Args:
            products: float32[B, heads, L, 2 buckets].
            rows: int32[L, L].
        """
        by_token = op.transpose(products, int_constants(2, 0, 1, 3))
        return op.gather(by_token, rows, int_constant(3), batch_dims=1)
