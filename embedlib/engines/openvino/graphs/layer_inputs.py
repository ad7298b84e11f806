"""Inputs of every layer that are made of a token's first vector (EmbeddingGemma 2)."""

from __future__ import annotations

from embedlib.engines.openvino.graphs.nodes import float_constant, int_constant, int_constants
from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Encoder


class LayerInputs:
    """Builds the last step of a layer; see `Encoder.layer_input_size`."""

    def __init__(self, encoder: Encoder, weighted: Weighted, embedded: ov.Node) -> None:
        """Make the inputs of all layers.

        Args:
            encoder: the transformer.
            weighted: builds operators with weights.
            embedded: float32[B, L, H], the input of the first layer.
        """
        self._encoder, self._weighted = encoder, weighted
        width = encoder.layer_input_size
        assert width is not None, "only for such a model; a bug in embedlib"
        projected = weighted.linear(embedded, "layer_inputs")
        projected = op.multiply(projected, float_constant(encoder.hidden_size**-0.5))
        shape = int_constants(0, 0, encoder.num_layers, width)
        self._inputs = weighted.rms_norm(
            op.reshape(projected, shape, True), "layer_inputs_norm", encoder.norm_eps
        )
        """float32[B, L, layers, P]."""

    def end(self, hidden: ov.Node, index: int, pooled: ov.Node | None) -> ov.Node:
        """Return the output of a layer: float32[B, L, H], or float32[B, 1, H] with `pooled`.

        Args:
            hidden: the same, before this step.
            index: which layer.
            pooled: int32[B, 1], the position of the only token to compute; None: all.
        """
        prefix, weighted = f"layers.{index}.", self._weighted
        own = op.gather(self._inputs, int_constant(index), int_constant(2))
        if pooled is not None:
            own = op.gather(own, pooled, int_constant(1), batch_dims=1)
        gate = weighted.activated(hidden, prefix + "input_gate", self._encoder.activation)
        change = weighted.linear(op.multiply(gate, own), prefix + "input_projection")
        change = weighted.rms_norm(change, prefix + "input_norm", self._encoder.norm_eps)
        return op.multiply(op.add(hidden, change), weighted.constant(prefix + "scalar"))
