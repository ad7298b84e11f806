"""Relative positions: products of queries and keys with vectors of distances (DeBERTa).

Distances share a vector where they are large, and of a short text only few occur. So queries and
keys are multiplied with the vectors that the longest text of a batch can need, a range of the
table, and each pair of tokens takes its product from there. Which one that is holds for all layers
and heads. Source: docs/benchmarks.md, relative positions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.matrices import float_matrix
from embedlib.engines.openvino.nodes import int_constant, int_constants
from embedlib.models.position_bias import signed_buckets
from embedlib.models.spec import Encoder
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.vectors.modules import layer_norm

MAX_TAKEN: Final = 1 << 24
"""Numbers that one operator takes for a batch. Each thread counts to its first one in float32, so
with more, all but the first thread may take others than they should. Source: class
jitUniGatherKernel of OpenVINO, intel_cpu/src/nodes/kernels/x64/gather_uni_kernel.cpp; seen with
OpenVINO 2026.4."""


def heads_at_once(encoder: Encoder) -> int:
    """Return for how many heads an operator takes the numbers of the longest text."""
    return min(encoder.num_heads, max(1, MAX_TAKEN // encoder.num_positions**2))


def most_batch_tokens(encoder: Encoder) -> int:
    """Return the tokens of a batch, padding included, at which `MAX_TAKEN` is not exceeded."""
    return MAX_TAKEN // (heads_at_once(encoder) * encoder.num_positions)


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
        self._encoder, self._weights, self._indices = encoder, weights, indices
        normed = layer_norm(np.asarray(weights["relative"]), encoder.norm_eps)
        self._vectors = normed * weights["relative_norm.weight"] + weights["relative_norm.bias"]
        self._furthest = encoder.num_positions - 1
        distances = np.arange(-self._furthest, self._furthest + 1)
        self._row_of_distance = op.constant(signed_buckets(relative, distances).astype(np.int32))
        length = op.shape_of(indices, "i32")
        largest = op.subtract(length, int_constants(1))
        self._first = self._rows(op.subtract(int_constants(0), largest))
        """int32[1]: the first row that a batch needs; rows rise with the distance."""
        last = self._rows(largest)
        self._behind = op.add(last, int_constants(1))
        queries, keys = (op.unsqueeze(indices, int_constant(axis)) for axis in (1, 0))
        rows = self._rows(op.subtract(queries, keys))
        num_rows = op.subtract(self._behind, self._first)
        # Read upwards: keys of a query have falling distances, and its products rising addresses.
        self._of_query = op.add(op.multiply(queries, num_rows), op.subtract(last, rows))
        """int32[L, L]: where a pair's product is among those of a text's queries, row by row."""
        self._of_key = op.add(op.multiply(op.subtract(rows, self._first), length), keys)
        """int32[L, L]: the same of the vectors with a text's keys, vector by vector."""

    def scores(self, query: ov.Node, key: ov.Node, prefix: str) -> tuple[ov.Node, ov.Node]:
        """Return what distances add to the scores, in two parts: float32[B, heads, L, L] each.

        Args:
            query: float32[B, heads, L, d], scaled.
            key: float32[B, heads, L, d].
            prefix: prefix of the layer's roles.
        """
        num_all = len(self._vectors)
        first, behind = (
            op.subtract(int_constants(num_all), of) for of in (self._behind, self._first)
        )
        asked = self._table(self._projected(prefix + "k")[::-1], first, behind)
        asking = self._table(self._scaled(prefix + "q"), self._first, self._behind)
        by_query = op.matmul(query, asked, False, True)
        by_key = op.matmul(asking, key, False, True)
        return self._taken(by_query, self._of_query), self._taken(by_key, self._of_key)

    def scores_of_one(self, query: ov.Node, key: ov.Node, prefix: str, place: ov.Node) -> ov.Node:
        """Return all scores of one query per sequence: float32[B, heads, 1, L].

        With K(r) and Q(r) as in `RelativePositions`, that is k . (q + Q(r)) + q . K(r).

        Args:
            query: float32[B, heads, 1, d], scaled.
            key: float32[B, L, heads * d].
            prefix: prefix of the layer's roles.
            place: int32[B, 1], the positions of the queries.
        """
        rows = self._rows(op.subtract(place, self._indices))
        asked, asking = (
            self._by_token(op.gather(op.constant(table), rows, int_constant(0)))
            for table in (self._projected(prefix + "k"), self._scaled(prefix + "q"))
        )
        query = op.transpose(query, int_constants(0, 2, 1, 3))
        products = op.add(
            op.multiply(self._by_token(key), op.add(query, asking)), op.multiply(query, asked)
        )
        summed = op.reduce_sum(products, int_constant(3), False)
        return op.unsqueeze(op.transpose(summed, int_constants(0, 2, 1)), int_constant(2))

    def _rows(self, distances: ov.Node) -> ov.Node:
        """Return the table's row of each distance, int32[...]: a query's place minus a key's."""
        index = op.add(distances, int_constant(self._furthest))
        return op.gather(self._row_of_distance, index, int_constant(0))

    def _projected(self, role: str) -> NDArray[np.float32]:
        """Return the distances' vectors after a linear layer: float32[2 buckets, heads * d].

        Computed here, in float32: they are the same for every text.

        Args:
            role: that of the layer's queries or keys.
        """
        matrix = float_matrix(self._weights, f"{role}.weight")
        projected = self._vectors @ matrix.T + self._weights[f"{role}.bias"]
        return np.ascontiguousarray(projected, np.float32)

    def _scaled(self, role: str) -> NDArray[np.float32]:
        """Return the same, scaled as queries are."""
        encoder = self._encoder
        return self._projected(role) * np.float32(encoder.attention_scale or encoder.head_dim**-0.5)

    def _table(self, vectors: NDArray[np.float32], first: ov.Node, behind: ov.Node) -> ov.Node:
        """Return these rows of vectors: float32[1, heads, rows, d]."""
        by_head = vectors.reshape(1, len(vectors), self._encoder.num_heads, -1)
        table = op.constant(np.ascontiguousarray(by_head.transpose(0, 2, 1, 3)))
        return op.slice(table, first, behind, int_constants(1), int_constants(2))

    def _taken(self, products: ov.Node, places: ov.Node) -> ov.Node:
        """Return float32[B, heads, L, L]: the product of each pair, from those of a head."""
        flat = op.reshape(products, int_constants(0, 0, -1), True)
        num_heads, size = self._encoder.num_heads, heads_at_once(self._encoder)
        if size == num_heads:
            return op.gather(flat, places, int_constant(2))
        parts = [
            op.slice(
                flat,
                int_constants(at),
                int_constants(at + size),
                int_constants(1),
                int_constants(1),
            )
            for at in range(0, num_heads, size)
        ]
        return op.concat([op.gather(part, places, int_constant(2)) for part in parts], 1)

    def _by_token(self, vectors: ov.Node) -> ov.Node:
        """Reshape float32[B, L, heads * d] to float32[B, L, heads, d]."""
        encoder = self._encoder
        shape = int_constants(0, 0, encoder.num_heads, encoder.head_dim)
        return op.reshape(vectors, shape, True)
