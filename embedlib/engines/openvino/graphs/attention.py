"""Attention: in one piece, or in blocks of queries where that would take much memory or time.

In one piece the plugin fuses products, mask and softmax, and holds the scores of few queries. Where
it cannot (`block_sizes.is_in_blocks`) the scores would be float32[B, heads, L, L], 4.3 GB at 8,192
tokens and 16 heads; see `attention_blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from embedlib.engines.openvino.graphs.attention_blocks import AttentionBlocks
from embedlib.engines.openvino.graphs.attention_parts import AttentionParts, Mask, masked
from embedlib.engines.openvino.graphs.nodes import int_constant, int_constants
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Encoder


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


class Attention(AttentionParts):
    """Builds softmax(cap(q k^T) + mask) v for all tokens of a batch."""

    def __init__(self, encoder: Encoder, places: Places, *, is_in_blocks: bool) -> None:
        """Hold what all layers share.

        Args:
            encoder: the transformer.
            places: where the tokens are.
            is_in_blocks: see `block_sizes.is_in_blocks`.
        """
        super().__init__(encoder)
        self._places = places
        self._blocks = AttentionBlocks(encoder) if is_in_blocks else None
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
        if self._blocks is None:
            return self.whole(query, key, value, [], mask)
        nodes = {"query": query, "key": key, "value": value, **self._places.nodes}
        return self._blocks(nodes, mask, window)

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
        shares = self.shares(masked(reduce(op.add, added, scores), made))
        mixed = op.matmul(shares, value, False, False)
        return self.joined(_folded(mixed, num_heads) if folds else mixed)

    def _for_queries(self, vectors: ov.Node) -> ov.Node:
        """Repeat key or value heads, one per query head: [B, kv, L, d] to [B, heads, L, d]."""
        encoder = self._encoder
        groups = encoder.num_heads // encoder.num_kv_heads
        if groups == 1:
            return vectors
        repeated = op.concat([op.unsqueeze(vectors, int_constant(2))] * groups, 2)
        return op.reshape(repeated, int_constants(0, encoder.num_heads, -1, encoder.head_dim), True)


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
