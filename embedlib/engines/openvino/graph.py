"""A ModelSpec and its weights as an OpenVINO graph, built from OpenVINO's own operators.

Inputs: `token_ids` int32[B, L] (padded on the right) and `seq_lens` int32[B]; only where a model
with a head tells types of tokens apart, `num_first_tokens` int32[B]; only where pooling leaves the
prompt out, `num_prompt_tokens` int32[B]. Output: float32[B, D], or float32[B, L, D] where there is
no pooling.

float32 weights are views onto the memory-mapped file: building a graph copies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as op

from embedlib.engines.openvino.matrices import matrix
from embedlib.engines.openvino.nodes import (
    MASKED,
    activate,
    float_constant,
    int_constant,
    int_constants,
    int_input,
)
from embedlib.engines.openvino.positions import (
    Rotation,
    attention_mask,
    position_scores,
    rotation,
)
from embedlib.models.spec import (
    Dense,
    Encoder,
    LayerNorm,
    ModelSpec,
    Normalize,
    Pooling,
    PoolingMode,
    Rope,
)

Weights = Mapping[str, NDArray[np.float32]]


def build_graph(spec: ModelSpec, weights: Weights) -> ov.Model:
    """Return the graph of a model."""
    return _GraphBuilder(spec, weights).build()


class _GraphBuilder:
    """Builds one graph; the fields are the nodes that many layers share."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        self.spec = spec
        self.encoder = spec.encoder
        self.weights = weights
        self.token_ids = int_input("token_ids", [-1, -1])
        self.seq_lens = int_input("seq_lens", [-1])
        self.inputs = [self.token_ids, self.seq_lens]
        length = op.gather(op.shape_of(self.token_ids, "i32"), int_constant(1), int_constant(0))
        self.positions = op.range(int_constant(0), length, int_constant(1), output_type="i32")
        """int32[L]: 0, 1, 2 ..."""
        self.is_token = op.less(
            op.unsqueeze(self.positions, int_constant(0)),
            op.unsqueeze(self.seq_lens, int_constant(1)),
        )
        """bool[B, L]: False on padding."""

    def build(self) -> ov.Model:
        hidden = self._embed()
        encoder = self.encoder
        masks = {window: self._mask(window) for window in dict.fromkeys(encoder.windows)}
        ropes = [_rope_of(encoder, window) for window in encoder.windows]
        rotations = {rope: self._rotation(rope) for rope in dict.fromkeys(ropes) if rope}
        for layer, (window, rope) in enumerate(zip(encoder.windows, ropes, strict=True)):
            rotate = rotations[rope] if rope else None
            hidden = self._layer(hidden, f"layers.{layer}.", masks[window], rotate)
        if encoder.norm_placement != "post":
            hidden = self._norm(hidden, "final_norm")
        vector = hidden
        for index, module in enumerate(self.spec.modules):
            if isinstance(module, Pooling):
                vector = self._pool(hidden, module)
            elif isinstance(module, Dense):
                vector = activate(self._linear(vector, f"modules.{index}"), module.activation)
            elif isinstance(module, LayerNorm):
                vector = self._layer_norm(vector, f"modules.{index}", module.eps)
            elif isinstance(module, Normalize):
                # Source: torch.nn.functional.normalize, x / max(|x|, 1e-12); eps is squared here.
                last = len(vector.get_output_partial_shape(0)) - 1
                vector = op.normalize_l2(vector, int_constants(last), 1e-24, "max")
        graph = ov.Model([vector], self.inputs, "embedlib")
        # A name made up by OpenVINO would be another one each time, and miss the cache of compiled
        # models.
        graph.outputs[0].get_tensor().set_names({"vectors"})
        return graph

    def _embed(self) -> ov.Node:
        """Token ids to float32[B, L, H]."""
        encoder = self.encoder
        hidden = op.gather(self._constant("tokens"), self.token_ids, int_constant(0))
        if encoder.embedding_scale != 1:
            hidden = op.multiply(hidden, float_constant(encoder.embedding_scale))
        if encoder.rope is None:
            table = self._constant("positions")
            if encoder.pad_token_id is None:
                rows = op.gather(
                    table,
                    op.add(self.positions, int_constant(encoder.position_offset)),
                    int_constant(0),
                )
            else:
                rows = op.gather(
                    table, self._positions_past_padding(encoder.pad_token_id), int_constant(0)
                )
            hidden = op.add(hidden, rows)
        head = self.spec.head
        if encoder.num_token_types > 1 and head is not None and head.has_token_types:
            hidden = op.add(hidden, self._token_types())
        elif encoder.num_token_types:
            # One text is one segment: every token is of type 0.
            hidden = op.add(
                hidden, op.constant(np.ascontiguousarray(self.weights["token_types"][0]))
            )
        if encoder.norm_placement == "post" or encoder.norms_embeddings:
            hidden = self._norm(hidden, "embedding_norm")
        return hidden

    def _token_types(self) -> ov.Node:
        """The vector of each token's type: float32[B, L, H]; a pair's second text is of type 1."""
        num_first_tokens = int_input("num_first_tokens", [-1])
        self.inputs.append(num_first_tokens)
        is_second = op.greater_equal(
            op.unsqueeze(self.positions, int_constant(0)),
            op.unsqueeze(num_first_tokens, int_constant(1)),
        )
        types = op.convert(is_second, "i32")
        return op.gather(self._constant("token_types"), types, int_constant(0))

    def _positions_past_padding(self, pad_token_id: int) -> ov.Node:
        """int32[B, L]: the tokens counted from pad_token_id + 1 on, the padding token itself not.

        It matters when a text contains the padding token as text. Source:
        `create_position_ids_from_input_ids` in transformers, models/roberta.
        """
        counts = op.convert(op.not_equal(self.token_ids, int_constant(pad_token_id)), "i32")
        counts = op.multiply(op.cumsum(counts, int_constant(1)), counts)
        return op.add(counts, int_constant(pad_token_id))

    def _mask(self, window: int | None) -> ov.Node:
        """What is added to attention scores: float32[B or 1, heads or 1, L or 1, L]."""
        encoder = self.encoder
        mask = attention_mask(self.positions, self.is_token, window, encoder.is_causal)
        if encoder.position_bias is None:
            return mask
        num_positions = encoder.num_positions - encoder.position_offset
        table = self.weights["position_bias"]
        scores = position_scores(self.positions, encoder.position_bias, table, num_positions)
        return op.add(mask, scores)

    def _rotation(self, rope: Rope) -> Rotation:
        return rotation(self.positions, rope, self.encoder.head_dim, self.spec.max_seq_tokens)

    def _layer(
        self, hidden: ov.Node, prefix: str, mask: ov.Node, rotate: Rotation | None
    ) -> ov.Node:
        """One transformer layer on float32[B, L, H]."""
        attention_norm, mlp_norm = prefix + "attention_norm", prefix + "mlp_norm"
        if self.encoder.norm_placement == "post":
            hidden = op.add(hidden, self._attention(hidden, prefix, mask, rotate))
            hidden = self._norm(hidden, attention_norm)
            return self._norm(op.add(hidden, self._mlp(hidden, prefix)), mlp_norm)
        is_normed = self.encoder.norms_embeddings and prefix == "layers.0."
        normed = hidden if is_normed else self._norm(hidden, attention_norm)
        change = self._attention(normed, prefix, mask, rotate)
        if self.encoder.norm_placement == "sandwich":
            change = self._norm(change, prefix + "attention_out_norm")
        hidden = op.add(hidden, change)
        change = self._mlp(self._norm(hidden, mlp_norm), prefix)
        if self.encoder.norm_placement == "sandwich":
            change = self._norm(change, prefix + "mlp_out_norm")
        return op.add(hidden, change)

    def _attention(
        self, hidden: ov.Node, prefix: str, mask: ov.Node, rotate: Rotation | None
    ) -> ov.Node:
        """softmax(scale q k^T + mask) v, heads in parallel; float32[B, L, H] both ways.

        Spelled out: the plugin fuses these operators better than its attention operator.
        """
        encoder = self.encoder

        def heads(name: str, num_heads: int) -> ov.Node:
            vectors = self._linear(hidden, prefix + name)
            vectors = op.reshape(vectors, int_constants(0, 0, num_heads, encoder.head_dim), True)
            if encoder.has_qk_norm and name in ("q", "k"):
                vectors = self._rms_norm(vectors, prefix + name + "_norm", encoder.norm_eps)
            vectors = op.transpose(vectors, int_constants(0, 2, 1, 3))
            return rotate(vectors) if rotate and name in ("q", "k") else vectors

        query = heads("q", encoder.num_heads)
        key, value = heads("k", encoder.num_kv_heads), heads("v", encoder.num_kv_heads)
        if encoder.num_kv_heads != encoder.num_heads:
            key, value = self._repeat_heads(key), self._repeat_heads(value)
        scale = encoder.attention_scale
        query = op.multiply(query, float_constant(scale or encoder.head_dim**-0.5))
        scores = op.matmul(query, key, False, True)
        if encoder.attention_cap is not None:
            cap = float_constant(encoder.attention_cap)
            scores = op.multiply(op.tanh(op.divide(scores, cap)), cap)
        mixed = op.matmul(op.softmax(op.add(scores, mask), -1), value, False, False)
        width = encoder.num_heads * encoder.head_dim
        mixed = op.reshape(
            op.transpose(mixed, int_constants(0, 2, 1, 3)), int_constants(0, 0, width), True
        )
        return self._linear(mixed, prefix + "o")

    def _repeat_heads(self, vectors: ov.Node) -> ov.Node:
        """Give every query head its key or value head: [B, kv, L, d] to [B, heads, L, d]."""
        encoder = self.encoder
        groups = encoder.num_heads // encoder.num_kv_heads
        repeated = op.concat([op.unsqueeze(vectors, int_constant(2))] * groups, 2)
        return op.reshape(repeated, int_constants(0, encoder.num_heads, -1, encoder.head_dim), True)

    def _mlp(self, hidden: ov.Node, prefix: str) -> ov.Node:
        """down(act(gate) * up) or down(act(up)); float32[B, L, H] both ways."""
        up = self._linear(hidden, prefix + "up")
        if self.encoder.is_gated:
            gate = activate(self._linear(hidden, prefix + "gate"), self.encoder.activation)
            return self._linear(op.multiply(gate, up), prefix + "down")
        return self._linear(activate(up, self.encoder.activation), prefix + "down")

    def _pool(self, hidden: ov.Node, pooling: Pooling) -> ov.Node:
        """Token vectors float32[B, L, H] to float32[B, H * number of modes].

        Source: `Pooling.forward` of sentence-transformers: excluding the prompt touches the mask
        only, so that cls and last_token keep their token.
        """
        counted = self.is_token
        if not pooling.include_prompt:
            num_prompt_tokens = int_input("num_prompt_tokens", [-1])
            self.inputs.append(num_prompt_tokens)
            after = op.greater_equal(
                op.unsqueeze(self.positions, int_constant(0)),
                op.unsqueeze(num_prompt_tokens, int_constant(1)),
            )
            counted = op.logical_and(counted, after)
        vectors = [self._pool_mode(hidden, pooling, mode, counted) for mode in pooling.modes]
        return op.concat(vectors, 1) if len(vectors) > 1 else vectors[0]

    def _pool_mode(
        self, hidden: ov.Node, pooling: Pooling, mode: PoolingMode, counted: ov.Node
    ) -> ov.Node:
        if mode == "cls":
            return op.gather(hidden, int_constant(0), int_constant(1))
        if mode == "last_token":
            last = op.subtract(self.seq_lens, int_constant(1))
            if pooling.skipped_token_id is not None:
                last = self._last_except(pooling.skipped_token_id)
            return op.gather(hidden, last, int_constant(1), batch_dims=1)
        if mode == "max":
            shown = op.select(op.unsqueeze(counted, int_constant(2)), hidden, op.constant(MASKED))
            return op.reduce_max(shown, int_constant(1))
        weight = op.convert(counted, "f32")
        if mode == "weighted_mean":
            weight = op.multiply(weight, op.convert(op.add(self.positions, int_constant(1)), "f32"))
        total = op.squeeze(
            op.matmul(op.unsqueeze(weight, int_constant(1)), hidden, False, False), int_constant(1)
        )
        divisor = op.maximum(
            op.reduce_sum(weight, int_constant(1), True), op.constant(np.float32(1e-9))
        )
        return op.divide(total, op.sqrt(divisor) if mode == "mean_sqrt_len" else divisor)

    def _last_except(self, token_id: int) -> ov.Node:
        """int32[B]: the last place of another token, or 0.

        Source: `GenericForSequenceClassification` in transformers, modeling_layers.py.
        """
        is_other = op.logical_and(
            self.is_token, op.not_equal(self.token_ids, int_constant(token_id))
        )
        places = op.multiply(op.convert(is_other, "i32"), self.positions)
        return op.reduce_max(places, int_constant(1))

    def _linear(self, vectors: ov.Node, role: str) -> ov.Node:
        """vectors @ weight.T + bias; the bias where the model has one."""
        product = op.matmul(vectors, matrix(self.weights, f"{role}.weight"), False, True)
        if f"{role}.bias" in self.weights:
            product = op.add(product, self._constant(f"{role}.bias"))
        # A leaky ReLU of slope 1 changes nothing, but the plugin takes a product with an activation
        # to oneDNN and a bare one to MLAS, which needs a fifth longer for the few tokens of a query
        # and the same for a full batch. Source: docs/benchmarks.md, single queries.
        return op.prelu(product, op.constant(np.ones(1, np.float32)))

    def _norm(self, vectors: ov.Node, role: str) -> ov.Node:
        if self.encoder.norm == "rms_norm":
            return self._rms_norm(vectors, role, self.encoder.norm_eps)
        return self._layer_norm(vectors, role, self.encoder.norm_eps)

    def _layer_norm(self, vectors: ov.Node, role: str, eps: float) -> ov.Node:
        """(x - mean) / sqrt(variance + eps) * weight + bias where there is one; last axis."""
        centred = op.mvn(vectors, int_constants(-1), True, eps, "inside_sqrt")
        scaled = op.multiply(centred, self._constant(f"{role}.weight"))
        if f"{role}.bias" not in self.weights:
            return scaled
        return op.add(scaled, self._constant(f"{role}.bias"))

    def _rms_norm(self, vectors: ov.Node, role: str, eps: float) -> ov.Node:
        """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
        square = op.reduce_mean(op.multiply(vectors, vectors), int_constant(-1), True)
        root = op.sqrt(op.add(square, op.constant(np.float32(eps))))
        return op.multiply(op.divide(vectors, root), self._constant(f"{role}.weight"))

    def _constant(self, role: str) -> ov.Node:
        return op.constant(np.ascontiguousarray(self.weights[role]), shared_memory=True)


def _rope_of(encoder: Encoder, window: int | None) -> Rope | None:
    """How a layer with such a window turns queries and keys."""
    if window is not None and encoder.window_rope is not None:
        return encoder.window_rope
    return encoder.rope
