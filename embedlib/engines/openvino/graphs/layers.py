"""The transformer's layers. If pooling takes one token, the last layer computes only that token.

With cls or last_token pooling, the last layer's outputs for all other tokens are unused. The layer
is then computed for the pooled token alone, and without computing keys and values of the others.
With q the single query of a head, and p the softmax weight of token x,

    q . (K x) = (K^T q) . x        and        sum of p (V x + b) = V (sum of p x) + b

since the p sum to 1. K's bias adds the same number to all scores, which softmax cancels. So the
last layer costs almost nothing, and the vectors are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedlib.engines.openvino.graphs.attention import Attention
from embedlib.engines.openvino.graphs.attention_parts import Mask, has_plain_keys, masked
from embedlib.engines.openvino.graphs.convolutions import ConvolutionLayers
from embedlib.engines.openvino.graphs.distances import Distances
from embedlib.engines.openvino.graphs.experts import ExpertLayers
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.graphs.kept_tokens import KeptTokens
from embedlib.engines.openvino.graphs.layer_inputs import LayerInputs
from embedlib.engines.openvino.graphs.mlp import mlp
from embedlib.engines.openvino.graphs.nodes import float_constant, int_constant, int_constants
from embedlib.engines.openvino.graphs.positions import Rotation
from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Encoder


@dataclass(frozen=True)
class Sight:
    """How position enters the attention of a layer: mask and rotations."""

    mask: Mask
    """Makes the mask of the scores."""
    window: int | None
    place: ov.Node | None = None
    """int32[B, 1]: position of the pooled token; None: all tokens are computed."""
    rotate_query: Rotation | None = None
    rotate_key: Rotation | None = None


@dataclass(frozen=True)
class Layers:
    """Builds the nodes of a model's layers."""

    encoder: Encoder
    weighted: Weighted
    attend: Attention
    options: GraphOptions
    indices: ov.Node
    kept: KeptTokens | None
    distances: Distances | None
    experts: ExpertLayers | None
    inputs: LayerInputs | None
    convolutions: ConvolutionLayers | None

    def layer(
        self, hidden: ov.Node, index: int, sight: Sight, pooled: ov.Node | None = None
    ) -> ov.Node:
        """Return the output of one layer: float32[B, L, H], or float32[B, 1, H] with `pooled`.

        Args:
            hidden: float32[B, L, H], the output of the layer before.
            index: which layer.
            sight: mask and rotations, for all tokens or for the pooled ones.
            pooled: int32[B, 1], the position of the only token to compute; None: compute all.
        """
        encoder, prefix = self.encoder, f"layers.{index}."
        if encoder.norm_placement == "post":
            own, change = self._take(hidden, pooled), self._attention(hidden, prefix, sight, pooled)
            if encoder.norms_attention_twice:
                change = self._norm(op.add(own, change), prefix + "attention_out_norm")
            hidden = self._norm(op.add(own, change), prefix + "attention_norm")
            change = self._change(hidden, index, pooled)
            return self._norm(op.add(hidden, change), prefix + "mlp_norm")
        is_normed = encoder.norms_embeddings and index == 0
        normed = hidden if is_normed else self._norm(hidden, prefix + "attention_norm")
        change = self._attention(normed, prefix, sight, pooled)
        if encoder.norm_placement == "sandwich":
            change = self._norm(change, prefix + "attention_out_norm")
        hidden = op.add(self._take(hidden, pooled), change)
        change = self._change(self._norm(hidden, prefix + "mlp_norm"), index, pooled)
        if encoder.norm_placement == "sandwich":
            change = self._norm(change, prefix + "mlp_out_norm")
        hidden = op.add(hidden, change)
        return hidden if self.inputs is None else self.inputs.end(hidden, index, pooled)

    def _attention(
        self, hidden: ov.Node, prefix: str, sight: Sight, pooled: ov.Node | None
    ) -> ov.Node:
        """Return attention's change of the residual stream: float32[B, L or 1, H].

        Or that of the convolution in its place.
        """
        encoder = self.encoder
        if self.convolutions is not None and self.convolutions.has(prefix):
            mixed = self._take(self.convolutions.mixed(hidden, prefix), pooled)
            return self.weighted.linear(mixed, prefix + "conv_out")
        if self.distances is not None and pooled is None:
            mixed = self._attend_by_distance(hidden, prefix, sight)
            return self.weighted.linear(mixed, prefix + "o")
        query = self._heads(self._take(hidden, pooled), prefix + "q", encoder.num_heads)
        if sight.rotate_query:
            query = sight.rotate_query(query)
        elif pooled is not None or not self.attend.scales_late:
            query = op.multiply(query, float_constant(encoder.score_scale))
        if pooled is not None:
            mixed = self._attend_from_one(query, hidden, prefix, sight)
        else:
            key = self._keys(hidden, prefix, sight)
            value = self._values(hidden, prefix)
            mixed = self.attend(query, key, value, sight.mask, sight.window)
        return self.weighted.linear(mixed, prefix + "o")

    def _attend_by_distance(self, hidden: ov.Node, prefix: str, sight: Sight) -> ov.Node:
        """Return attention of all tokens with relative positions: float32[B, L, heads * d]."""
        encoder, distances = self.encoder, self.distances
        assert distances is not None, "checked by the caller; a bug in embedlib"
        scale = float_constant(encoder.score_scale)
        query, key, value = (
            self._heads(hidden, prefix + leaf, encoder.num_heads) for leaf in ("q", "k", "v")
        )
        query = op.multiply(query, scale)
        added = distances.scores(query, key, prefix)
        return self.attend.whole(query, key, value, added, sight.mask)

    def _attend_from_one(
        self, query: ov.Node, hidden: ov.Node, prefix: str, sight: Sight
    ) -> ov.Node:
        """Return the attention of one query per sequence: float32[B, 1, heads * d]."""
        assert sight.place is not None, "pooled tokens have a place; this is a bug in embedlib"
        if self.distances is not None:
            key = self.weighted.linear(hidden, prefix + "k")
            scores = self.distances.scores_of_one(query, key, prefix, sight.place)
        elif has_plain_keys(self.encoder):
            hidden = self._behind_kept(hidden, prefix + "hidden", 1)
            scores = self._scores_without_keys(query, hidden, prefix)
        else:
            key = self._keys(hidden, prefix, sight)
            asked = self._by_kv_head(query, self.encoder.head_dim)
            scores = self._by_query_head(op.matmul(asked, key, False, True))
            hidden = self._behind_kept(hidden, prefix + "hidden", 1)
        scores = self.attend.capped(scores)
        shares = op.softmax(masked(scores, self.attend.mask_at(sight.place, sight.mask)), -1)
        if self.encoder.has_v_norm:
            value = self._values(hidden, prefix)
            mixed = op.matmul(self._by_kv_head(shares, -1), value, False, False)
            return self.attend.joined(self._by_query_head(mixed))
        return self.attend.joined(self._mix_without_values(shares, hidden, prefix))

    def _values(self, hidden: ov.Node, prefix: str) -> ov.Node:
        """Return the values of all tokens, those of a prefix first: float32[B, kv, S, d]."""
        value = self._heads(hidden, prefix + "v", self.encoder.num_kv_heads)
        return self._behind_kept(value, prefix + "v", 2)

    def _keys(self, hidden: ov.Node, prefix: str, sight: Sight) -> ov.Node:
        """Return the keys of all tokens, those of a prefix first: float32[B, kv, S, d]."""
        key = self._heads(hidden, prefix + "k", self.encoder.num_kv_heads)
        key = sight.rotate_key(key) if sight.rotate_key else key
        return self._behind_kept(key, prefix + "k", 2)

    def _behind_kept(self, vectors: ov.Node, role: str, axis: int) -> ov.Node:
        return vectors if self.kept is None else self.kept.behind(vectors, role, axis)

    def _heads(self, vectors: ov.Node, role: str, num_heads: int) -> ov.Node:
        """Return queries, keys or values, with any query or key norm: float32[B, heads, L, d]."""
        encoder = self.encoder
        vectors = self.weighted.linear(vectors, role)
        is_normed = encoder.has_qk_norm and role.endswith(("q", "k"))
        if is_normed and encoder.qk_norm_joins_heads:
            vectors = self.weighted.layer_norm(vectors, role + "_norm", encoder.norm_eps)
        vectors = op.reshape(vectors, int_constants(0, 0, num_heads, encoder.head_dim), True)
        if is_normed and not encoder.qk_norm_joins_heads:
            vectors = self.weighted.rms_norm(vectors, role + "_norm", encoder.norm_eps)
        if encoder.has_v_norm and role.endswith("v"):
            vectors = self.weighted.bare_rms_norm(vectors, encoder.norm_eps)
        return op.transpose(vectors, int_constants(0, 2, 1, 3))

    def _scores_without_keys(self, query: ov.Node, hidden: ov.Node, prefix: str) -> ov.Node:
        """Return the scores of one query per sequence, up to a shift: float32[B, heads, 1, L].

        Args:
            query: float32[B, heads, 1, d].
            hidden: float32[B, L, H].
            prefix: prefix of the layer's roles.
        """
        encoder = self.encoder
        keys = self.weighted.by_head(prefix + "k", encoder.num_kv_heads)
        asked = op.matmul(self._by_kv_head(query, encoder.head_dim), keys, False, False)
        asked = op.reshape(asked, int_constants(0, encoder.num_heads, encoder.hidden_size), True)
        return op.unsqueeze(op.matmul(asked, hidden, False, True), int_constant(2))

    def _mix_without_values(self, shares: ov.Node, hidden: ov.Node, prefix: str) -> ov.Node:
        """Return the values averaged with the weights `shares`: float32[B, heads, 1, d].

        Args:
            shares: float32[B, heads, 1, L], the output of softmax: each row sums to 1.
            hidden: float32[B, L, H].
            prefix: prefix of the layer's roles.
        """
        encoder = self.encoder
        seen = op.matmul(op.squeeze(shares, int_constant(2)), hidden, False, False)
        values = self.weighted.by_head(prefix + "v", encoder.num_kv_heads)
        mixed = op.matmul(self._by_kv_head(seen, encoder.hidden_size), values, False, True)
        if encoder.has_qkv_bias:
            bias = self.weighted.bias_by_head(prefix + "v", encoder.num_kv_heads)
            mixed = op.add(mixed, bias)
        return self._by_query_head(mixed)

    def _by_kv_head(self, vectors: ov.Node, width: int) -> ov.Node:
        """Reshape float32[B, heads, ... width] to float32[B, kv, heads / kv, width]."""
        encoder = self.encoder
        groups = encoder.num_heads // encoder.num_kv_heads
        return op.reshape(vectors, int_constants(0, encoder.num_kv_heads, groups, width), True)

    def _by_query_head(self, vectors: ov.Node) -> ov.Node:
        """Reshape float32[B, kv, heads / kv, width] to float32[B, heads, 1, width]."""
        return op.reshape(vectors, int_constants(0, self.encoder.num_heads, 1, -1), True)

    def _change(self, hidden: ov.Node, index: int, pooled: ov.Node | None) -> ov.Node:
        """Return the change of the residual stream by the layer's MLP or experts."""
        prefix = f"layers.{index}."
        if self.experts is not None and self.experts.has(index):
            return self.experts.mlp(hidden, prefix, is_pooled=pooled is not None)
        return mlp(hidden, prefix, self.encoder, self.weighted, self.options.mlp_parts)

    def _take(self, vectors: ov.Node, places: ov.Node | None) -> ov.Node:
        """Return the rows of float32[B, L, H] at the indices int32[B, 1]; None: all rows."""
        if places is None:
            return vectors
        if not self.options.has_narrow_residual:
            return op.gather(vectors, places, int_constant(1), batch_dims=1)
        # A product, before which the plugin computes in bf16: in OpenVINO 2026.4 not if the numbers
        # came from the conversion as they are.
        is_taken = op.equal(places, op.unsqueeze(self.indices, int_constant(0)))
        shares = op.unsqueeze(op.convert(is_taken, "f32"), int_constant(1))
        return op.matmul(shares, vectors, False, False)

    def _norm(self, vectors: ov.Node, role: str) -> ov.Node:
        return self.weighted.norm(self.encoder.norm, vectors, role, self.encoder.norm_eps)
