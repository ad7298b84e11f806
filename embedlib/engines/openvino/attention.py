"""Attention: in one piece, or in blocks of queries where that would take much memory or time.

In one piece the plugin fuses products, mask and softmax, and holds the scores of few queries. Where
it cannot (`block_sizes.is_in_blocks`) the scores would be float32[B, heads, L, L], 4.3 GB at 8,192
tokens and 16 heads. In blocks each step of a loop takes Q queries and only the keys that they can
see. The scores of a step are float32[B, heads, Q, keys] with Q * L constant, so memory grows with L
alone.

The first block stands before the loop, and a short batch is that block alone: a loop copies keys
and values, which are many behind a kept prefix. (An If operator would keep both forms in the graph;
but in OpenVINO 2026.4 its output is wrong behind some graphs, as if its memory were used twice.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from embedlib.engines.openvino.block_sizes import (
    BLOCK_SCORES,
    CAUSAL_STEPS,
    MAX_WHOLE_TOKENS,
    MIN_BLOCK_QUERIES,
)
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.nodes import MASKED, float_constant, int_constant, int_constants
from embedlib.models.spec import Encoder

Mask = Callable[[ov.Node, ov.Node, "ov.Node | None"], ov.Node]
"""Makes a mask, [B or 1, heads or 1, queries or 1, keys], of the queries' positions int32[B or 1,
1, queries or 1, 1], the keys' positions int32[keys] and `Places.is_token`. float32: it is added to
the scores. bool: False on the scores that do not count."""


@dataclass(frozen=True)
class Places:
    """Where the queries and keys of a batch are."""

    queries: ov.Node
    """int32[L]: positions."""
    keys: ov.Node
    """int32[S]: positions 0, 1, 2 ... S - 1."""
    is_token: ov.Node | None
    """bool[B, S]: False on padding. None for a causal model: it never sees the padding, which is on
    the right."""

    @property
    def nodes(self) -> dict[str, ov.Node]:
        """The nodes by name."""
        named = {"queries": self.queries, "keys": self.keys}
        return named if self.is_token is None else {**named, "is_token": self.is_token}


class Attention:
    """Builds softmax(cap(q k^T) + mask) v for all tokens of a batch.

    The plugin moves a factor of the queries into the product that makes them, or one of the scores
    into that of the keys, and then multiplies with oneDNN in place of MLAS: slower, and a matrix
    more in memory. So where `scales_late`, the scores are scaled behind the mask.
    """

    def __init__(self, encoder: Encoder, places: Places, *, is_in_blocks: bool) -> None:
        """Hold what all layers share.

        Args:
            encoder: the transformer.
            places: where the tokens are.
            is_in_blocks: see `block_sizes.is_in_blocks`.
        """
        self._encoder = encoder
        self.scales_late = _can_scale_late(encoder)
        """Whether queries come unscaled."""
        self._places = places
        self._is_in_blocks = is_in_blocks
        self._whole_masks: dict[Mask, tuple[ov.Node, bool]] = {}

    def __call__(
        self, query: ov.Node, key: ov.Node, value: ov.Node, mask: Mask, window: int | None
    ) -> ov.Node:
        """Return float32[B, L, heads * d].

        Args:
            query: float32[B, heads, L, d], scaled unless `scales_late`.
            key: float32[B, kv heads, S, d].
            value: the same.
            mask: makes the mask of a layer with this window.
            window: see `Encoder.windows`.
        """
        nodes = {"query": query, "key": key, "value": value, **self._places.nodes}
        if self._is_in_blocks:
            return self._blocks(nodes, mask, window)
        return self.whole(query, key, value, [], mask)

    def _whole_mask(self, mask: Mask) -> tuple[ov.Node, bool]:
        """Return the mask of all queries, and whether it is for folded key heads, see `whole`.

        Layers with the same `mask` share it. Folded it is [B * kv or 1, 1, L or 1, S].
        """
        if mask not in self._whole_masks:
            places = self._places
            queries = op.unsqueeze(places.queries, int_constants(0, 1, 3))
            made = mask(queries, places.keys, places.is_token)
            num_kv_heads = self._encoder.num_kv_heads
            folds = num_kv_heads < self._encoder.num_heads and _is_of_all_heads(made)
            if folds and not _is_one(made, 0):
                made = _folded(op.concat([made] * num_kv_heads, 1), 1)
            self._whole_masks[mask] = made, folds
        return self._whole_masks[mask]

    def mask_at(self, place: ov.Node, mask: Mask) -> ov.Node:
        """Return the mask of one query per sequence, at int32[B, 1]: [B, heads or 1, 1, S]."""
        places = self._places
        return mask(op.unsqueeze(place, int_constants(2, 3)), places.keys, places.is_token)

    def whole(
        self, query: ov.Node, key: ov.Node, value: ov.Node, added: Sequence[ov.Node], mask: Mask
    ) -> ov.Node:
        """Return attention in one piece, as `__call__` does.

        Built from single operators: the plugin fuses these into faster code than it has for its
        attention operator. Each part of `added` is added to the scores themselves: the plugin fuses
        that, too, and would write the sum of two parts to memory.

        Where the mask allows it, key heads are folded into the batch: each is a text of its own,
        [B * kv, 1, S, d], whose heads are the queries' heads that share it, [B * kv, heads / kv, L,
        d]. So no key is repeated.

        Args:
            query: float32[B, heads, L, d], scaled unless `scales_late`.
            key: float32[B, kv heads, S, d].
            value: the same.
            added: numbers of a layer that belong to its scores, float32[B, heads, L, S] each; only
                where each head has keys of its own.
            mask: makes the mask.
        """
        num_heads, num_kv_heads = self._encoder.num_heads, self._encoder.num_kv_heads
        made, folds = self._whole_mask(mask)
        if folds:
            query = _folded(query, num_heads // num_kv_heads)
            key, value = _folded(key, 1), _folded(value, 1)
        else:
            key, value = self._for_queries(key), self._for_queries(value)
        scores = self.capped(op.matmul(query, key, False, True))
        shares = self._shares(masked(reduce(op.add, added, scores), made))
        mixed = op.matmul(shares, value, False, False)
        return self.joined(_folded(mixed, num_heads) if folds else mixed)

    def _shares(self, scores: ov.Node) -> ov.Node:
        """Return the weights of the values, of scores with their mask."""
        if self.scales_late:
            scores = op.multiply(scores, float_constant(self._encoder.score_scale))
        return op.softmax(scores, -1)

    def capped(self, scores: ov.Node) -> ov.Node:
        """Return the scores, with the model's cap if it has one."""
        if self._encoder.attention_cap is None:
            return scores
        cap = float_constant(self._encoder.attention_cap)
        return op.multiply(op.tanh(op.divide(scores, cap)), cap)

    def joined(self, mixed: ov.Node) -> ov.Node:
        """Lay the heads side by side: [B, heads, L, d] to [B, L, heads * d]."""
        width = self._encoder.num_heads * self._encoder.head_dim
        mixed = op.transpose(mixed, int_constants(0, 2, 1, 3))
        return op.reshape(mixed, int_constants(0, 0, width), True)

    def _for_queries(self, vectors: ov.Node) -> ov.Node:
        """Repeat key or value heads, one per query head: [B, kv, L, d] to [B, heads, L, d]."""
        encoder = self._encoder
        groups = encoder.num_heads // encoder.num_kv_heads
        if groups == 1:
            return vectors
        repeated = op.concat([op.unsqueeze(vectors, int_constant(2))] * groups, 2)
        return op.reshape(repeated, int_constants(0, encoder.num_heads, -1, encoder.head_dim), True)

    def _blocks(self, nodes: Mapping[str, ov.Node], mask: Mask, window: int | None) -> ov.Node:
        """Return attention in blocks of queries, one after the other.

        The first block stands before the loop, which copies what it is given: a short batch is this
        block alone.
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
        shares = self._shares(masked(scores, mask(asked, seen["keys"], seen.get("is_token"))))
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


def _folded(vectors: ov.Node, num_heads: int) -> ov.Node:
    """Reshape [B, heads, L, n] to [B * heads / num_heads, num_heads, L, n]; or back."""
    return op.reshape(vectors, int_constants(-1, num_heads, 0, 0), True)


def _is_of_all_heads(mask: ov.Node) -> bool:
    """Return whether a mask is the same for all heads, and either for all texts or all queries.

    One of pairs that differs from text to text would be copied for each key head: 8.6 GB for 8 key
    heads and 32,768 tokens.
    """
    return _is_one(mask, 1) and (_is_one(mask, 0) or _is_one(mask, 2))


def _is_one(node: ov.Node, axis: int) -> bool:
    size = node.get_output_partial_shape(0)[axis]
    return bool(size.is_static and size.get_length() == 1)


def masked(scores: ov.Node, mask: ov.Node) -> ov.Node:
    """Return the scores with a mask, see `Mask`."""
    if mask.get_element_type() == ov.Type.boolean:
        return op.select(mask, scores, op.constant(MASKED))
    return op.add(scores, mask)


def _can_scale_late(encoder: Encoder) -> bool:
    """Return whether a score changes only by its scale and by a mask, which stays finite.

    Queries that are rotated are scaled by that, which costs nothing.
    """
    is_plain = not encoder.has_rope and not encoder.has_qk_norm and encoder.attention_cap is None
    has_bias = encoder.position_bias is not None or encoder.relative_positions is not None
    return is_plain and not has_bias and encoder.score_scale <= 1


def _parameter(node: ov.Node) -> ov.Node:
    """Return a parameter of a body that takes a node from outside."""
    return op.parameter(node.get_output_partial_shape(0), node.get_output_element_type(0))
