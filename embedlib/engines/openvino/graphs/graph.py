"""A ModelSpec and its weights as an OpenVINO graph, built from OpenVINO's own operators.

Inputs: `token_ids` int32[B, L] (padded on the right), `seq_lens` int32[B] and `indices` int32[L],
0, 1, 2 ... If an operator counted them, the library would wait for its result before it knows the
sizes of what follows, in every stage. A model with a head and token types also has
`num_type0_tokens` int32[B]; a model whose pooling excludes the prompt also has `num_prompt_tokens`
int32[B]; a model with a query expansion that is not attended also has `num_attended` int32[B].
Output: float32[B, D], where D of a sparse model is the size of the vocabulary, or float32[B, L, D]
without pooling. A causal model that pools the last token has inputs and outputs for a prefix too,
see `kept_tokens`.

Matrices are views onto the memory-mapped file, in the type that it has: building a graph does not
copy them, but for some columns where MLPs are cut, see `mlp`.
"""

from __future__ import annotations

from dataclasses import replace

from embedlib.engines.first_tokens import can_keep_prefix
from embedlib.engines.openvino.graphs.attention import Attention, Places
from embedlib.engines.openvino.graphs.attention_parts import Mask
from embedlib.engines.openvino.graphs.convolutions import ConvolutionLayers
from embedlib.engines.openvino.graphs.distances import Distances
from embedlib.engines.openvino.graphs.experts import ExpertLayers
from embedlib.engines.openvino.graphs.first_vectors import FirstVectors
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.graphs.kept_tokens import KeptTokens
from embedlib.engines.openvino.graphs.layer_inputs import LayerInputs
from embedlib.engines.openvino.graphs.layers import Layers, Sight
from embedlib.engines.openvino.graphs.nodes import (
    activate,
    float_constant,
    int_constant,
    int_constants,
    int_input,
)
from embedlib.engines.openvino.graphs.pooling import Pooler, Tokens
from embedlib.engines.openvino.graphs.positions import (
    additive,
    position_scores,
    rotation,
    rotation_of_one,
    rotation_tables,
    visible_keys,
)
from embedlib.engines.openvino.graphs.splade import pool_vocabulary
from embedlib.engines.openvino.graphs.stages import HIDDEN
from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.sizes.block_sizes import is_in_blocks
from embedlib.models.encoder_parts import Rope
from embedlib.models.position_bias import bias_by_distance
from embedlib.models.spec import (
    Dense,
    LayerNorm,
    ModelSpec,
    Normalize,
    Pooling,
    RoundTanh,
    SpladePooling,
)
from embedlib.models.weights.tensor_roles import ArraysByRole


def build_stages(
    spec: ModelSpec,
    weights: ArraysByRole,
    options: GraphOptions,
) -> list[ov.Model]:
    """Return the graph of a model, cut between layers; `stages.Request` computes it.

    Args:
        spec: the model.
        weights: its weights by role.
        options: how it is built.
    """
    return _GraphBuilder(spec, weights, options).build()


class _GraphBuilder:
    """Builds one graph; its fields are the nodes that several layers share."""

    def __init__(self, spec: ModelSpec, weights: ArraysByRole, options: GraphOptions) -> None:
        self.spec = spec
        self.options = options
        self.stage_layers = -(-spec.encoder.num_layers // options.max_stages)
        self.ended_stages: list[list[ov.Node]] = []
        """The outputs of every stage but the last."""
        self.hidden_inputs: list[ov.Node] = []
        """The input of every stage but the first: the output of the one before."""
        self.encoder = spec.encoder
        self.weights = weights
        self.weighted = Weighted(weights, options.multiplier)
        token_ids = int_input("token_ids", [-1, -1])
        self.seq_lens = int_input("seq_lens", [-1])
        self.indices = int_input("indices", [-1])
        self.inputs = [token_ids, self.seq_lens, self.indices]
        self.kept = None
        if can_keep_prefix(spec):
            self.kept = KeptTokens(self.seq_lens, is_bf16=options.is_bf16)
        self.positions = keys = self.indices
        """int32[L]: positions of the batch's tokens; they lie behind the kept ones."""
        if self.kept is not None:
            self.positions, keys = self.kept.positions(self.indices)
        self.is_token = op.less(
            op.unsqueeze(self.indices, int_constant(0)),
            op.unsqueeze(self.seq_lens, int_constant(1)),
        )
        """bool[B, L]: False on padding."""
        self.tokens = Tokens(token_ids, self.seq_lens, self.indices, self.positions, self.is_token)
        seen = None if self.encoder.is_causal else self._seen()
        self.places = Places(self.positions, keys, seen)

    def _seen(self) -> ov.Node:
        """Return bool[B, L]: the tokens that others attend to."""
        late = self.spec.late_interaction
        if late is None or late.expansion is None or late.expansion.is_attended:
            return self.is_token
        num_attended = int_input("num_attended", [-1])
        self.inputs.append(num_attended)
        return op.less(
            op.unsqueeze(self.indices, int_constant(0)),
            op.unsqueeze(num_attended, int_constant(1)),
        )

    def build(self) -> list[ov.Model]:
        pooler = Pooler(self.tokens, self.inputs)
        pooled = pooler.only_place(next(iter(self.spec.modules), None))
        hidden = self._encode(pooled)
        vector = hidden if pooled is None else op.squeeze(hidden, int_constant(1))
        for index, module in enumerate(self.spec.modules):
            role = f"modules.{index}"
            if isinstance(module, Pooling):
                vector = vector if pooled is not None else pooler.pool(vector, module)
            elif isinstance(module, SpladePooling):
                vector = pool_vocabulary(vector, self.is_token, self.weights, role, module)
            elif isinstance(module, Dense):
                vector = self._dense(vector, module, role)
            elif isinstance(module, LayerNorm):
                vector = self.weighted.layer_norm(vector, role, module.eps)
            elif isinstance(module, Normalize):
                # Source: torch.nn.functional.normalize, x / max(|x|, 1e-12); eps is squared here.
                last = len(vector.get_output_partial_shape(0)) - 1
                vector = op.normalize_l2(vector, int_constants(last), 1e-24, "max")
            elif isinstance(module, RoundTanh):
                scaled = op.multiply(op.tanh(vector), float_constant(127))
                vector = op.round(scaled, "half_to_even")
        return [self._stage(outputs) for outputs in [*self.ended_stages, self._outputs(vector)]]

    def _dense(self, vector: ov.Node, module: Dense, role: str) -> ov.Node:
        """Return the output of a Dense.

        Source: `Dense.forward` of sentence-transformers 6.2, base/modules/dense.py.
        """
        given = vector
        vector = activate(self.weighted.linear(vector, role), module.activation)
        if not module.has_residual:
            return vector
        if module.in_features != module.out_features:
            given = self.weighted.linear(given, role + ".residual")
        return op.add(vector, given)

    def _stage(self, outputs: list[ov.Node]) -> ov.Model:
        """Return the graph of a stage, with those of the inputs that its outputs depend on."""
        given = [*self.inputs, *(self.kept.inputs if self.kept else []), *self.hidden_inputs]
        inputs = given
        if self.ended_stages:
            needed = _parameters(outputs)
            inputs = [node for node in given if node.get_name() in needed]
        graph = ov.Model(outputs, inputs, "embedlib")
        # A name generated by OpenVINO differs each time and would miss the cache of compiled
        # models.
        names = [*(f"kept.{index}" for index in range(len(outputs) - 1)), "vectors"]
        for output, name in zip(graph.outputs, names, strict=True):
            output.get_tensor().set_names({name})
        return graph

    def _outputs(self, last: ov.Node) -> list[ov.Node]:
        """Return the outputs of a stage: what its layers keep of a prefix, and this one.

        The plugin computes them in this order. Behind the vectors it would hold the keys and values
        of all layers until then, and give each layer memory of its own. Source:
        docs/measurements/memory.md, outputs in order.
        """
        kept = self.kept.outputs if self.kept else []
        return [*kept[sum(len(outputs) - 1 for outputs in self.ended_stages) :], last]

    def _cut(self, hidden: ov.Node) -> ov.Node:
        """End a stage with the output of its last layer; return the input of the next one."""
        is_narrow = self.options.has_narrow_residual
        self.ended_stages.append(self._outputs(op.convert(hidden, "bf16") if is_narrow else hidden))
        kind = ov.Type.bf16 if is_narrow else ov.Type.f32
        given = op.parameter([-1, -1, self.encoder.hidden_size], kind, name=HIDDEN)
        self.hidden_inputs.append(given)
        return op.convert(given, "f32") if is_narrow else given

    def _encode(self, pooled: ov.Node | None) -> ov.Node:
        """Return the transformer's output: float32[B, L, H], or float32[B, 1, H] with `pooled`."""
        encoder = self.encoder
        first = FirstVectors(self.spec, self.weights, self.weighted, self.tokens, self.inputs)
        hidden = first.hidden()
        distances = None
        if encoder.relative_positions is not None:
            distances = Distances(encoder, self.weights, self.indices, is_bf16=self.options.is_bf16)
        experts = None
        if encoder.experts is not None:
            experts = ExpertLayers(encoder, self.weights, self.weighted, self.is_token)
        inputs = None
        if encoder.layer_input_size is not None:
            inputs = LayerInputs(encoder, self.weighted, hidden)
        convolutions = None
        if encoder.convolutions is not None:
            convolutions = ConvolutionLayers(
                encoder.convolutions, self.weights, self.weighted, self.is_token
            )
        layers = {
            window: Layers(
                own := encoder.with_window(window),
                self.weighted,
                Attention(
                    own,
                    self.places,
                    is_in_blocks=is_in_blocks(
                        own, window, self.spec.max_seq_tokens, is_bf16=self.options.is_bf16
                    ),
                ),
                self.options,
                self.indices,
                self.kept,
                distances,
                experts,
                inputs,
                convolutions,
            )
            for window in encoder.windows
        }
        places = [(window, encoder.rope_of(window)) for window in encoder.windows]
        sights = {place: self._sight(*place) for place in dict.fromkeys(places)}
        last = len(places) - 1
        for index, place in enumerate(places):
            if index and index % self.stage_layers == 0:
                hidden = self._cut(hidden)
            if index < last or pooled is None:
                hidden = layers[place[0]].layer(hidden, index, sights[place])
            else:
                sight = self._sight(*place, pooled)
                hidden = layers[place[0]].layer(hidden, index, sight, pooled)
        if encoder.norm_placement == "post":
            return hidden
        return self.weighted.norm(encoder.norm, hidden, "final_norm", encoder.norm_eps)

    def _sight(self, window: int | None, rope: Rope | None, pooled: ov.Node | None = None) -> Sight:
        """Return a layer's mask and rotations, for all tokens or those at `pooled` int32[B, 1]."""
        place = pooled  # int32[B, 1], behind the kept tokens
        if pooled is not None and self.kept is not None:
            place = op.add(pooled, self.kept.num_before)
        sight = Sight(self._mask(window), window, place)
        if rope is None:
            return sight
        encoder = self.encoder.with_window(window)
        size = encoder.head_dim, self.spec.max_seq_tokens
        keys = queries = rotation_tables(self.positions, rope, *size)
        if place is not None:
            queries = rotation_tables(op.squeeze(place, int_constant(1)), rope, *size)
        # Queries are scaled by their rotation: all layers share its numbers, so it costs nothing.
        scaled = [op.multiply(table, float_constant(encoder.score_scale)) for table in queries]
        rotate = rotation(*scaled)
        return replace(
            sight,
            rotate_query=rotate if place is None else rotation_of_one(rotate),
            rotate_key=rotation(*keys),
        )

    def _mask(self, window: int | None) -> Mask:
        """Return the function that makes masks of layers with this window."""
        encoder = self.encoder

        # One of all positions hides nothing, and to find that out takes numbers for all pairs.
        narrow = window if window is not None and window < self.spec.max_seq_tokens else None

        def mask(askers: ov.Node, positions: ov.Node, is_token: ov.Node | None) -> ov.Node:
            visible = visible_keys(askers, positions, is_token, narrow, encoder.is_causal)
            if encoder.position_bias is not None:
                by_distance = bias_by_distance(encoder, self.weights, encoder.max_tokens)
                return op.add(additive(visible), position_scores(askers, positions, by_distance))
            is_pairwise = encoder.is_causal or narrow is not None
            return visible if is_pairwise else additive(visible)

        return mask


def _parameters(outputs: list[ov.Node]) -> set[str]:
    """Return the unique names of the parameters that nodes depend on."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node.get_name() in seen:
            continue
        seen.add(node.get_name())
        if node.get_type_name() == "Parameter":
            found.add(node.get_name())
        waiting += [value.get_node() for value in node.input_values()]
    return found
