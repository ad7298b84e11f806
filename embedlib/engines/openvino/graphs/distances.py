"""Relative positions: products of queries and keys with vectors of distances (DeBERTa).

Distances share a vector where they are large, and of a short text only few occur. So tokens are
multiplied with the vectors that they can need, and each pair of tokens takes its product from
there. The tokens are divided into blocks, since those at one end of a text need few of the
distances that those at the other end have. Where a pair's product lies holds for all layers and
heads. Source: docs/measurements/attention.md, relative positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.graphs.matrices import float_matrix, widened
from embedlib.engines.openvino.graphs.nodes import int_constant, int_constants
from embedlib.engines.openvino.library import op, ov
from embedlib.models.position_bias import signed_buckets
from embedlib.models.spec import Encoder
from embedlib.models.weights.mapped import StoredBits
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.vectors.bfloat16 import bfloat16_bits
from embedlib.vectors.modules import layer_norm

MAX_TAKEN: Final = 1 << 24
"""Numbers that one operator takes for a batch. Each thread counts to its first one in float32, so
with more, all but the first thread may take others than they should. Source: class
jitUniGatherKernel of OpenVINO, intel_cpu/src/nodes/kernels/x64/gather_uni_kernel.cpp; seen with
OpenVINO 2026.4."""
BLOCK_TOKENS: Final = 120
"""The most tokens of a text that are multiplied with the same vectors. Not 128: numbers that lie
512 bytes apart share few sets of a cache. Source: docs/measurements/attention.md, blocks."""
LANES: Final = 8
"""Float32 numbers of a vector register of AVX2."""


def heads_at_once(encoder: Encoder) -> int:
    """Return for how many heads an operator takes the numbers of the longest text."""
    return min(encoder.num_heads, max(1, MAX_TAKEN // encoder.num_positions**2))


def most_batch_tokens(encoder: Encoder) -> int:
    """Return the tokens of a batch, padding included, at which `MAX_TAKEN` is not exceeded."""
    return MAX_TAKEN // (heads_at_once(encoder) * encoder.num_positions)


@dataclass(frozen=True)
class Blocks:
    """A text's tokens in n blocks of g, and the w vectors that those of a block can need."""

    tokens: ov.Node
    """int32[n * g]: positions; the last one is repeated."""
    rows: ov.Node
    """int32[n, w]: rows of the table."""
    shape: ov.Node
    """int32[4]: that of vectors float32[B, heads, ..., d] as [B, heads * n, g or w, d]."""
    places: ov.Node
    """int32[L, L]: where a pair's product is among those of a head, float32[n, w, g]."""


class Distances:
    """The vectors of all distances, and the one that each query has for each key."""

    def __init__(
        self, encoder: Encoder, weights: ArraysByRole, indices: ov.Node, *, is_bf16: bool
    ) -> None:
        """Hold what all layers share.

        Args:
            encoder: the transformer.
            weights: its weights by role.
            indices: int32[L]: positions 0, 1, 2 ...
            is_bf16: whether the graph is computed in bf16.
        """
        self._is_bf16 = is_bf16
        relative = encoder.relative_positions
        assert relative is not None, "only for such a model; a bug in embedlib"
        self._encoder, self._weights, self._indices = encoder, weights, indices
        normed = layer_norm(np.asarray(weights["relative"]), encoder.norm_eps)
        self._vectors = normed * weights["relative_norm.weight"] + weights["relative_norm.bias"]
        self._furthest = encoder.num_positions - 1
        distances = np.arange(-self._furthest, self._furthest + 1)
        self._row_of_distance = op.constant(signed_buckets(relative, distances).astype(np.int32))
        length = op.squeeze(op.shape_of(indices, "i32"), int_constant(0))
        self._last = op.subtract(length, int_constant(1))
        """int32[]: the last position of the longest text."""
        queries, keys = (op.unsqueeze(indices, int_constant(axis)) for axis in (1, 0))
        rows = self._rows(op.subtract(queries, keys))
        self._of_queries = self._blocks(queries, rows, are_queries=True)
        self._of_keys = self._blocks(keys, rows, are_queries=False)

    def scores(self, query: ov.Node, key: ov.Node, prefix: str) -> tuple[ov.Node, ov.Node]:
        """Return what distances add to the scores, in two parts: float32[B, heads, L, L] each.

        Args:
            query: float32[B, heads, L, d], scaled.
            key: float32[B, heads, L, d].
            prefix: prefix of the layer's roles.
        """
        asked, asking = self._projected(prefix + "k"), self._scaled(prefix + "q")
        return (
            self._taken(asked, query, self._of_queries),
            self._taken(asking, key, self._of_keys),
        )

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
            self._by_token(op.gather(self._table(table), rows, int_constant(0)))
            for table in (self._projected(prefix + "k"), self._scaled(prefix + "q"))
        )
        query = op.transpose(query, int_constants(0, 2, 1, 3))
        products = op.add(
            op.multiply(self._by_token(key), op.add(query, asking)), op.multiply(query, asked)
        )
        summed = op.reduce_sum(products, int_constant(3), False)
        return op.unsqueeze(op.transpose(summed, int_constants(0, 2, 1)), int_constant(2))

    def _blocks(self, tokens: ov.Node, rows: ov.Node, *, are_queries: bool) -> Blocks:
        """Divide the queries or the keys of a text into blocks.

        The numbers that a query's pairs take lie g apart, and g is a multiple of the lanes.

        Args:
            tokens: int32[L, 1] or int32[1, L]: their positions.
            rows: int32[L, L]: the table's row of each pair.
            are_queries: whether they are queries.
        """
        encoder, last, one = self._encoder, self._last, int_constant(1)
        num_blocks = op.add(op.divide(last, int_constant(BLOCK_TOKENS)), one)
        least = op.add(op.divide(last, num_blocks), one)
        vectors = op.divide(op.add(least, int_constant(LANES - 1)), int_constant(LANES))
        size = op.multiply(vectors, int_constant(LANES))
        starts = op.minimum(op.multiply(_range(num_blocks), size), last)
        ends = op.minimum(op.add(starts, op.subtract(size, one)), last)
        if are_queries:
            lowest, highest = op.subtract(starts, last), ends
        else:
            lowest, highest = op.negative(ends), op.subtract(last, starts)
        first = self._rows(lowest)
        more = op.reduce_max(op.subtract(self._rows(highest), first), int_constant(0), False)
        num_rows = op.add(more, one)
        needed = op.add(op.unsqueeze(first, one), _range(num_rows))
        block = op.divide(tokens, size)
        before = op.subtract(op.multiply(block, num_rows), op.gather(first, block, int_constant(0)))
        within = op.subtract(tokens, op.multiply(block, size))
        heads = op.unsqueeze(
            op.multiply(num_blocks, int_constant(encoder.num_heads)), int_constant(0)
        )
        return Blocks(
            tokens=op.minimum(_range(op.multiply(num_blocks, size)), last),
            rows=op.minimum(needed, int_constant(len(self._vectors) - 1)),
            shape=op.concat([int_constants(0), heads, int_constants(-1, encoder.head_dim)], 0),
            places=op.add(op.multiply(op.add(before, rows), size), within),
        )

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

    def _table(self, vectors: NDArray[np.float32]) -> ov.Node:
        """Return the constant float32[...], in the type that it is computed in.

        In float32 the plugin would take what a batch needs, and then round it, in every layer.
        """
        if self._is_bf16:
            return widened(StoredBits("BF16", bfloat16_bits(vectors)), is_copied=True)
        return op.constant(vectors)

    def _scaled(self, role: str) -> NDArray[np.float32]:
        """Return the same, scaled as queries are."""
        encoder = self._encoder
        return self._projected(role) * np.float32(encoder.score_scale)

    def _taken(self, vectors: NDArray[np.float32], tokens: ov.Node, blocks: Blocks) -> ov.Node:
        """Return float32[B, heads, L, L]: for each pair, its token's product with its vector.

        Args:
            vectors: float32[2 buckets, heads * d], of the distances.
            tokens: float32[B, heads, L, d], the queries or the keys.
            blocks: the queries or the keys in blocks.
        """
        by_head = vectors.reshape(1, len(vectors), self._encoder.num_heads, -1)
        table = self._table(np.ascontiguousarray(by_head.transpose(0, 2, 1, 3)))
        needed, tokens = (
            op.reshape(op.gather(of, at, int_constant(2)), blocks.shape, True)
            for of, at in ((table, blocks.rows), (tokens, blocks.tokens))
        )
        products = op.matmul(needed, tokens, False, True)
        flat = op.reshape(products, int_constants(0, self._encoder.num_heads, -1), True)
        num_heads, size = self._encoder.num_heads, heads_at_once(self._encoder)
        if size == num_heads:
            return op.gather(flat, blocks.places, int_constant(2))
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
        return op.concat([op.gather(part, blocks.places, int_constant(2)) for part in parts], 1)

    def _by_token(self, vectors: ov.Node) -> ov.Node:
        """Reshape float32[B, L, heads * d] to float32[B, L, heads, d]."""
        encoder = self._encoder
        shape = int_constants(0, 0, encoder.num_heads, encoder.head_dim)
        return op.reshape(vectors, shape, True)


def _range(number: ov.Node) -> ov.Node:
    """Return 0, 1, 2 ...: int32[number]."""
    return op.range(int_constant(0), number, int_constant(1), output_type="i32")
