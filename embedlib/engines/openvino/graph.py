"""A ModelSpec and its weights as an OpenVINO graph, built from OpenVINO's own operators.

Inputs: `token_ids` int32[B, L] (padded on the right) and `seq_lens` int32[B]; only where a model
with a head tells types of tokens apart, `num_first_tokens` int32[B]; only where pooling leaves the
prompt out, `num_prompt_tokens` int32[B]. Output: float32[B, D], or float32[B, L, D] where there is
no pooling.

float32 weights are views onto the memory-mapped file: building a graph copies nothing.
"""

from __future__ import annotations

import numpy as np

from embedlib.engines.openvino.layers import Layers, Sight
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.nodes import (
    MASKED,
    activate,
    float_constant,
    int_constant,
    int_constants,
    int_input,
)
from embedlib.engines.openvino.positions import (
    attention_mask,
    position_scores,
    rotation,
    rotation_of_one,
)
from embedlib.engines.openvino.weighted import Weighted, Weights
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


def build_graph(spec: ModelSpec, weights: Weights, *, via_onednn: bool = False) -> ov.Model:
    """Return the graph of a model.

    Args:
        spec: the model.
        weights: its weights by their roles.
        via_onednn: which library is to multiply, see `Weighted.linear`; the vectors are the same.
    """
    return _GraphBuilder(spec, weights, via_onednn).build()


class _GraphBuilder:
    """Builds one graph; the fields are the nodes that many layers share."""

    def __init__(self, spec: ModelSpec, weights: Weights, via_onednn: bool) -> None:
        self.spec = spec
        self.encoder = spec.encoder
        self.weights = weights
        self.weighted = Weighted(weights, via_onednn=via_onednn)
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
        pooled = self._pooled_place()
        hidden = self._encode(pooled)
        vector = hidden if pooled is None else op.squeeze(hidden, int_constant(1))
        for index, module in enumerate(self.spec.modules):
            role = f"modules.{index}"
            if isinstance(module, Pooling):
                vector = vector if pooled is not None else self._pool(vector, module)
            elif isinstance(module, Dense):
                vector = activate(self.weighted.linear(vector, role), module.activation)
            elif isinstance(module, LayerNorm):
                vector = self.weighted.layer_norm(vector, role, module.eps)
            elif isinstance(module, Normalize):
                # Source: torch.nn.functional.normalize, x / max(|x|, 1e-12); eps is squared here.
                last = len(vector.get_output_partial_shape(0)) - 1
                vector = op.normalize_l2(vector, int_constants(last), 1e-24, "max")
        graph = ov.Model([vector], self.inputs, "embedlib")
        # A name made up by OpenVINO would be another one each time, and miss the cache of compiled
        # models.
        graph.outputs[0].get_tensor().set_names({"vectors"})
        return graph

    def _encode(self, pooled: ov.Node | None) -> ov.Node:
        """The transformer: float32[B, L, H], or float32[B, 1, H] of the tokens at `pooled`."""
        encoder = self.encoder
        hidden = self._embed()
        layers = Layers(encoder, self.weighted)
        places = [(window, _rope_of(encoder, window)) for window in encoder.windows]
        sights = {place: self._sight(*place) for place in dict.fromkeys(places)}
        *before, last = places
        for index, place in enumerate(before):
            hidden = layers.layer(hidden, index, sights[place])
        sight = sights[last] if pooled is None else self._sight(*last, pooled)
        hidden = layers.layer(hidden, len(before), sight, pooled)
        if encoder.norm_placement == "post":
            return hidden
        return self.weighted.norm(encoder.norm, hidden, "final_norm", encoder.norm_eps)

    def _embed(self) -> ov.Node:
        """Token ids to float32[B, L, H]."""
        encoder = self.encoder
        hidden = op.gather(self.weighted.constant("tokens"), self.token_ids, int_constant(0))
        if encoder.embedding_scale != 1:
            hidden = op.multiply(hidden, float_constant(encoder.embedding_scale))
        if encoder.rope is None:
            table = self.weighted.constant("positions")
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
            hidden = self.weighted.norm(encoder.norm, hidden, "embedding_norm", encoder.norm_eps)
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
        return op.gather(self.weighted.constant("token_types"), types, int_constant(0))

    def _positions_past_padding(self, pad_token_id: int) -> ov.Node:
        """int32[B, L]: the tokens counted from pad_token_id + 1 on, the padding token itself not.

        It matters when a text contains the padding token as text. Source:
        `create_position_ids_from_input_ids` in transformers, models/roberta.
        """
        counts = op.convert(op.not_equal(self.token_ids, int_constant(pad_token_id)), "i32")
        counts = op.multiply(op.cumsum(counts, int_constant(1)), counts)
        return op.add(counts, int_constant(pad_token_id))

    def _sight(self, window: int | None, rope: Rope | None, pooled: ov.Node | None = None) -> Sight:
        """What the tokens of a layer know of places: all, or the pooled ones at int32[B, 1]."""
        encoder = self.encoder
        if pooled is None:
            askers = op.unsqueeze(self.positions, int_constants(0, 1, 3))
        else:
            askers = op.unsqueeze(pooled, int_constants(2, 3))
        mask = attention_mask(askers, self.positions, self.is_token, window, encoder.is_causal)
        if encoder.position_bias is not None:
            num_positions = encoder.num_positions - encoder.position_offset
            table = self.weights["position_bias"]
            mask = op.add(
                mask,
                position_scores(
                    askers, self.positions, encoder.position_bias, table, num_positions
                ),
            )
        if rope is None:
            return Sight(mask, None, None)
        size = encoder.head_dim, self.spec.max_seq_tokens
        rotate = rotation(self.positions, rope, *size)
        if pooled is None:
            return Sight(mask, rotate, rotate)
        place = op.squeeze(pooled, int_constant(1))
        return Sight(mask, rotation_of_one(place, rope, *size), rotate)

    def _pooled_place(self) -> ov.Node | None:
        """int32[B, 1]: the one token that pooling takes; None where it takes more."""
        pooling = next(iter(self.spec.modules), None)
        if not isinstance(pooling, Pooling):
            return None
        if pooling.modes == ("cls",):
            place = op.subtract(self.seq_lens, self.seq_lens)
        elif pooling.modes == ("last_token",):
            place = self._last_token(pooling)
        else:
            return None
        return op.unsqueeze(place, int_constant(1))

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
            return op.gather(hidden, self._last_token(pooling), int_constant(1), batch_dims=1)
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

    def _last_token(self, pooling: Pooling) -> ov.Node:
        """int32[B]: the last place, or the last one of a token that is not skipped, or 0.

        Source: `GenericForSequenceClassification` in transformers, modeling_layers.py.
        """
        if pooling.skipped_token_id is None:
            return op.subtract(self.seq_lens, int_constant(1))
        is_other = op.logical_and(
            self.is_token, op.not_equal(self.token_ids, int_constant(pooling.skipped_token_id))
        )
        places = op.multiply(op.convert(is_other, "i32"), self.positions)
        return op.reduce_max(places, int_constant(1))


def _rope_of(encoder: Encoder, window: int | None) -> Rope | None:
    """How a layer with such a window turns queries and keys."""
    if window is not None and encoder.window_rope is not None:
        return encoder.window_rope
    return encoder.rope
