"""Relative positions: products of queries and keys with vectors of distances (DeBERTa).

A text of L tokens has 2 L - 1 distances. Each query is multiplied with the vectors of all of them,
in an order in which those of its L keys lie side by side, one place further on in every row. So
rows are cut out of the products by a reshape, which is faster than to gather them.
"""

from __future__ import annotations

import numpy as np

from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.matrices import float_matrix
from embedlib.engines.openvino.nodes import float_constant, int_constant, int_constants
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
        self._length = op.shape_of(indices, "i32")
        """int32[1]: L."""
        self._num_distances = op.subtract(op.add(self._length, self._length), int_constants(1))
        start = op.subtract(int_constants(num_positions), self._length)
        self._rising, self._falling = (
            op.slice(
                op.constant(np.ascontiguousarray(ordered, np.int32)),
                start,
                op.add(start, self._num_distances),
                int_constants(1),
                int_constants(0),
            )
            for ordered in (rows, rows[::-1])
        )
        """int32[2 L - 1]: the row of each distance from 1 - L on, and the other way round."""

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
        # The distance of query i to key j is i - j.
        by_query = self._cut_out(self._products(query, asked, self._falling))
        by_key = self._cut_out(self._products(key, asking, self._rising))
        return op.add(by_query, op.transpose(by_key, int_constants(0, 1, 3, 2)))

    def _products(self, vectors: ov.Node, table: ov.Node, rows: ov.Node) -> ov.Node:
        """Return each token's products with these rows: float32[B, heads, L, 2 L - 1]."""
        return op.matmul(vectors, op.gather(table, rows, int_constant(2)), False, True)

    def _cut_out(self, products: ov.Node) -> ov.Node:
        """Return float32[B, heads, L, L]: of row i the columns from L - 1 - i on.

        With one column more, row i begins at 2 L i, and what is wanted of it at
        2 L i + L - 1 - i = (2 L - 1) i + L - 1: one row of a matrix of 2 L - 1 columns.

        Args:
            products: float32[B, heads, L, 2 L - 1].
        """
        none, one = int_constants(0, 0, 0, 0), int_constants(0, 0, 0, 1)
        wide = op.pad(products, none, one, "constant", float_constant(0))
        flat = op.reshape(wide, int_constants(0, 0, -1), True)
        first = op.subtract(self._length, int_constants(1))
        last = op.add(first, op.multiply(self._length, self._num_distances))
        flat = op.slice(flat, first, last, int_constants(1), int_constants(2))
        shape = op.concat([int_constants(0, 0), self._length, self._num_distances], 0)
        rows = op.reshape(flat, shape, True)
        return op.slice(rows, int_constants(0), self._length, int_constants(1), int_constants(3))
