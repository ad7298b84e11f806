"""A ModelSpec and its weights as an OpenVINO graph, built from OpenVINO's own operators.

Inputs: `token_ids` int32[B, L] (padded on the right), `seq_lens` int32[B] and, only where pooling
leaves the prompt out, `num_prompt_tokens` int32[B]. Output: float32[B, D].

float32 weights are views onto the memory-mapped file: building a graph copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as op

from embedlib.models.rope import inverse_frequencies
from embedlib.models.spec import (
    Activation,
    Dense,
    LayerNorm,
    ModelSpec,
    Normalize,
    Pooling,
    PoolingMode,
)

Weights = Mapping[str, NDArray[np.float32]]

MASKED = np.float32(np.finfo(np.float32).min / 2)
"""Added to the score of a token that must not be seen; halved so that the sum stays finite."""


def build_graph(spec: ModelSpec, weights: Weights) -> ov.Model:
    """Return the graph of a model."""
    return _GraphBuilder(spec, weights).build()


class _GraphBuilder:
    """Builds one graph; the fields are the nodes that many layers share."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        self.spec = spec
        self.encoder = spec.encoder
        self.weights = weights
        self.token_ids = _input("token_ids", [-1, -1])
        self.seq_lens = _input("seq_lens", [-1])
        self.inputs = [self.token_ids, self.seq_lens]
        length = op.gather(op.shape_of(self.token_ids, "i32"), _int(1), _int(0))
        self.positions = op.range(_int(0), length, _int(1), output_type="i32")
        """int32[L]: 0, 1, 2 ..."""
        self.is_token = op.less(
            op.unsqueeze(self.positions, _int(0)), op.unsqueeze(self.seq_lens, _int(1))
        )
        """bool[B, L]: False on padding."""

    def build(self) -> ov.Model:
        hidden = self._embed()
        masks = {window: self._mask(window) for window in set(self.encoder.windows)}
        rotate = self._rope() if self.encoder.rope else None
        for layer, window in enumerate(self.encoder.windows):
            hidden = self._layer(hidden, f"layers.{layer}.", masks[window], rotate)
        if self.encoder.norm_placement == "pre":
            hidden = self._norm(hidden, "final_norm")
        vector = hidden
        for index, module in enumerate(self.spec.modules):
            if isinstance(module, Pooling):
                vector = self._pool(hidden, module)
            elif isinstance(module, Dense):
                vector = _activate(self._linear(vector, f"modules.{index}"), module.activation)
            elif isinstance(module, LayerNorm):
                vector = self._layer_norm(vector, f"modules.{index}", module.eps)
            elif isinstance(module, Normalize):
                # Source: torch.nn.functional.normalize, x / max(|x|, 1e-12); eps is squared here.
                vector = op.normalize_l2(vector, _ints(1), 1e-24, "max")
        graph = ov.Model([vector], self.inputs, "embedlib")
        # A name made up by OpenVINO would be another one each time, and miss the cache of compiled
        # models.
        graph.outputs[0].get_tensor().set_names({"vectors"})
        return graph

    def _embed(self) -> ov.Node:
        """Token ids to float32[B, L, H]."""
        encoder = self.encoder
        hidden = op.gather(self._constant("tokens"), self.token_ids, _int(0))
        if encoder.rope is None:
            table = self._constant("positions")
            if encoder.pad_token_id is None:
                rows = op.gather(
                    table, op.add(self.positions, _int(encoder.position_offset)), _int(0)
                )
            else:
                rows = op.gather(table, self._positions_past_padding(encoder.pad_token_id), _int(0))
            hidden = op.add(hidden, rows)
        if encoder.num_token_types:
            # One text is one segment: every token is of type 0.
            hidden = op.add(
                hidden, op.constant(np.ascontiguousarray(self.weights["token_types"][0]))
            )
        if encoder.norm_placement == "post":
            hidden = self._norm(hidden, "embedding_norm")
        return hidden

    def _positions_past_padding(self, pad_token_id: int) -> ov.Node:
        """int32[B, L]: the tokens counted from pad_token_id + 1 on, the padding token itself not.

        It matters when a text contains the padding token as text. Source:
        `create_position_ids_from_input_ids` in transformers, models/roberta.
        """
        counts = op.convert(op.not_equal(self.token_ids, _int(pad_token_id)), "i32")
        counts = op.multiply(op.cumsum(counts, _int(1)), counts)
        return op.add(counts, _int(pad_token_id))

    def _mask(self, window: int | None) -> ov.Node:
        """What is added to attention scores: float32[B or 1, 1, L or 1, L].

        Padding is on the right, so causal attention never sees it. The window of a causal model
        counts the token itself, that of another does not. Source: the two sliding_window overlays
        of transformers' masking_utils.py.
        """
        query, key = op.unsqueeze(self.positions, _int(1)), op.unsqueeze(self.positions, _int(0))
        distance = op.subtract(query, key)
        if self.encoder.is_causal:
            visible = op.greater_equal(distance, _int(0))
            if window is not None:
                visible = op.logical_and(visible, op.less(distance, _int(window)))
            return _additive(op.unsqueeze(visible, _ints(0, 1)))
        visible = op.unsqueeze(self.is_token, _ints(1, 2))
        if window is not None:
            near = op.less_equal(op.abs(distance), _int(window))
            visible = op.logical_and(visible, op.unsqueeze(near, _ints(0, 1)))
        return _additive(visible)

    def _rope(self) -> Callable[[ov.Node], ov.Node]:
        """Return what turns float32[B, heads, L, head_dim] by the positions.

        Source: Su et al., RoFormer (arXiv:2104.09864), with the halves of the vector as pairs, as
        transformers' `apply_rotary_pos_emb` has it.
        """
        assert self.encoder.rope is not None
        frequencies, scale = inverse_frequencies(self.encoder.rope, self.encoder.head_dim)
        positions = np.arange(self.spec.max_seq_tokens, dtype=np.float32)
        # float32 before the cosine, as in transformers: the rounding is part of the model.
        angles = np.outer(positions, frequencies.astype(np.float32))
        half = self.encoder.head_dim // 2
        cos, sin = (
            op.gather(
                op.constant((turn(angles) * scale).astype(np.float32)), self.positions, _int(0)
            )
            for turn in (np.cos, np.sin)
        )

        def rotate(vectors: ov.Node) -> ov.Node:
            first, second = op.variadic_split(vectors, _int(-1), _ints(half, half)).outputs()
            return op.concat(
                [
                    op.subtract(op.multiply(first, cos), op.multiply(second, sin)),
                    op.add(op.multiply(second, cos), op.multiply(first, sin)),
                ],
                -1,
            )

        return rotate

    def _layer(
        self,
        hidden: ov.Node,
        prefix: str,
        mask: ov.Node,
        rotate: Callable[[ov.Node], ov.Node] | None,
    ) -> ov.Node:
        """One transformer layer on float32[B, L, H]."""
        attention_norm, mlp_norm = prefix + "attention_norm", prefix + "mlp_norm"
        if self.encoder.norm_placement == "pre":
            normed = self._norm(hidden, attention_norm)
            hidden = op.add(hidden, self._attention(normed, prefix, mask, rotate))
            return op.add(hidden, self._mlp(self._norm(hidden, mlp_norm), prefix))
        hidden = op.add(hidden, self._attention(hidden, prefix, mask, rotate))
        hidden = self._norm(hidden, attention_norm)
        return self._norm(op.add(hidden, self._mlp(hidden, prefix)), mlp_norm)

    def _attention(
        self,
        hidden: ov.Node,
        prefix: str,
        mask: ov.Node,
        rotate: Callable[[ov.Node], ov.Node] | None,
    ) -> ov.Node:
        """softmax(q k^T / sqrt(head_dim) + mask) v, heads in parallel; float32[B, L, H] both ways.

        Spelled out: the plugin fuses these operators better than its attention operator.
        """
        encoder = self.encoder

        def heads(name: str, num_heads: int) -> ov.Node:
            vectors = self._linear(hidden, prefix + name)
            vectors = op.reshape(vectors, _ints(0, 0, num_heads, encoder.head_dim), True)
            if encoder.has_qk_norm and name in ("q", "k"):
                vectors = self._rms_norm(vectors, prefix + name + "_norm", encoder.norm_eps)
            vectors = op.transpose(vectors, _ints(0, 2, 1, 3))
            return rotate(vectors) if rotate and name in ("q", "k") else vectors

        query = heads("q", encoder.num_heads)
        key, value = heads("k", encoder.num_kv_heads), heads("v", encoder.num_kv_heads)
        if encoder.num_kv_heads != encoder.num_heads:
            key, value = self._repeat_heads(key), self._repeat_heads(value)
        query = op.multiply(query, op.constant(np.float32(encoder.head_dim**-0.5)))
        scores = op.add(op.matmul(query, key, False, True), mask)
        mixed = op.matmul(op.softmax(scores, -1), value, False, False)
        width = encoder.num_heads * encoder.head_dim
        mixed = op.reshape(op.transpose(mixed, _ints(0, 2, 1, 3)), _ints(0, 0, width), True)
        return self._linear(mixed, prefix + "o")

    def _repeat_heads(self, vectors: ov.Node) -> ov.Node:
        """Give every query head its key or value head: [B, kv, L, d] to [B, heads, L, d]."""
        encoder = self.encoder
        groups = encoder.num_heads // encoder.num_kv_heads
        repeated = op.concat([op.unsqueeze(vectors, _int(2))] * groups, 2)
        return op.reshape(repeated, _ints(0, encoder.num_heads, -1, encoder.head_dim), True)

    def _mlp(self, hidden: ov.Node, prefix: str) -> ov.Node:
        """down(act(gate) * up) or down(act(up)); float32[B, L, H] both ways."""
        up = self._linear(hidden, prefix + "up")
        if self.encoder.is_gated:
            gate = _activate(self._linear(hidden, prefix + "gate"), self.encoder.activation)
            return self._linear(op.multiply(gate, up), prefix + "down")
        return self._linear(_activate(up, self.encoder.activation), prefix + "down")

    def _pool(self, hidden: ov.Node, pooling: Pooling) -> ov.Node:
        """Token vectors float32[B, L, H] to float32[B, H * number of modes].

        Source: `Pooling.forward` of sentence-transformers: excluding the prompt touches the mask
        only, so that cls and last_token keep their token.
        """
        counted = self.is_token
        if not pooling.include_prompt:
            num_prompt_tokens = _input("num_prompt_tokens", [-1])
            self.inputs.append(num_prompt_tokens)
            after = op.greater_equal(
                op.unsqueeze(self.positions, _int(0)), op.unsqueeze(num_prompt_tokens, _int(1))
            )
            counted = op.logical_and(counted, after)
        vectors = [self._pool_mode(hidden, mode, counted) for mode in pooling.modes]
        return op.concat(vectors, 1) if len(vectors) > 1 else vectors[0]

    def _pool_mode(self, hidden: ov.Node, mode: PoolingMode, counted: ov.Node) -> ov.Node:
        if mode == "cls":
            return op.gather(hidden, _int(0), _int(1))
        if mode == "last_token":
            last = op.subtract(self.seq_lens, _int(1))
            return op.gather(hidden, last, _int(1), batch_dims=1)
        if mode == "max":
            shown = op.select(op.unsqueeze(counted, _int(2)), hidden, op.constant(MASKED))
            return op.reduce_max(shown, _int(1))
        weight = op.convert(counted, "f32")
        if mode == "weighted_mean":
            weight = op.multiply(weight, op.convert(op.add(self.positions, _int(1)), "f32"))
        total = op.squeeze(op.matmul(op.unsqueeze(weight, _int(1)), hidden, False, False), _int(1))
        divisor = op.maximum(op.reduce_sum(weight, _int(1), True), op.constant(np.float32(1e-9)))
        return op.divide(total, op.sqrt(divisor) if mode == "mean_sqrt_len" else divisor)

    def _linear(self, vectors: ov.Node, role: str) -> ov.Node:
        """vectors @ weight.T + bias; the bias where the model has one."""
        product = op.matmul(vectors, self._constant(f"{role}.weight"), False, True)
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
        """(x - mean) / sqrt(variance + eps) * weight + bias, over the last axis."""
        centred = op.mvn(vectors, _ints(-1), True, eps, "inside_sqrt")
        scaled = op.multiply(centred, self._constant(f"{role}.weight"))
        return op.add(scaled, self._constant(f"{role}.bias"))

    def _rms_norm(self, vectors: ov.Node, role: str, eps: float) -> ov.Node:
        """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
        square = op.reduce_mean(op.multiply(vectors, vectors), _int(-1), True)
        root = op.sqrt(op.add(square, op.constant(np.float32(eps))))
        return op.multiply(op.divide(vectors, root), self._constant(f"{role}.weight"))

    def _constant(self, role: str) -> ov.Node:
        return op.constant(np.ascontiguousarray(self.weights[role]), shared_memory=True)


def _activate(vectors: ov.Node, activation: Activation) -> ov.Node:
    match activation:
        case "gelu":
            return op.gelu(vectors, "erf")
        case "gelu_tanh":
            return op.gelu(vectors, "tanh")
        case "relu":
            return op.relu(vectors)
        case "silu":
            return op.swish(vectors)
        case "tanh":
            return op.tanh(vectors)
        case "sigmoid":
            return op.sigmoid(vectors)
        case "identity":
            return vectors


def _additive(visible: ov.Node) -> ov.Node:
    """bool to what is added to a score: 0 where visible."""
    return op.select(visible, op.constant(np.float32(0)), op.constant(MASKED))


def _input(name: str, shape: Sequence[int]) -> ov.Node:
    return op.parameter(list(shape), np.int32, name=name)


def _int(value: int) -> ov.Node:
    return op.constant(np.int32(value))


def _ints(*values: int) -> ov.Node:
    return op.constant(np.array(values, np.int32))
