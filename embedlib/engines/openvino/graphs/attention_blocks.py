"""Attention in blocks of queries, one after the other; `block_sizes` says where.

Each step of a loop takes Q queries and only the keys that they can see. The scores of a step are
float32[B, heads, Q, keys] with Q * L constant, so memory grows with L alone.

The first block stands before the loop, and a short batch is that block alone: a loop copies keys
and values, which are many behind a kept prefix. (An If operator would keep both forms in the graph;
but in OpenVINO 2026.4 its output is wrong behind some graphs, as if its memory were used twice.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embedlib.engines.openvino.graphs.attention_parts import AttentionParts, Mask, masked
from embedlib.engines.openvino.graphs.nodes import int_constant, int_constants
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.sizes.block_sizes import (
    BLOCK_SCORES,
    CAUSAL_STEPS,
    MAX_WHOLE_TOKENS,
    MIN_BLOCK_QUERIES,
)


class AttentionBlocks(AttentionParts):
    """Builds softmax(cap(q k^T) + mask) v with the scores of few queries at a time."""

    def __call__(self, nodes: Mapping[str, ov.Node], mask: Mask, window: int | None) -> ov.Node:
        """Return float32[B, L, heads * d].

        Args:
            nodes: `query`, `key` and `value` as `Attention` takes them, and those of `Places`.
            mask: makes the mask of a layer with this window.
            window: see `Encoder.windows`.
        """
        num_queries, num_keys = (
            op.squeeze(op.shape_of(nodes[name], "i32"), int_constant(0))
            for name in ("queries", "keys")
        )
        size = op.divide(int_constant(BLOCK_SCORES), num_keys)
        size = op.minimum(op.maximum(size, int_constant(MIN_BLOCK_QUERIES)), num_queries)
        is_long = op.greater(num_queries, int_constant(MAX_WHOLE_TOKENS))
        size = op.select(is_long, size, num_queries)
        num_more = op.divide(op.subtract(num_queries, int_constant(1)), size)
        first = self._block(int_constant(0), {**nodes, "size": size}, mask)
        more = self._loop(num_more, nodes, size, mask, window)
        ends = op.unsqueeze(num_queries, int_constant(0))
        rows = op.concat([first, more], 1)
        return op.slice(rows, int_constants(0), ends, int_constants(1), int_constants(1))

    def _loop(
        self,
        num_blocks: ov.Node,
        nodes: Mapping[str, ov.Node],
        size: ov.Node,
        mask: Mask,
        window: int | None,
    ) -> ov.Node:
        """Return the blocks behind the first one: float32[B, blocks * Q, heads * d].

        If there is none, one query with one key takes its place: after a loop of several steps, one
        of none gives the shapes of the former in OpenVINO 2026.4.
        """
        is_any = op.greater(num_blocks, int_constant(0))
        inputs = {**nodes, "size": op.select(is_any, size, int_constant(1))}
        num_keys = op.shape_of(nodes["keys"], "i32")
        end = op.select(is_any, num_keys, int_constants(1))
        for name in ("key", "value", "keys", "is_token"):
            if name in nodes:
                axis = int_constants(2 if name in ("key", "value") else -1)
                inputs[name] = op.slice(nodes[name], int_constants(0), end, int_constants(1), axis)
        inner = {name: _parameter(node) for name, node in inputs.items()}
        number = op.parameter([], np.int32)
        block = self._block(op.add(number, int_constant(1)), inner, mask, window, is_cut=True)
        go_on = op.constant(np.array(True))
        block = op.unsqueeze(block, int_constant(0))
        body = ov.Model([go_on, block], [number, *inner.values()], "block")
        num_steps = op.maximum(num_blocks, int_constant(1))
        # `output(0)`: given a Node, OpenVINO 2026.4 leaves the input out.
        loop = op.loop(num_steps.output(0), op.constant(np.array(True)).output(0))
        loop.set_function(body)
        loop.set_special_body_ports([0, 0])
        for name, parameter in inner.items():
            loop.set_invariant_input(parameter, inputs[name].output(0))
        blocks = loop.get_concatenated_slices(body.results[1].output(0), 0, 1, 1, -1, 0)
        width = self._encoder.num_heads * self._encoder.head_dim
        rows = op.transpose(blocks, int_constants(1, 0, 2, 3))
        return op.reshape(rows, int_constants(0, -1, width), True)

    def _block(
        self,
        number: ov.Node,
        nodes: Mapping[str, ov.Node],
        mask: Mask,
        window: int | None = None,
        *,
        is_cut: bool = False,
    ) -> ov.Node:
        """Return one block of queries, attended: float32[B, Q, heads * d].

        The last block repeats the last query until it has as many as the others.

        Args:
            number: int32[], which block.
            nodes: the inputs, and `size`, the number Q.
            mask: makes the mask.
            window: see `Encoder.windows`.
            is_cut: whether keys that no query of the block sees are left out; that copies the rest.
        """
        encoder = self._encoder
        start = op.multiply(number, nodes["size"])
        end = op.add(start, nodes["size"])
        last = op.subtract(op.shape_of(nodes["queries"], "i32"), int_constant(1))
        rows = op.minimum(op.range(start, end, int_constant(1), output_type="i32"), last)
        query = op.gather(nodes["query"], rows, int_constant(2))
        queries = op.gather(nodes["queries"], rows, int_constant(0))
        seen = {name: nodes[name] for name in ("key", "value", "keys", "is_token") if name in nodes}
        if is_cut and (encoder.is_causal or window is not None):
            first, behind = self._seen(queries, nodes["keys"], window)
            for name, node in seen.items():
                axis = int_constants(2 if name in ("key", "value") else -1)
                seen[name] = op.slice(node, first, behind, int_constants(1), axis)
        # The queries of the heads that share a key head lie behind one another: no key is repeated.
        query = op.reshape(
            query, int_constants(0, encoder.num_kv_heads, -1, encoder.head_dim), True
        )
        scores = self.capped(
            self._by_query(op.matmul(query, seen["key"], False, True), nodes["size"])
        )
        asked = op.unsqueeze(queries, int_constants(0, 1, 3))
        shares = self.shares(masked(scores, mask(asked, seen["keys"], seen.get("is_token"))))
        mixed = op.matmul(self._by_key(shares, nodes["size"]), seen["value"], False, False)
        return self.joined(self._by_query(mixed, nodes["size"]))

    def _seen(self, queries: ov.Node, keys: ov.Node, window: int | None) -> tuple[ov.Node, ov.Node]:
        """Return a range of keys with all that a block can see, int32[1] each: first, and behind.

        The range is wider than needed, so that few numbers of keys occur: the library compiles its
        products again for each, and keeps them.
        """
        num_keys = op.shape_of(keys, "i32")
        if window is None:
            step = op.add(op.divide(num_keys, int_constant(CAUSAL_STEPS)), int_constant(1))
            highest = op.reduce_max(queries, int_constant(0), True)
            num_steps = op.add(op.divide(highest, step), int_constant(1))
            return int_constants(0), op.minimum(op.multiply(num_steps, step), num_keys)
        before, after = (window - 1, 0) if self._encoder.is_causal else (window, window)
        width = op.add(op.shape_of(queries, "i32"), int_constant(before + after))
        width = op.minimum(width, num_keys)
        lowest = op.reduce_min(queries, int_constant(0), True)
        first = op.maximum(op.subtract(lowest, int_constant(before)), int_constant(0))
        first = op.minimum(first, op.subtract(num_keys, width))
        return first, op.add(first, width)

    def _by_query(self, vectors: ov.Node, size: ov.Node) -> ov.Node:
        """Reshape [B, kv, heads / kv * Q, n] to [B, heads, Q, n]."""
        return self._reshaped(vectors, self._encoder.num_heads, size)

    def _by_key(self, vectors: ov.Node, size: ov.Node) -> ov.Node:
        """Reshape [B, heads, Q, n] to [B, kv, heads / kv * Q, n]."""
        groups = self._encoder.num_heads // self._encoder.num_kv_heads
        rows = op.multiply(size, int_constant(groups))
        return self._reshaped(vectors, self._encoder.num_kv_heads, rows)

    def _reshaped(self, vectors: ov.Node, num_heads: int, num_rows: ov.Node) -> ov.Node:
        if self._encoder.num_kv_heads == self._encoder.num_heads:
            return vectors
        last = op.gather(op.shape_of(vectors, "i32"), int_constants(3), int_constant(0))
        rows = op.unsqueeze(num_rows, int_constant(0))
        shape = op.concat([int_constants(0, num_heads), rows, last], 0)
        return op.reshape(vectors, shape, True)


def _parameter(node: ov.Node) -> ov.Node:
    """Return a parameter of a body that takes a node from outside."""
    return op.parameter(node.get_output_partial_shape(0), node.get_output_element_type(0))
