"""Convolutions over neighbouring tokens, in place of the attention of some layers (LFM2)."""

from __future__ import annotations

import numpy as np

from embedlib.engines.openvino.graphs.nodes import float_constant, int_constant, int_constants
from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.models.encoder_parts import Convolutions
from embedlib.models.weights.tensor_roles import ArraysByRole


class ConvolutionLayers:
    """Builds the part of a layer that stands for its attention; see `Convolutions`."""

    def __init__(
        self,
        convolutions: Convolutions,
        weights: ArraysByRole,
        weighted: Weighted,
        is_token: ov.Node,
    ) -> None:
        """Hold what all layers share.

        Args:
            convolutions: the layers that have one, and how wide it is.
            weights: arrays by role.
            weighted: builds operators with weights.
            is_token: bool[B, L]: False on padding, which is not mixed into a text.
        """
        self._width, self._weights, self._weighted = convolutions.width, weights, weighted
        self._prefixes = {f"layers.{layer}." for layer in convolutions.layers}
        self._counts = op.unsqueeze(op.convert(is_token, "f32"), int_constant(2))
        """float32[B, L, 1]: 0 on padding."""

    def has(self, prefix: str) -> bool:
        """Return whether the layer whose roles have this prefix has a convolution."""
        return prefix in self._prefixes

    def mixed(self, hidden: ov.Node, prefix: str) -> ov.Node:
        """Return the input of the layer's output matrix: float32[B, L, H].

        Args:
            hidden: float32[B, L, H], normed.
            prefix: prefix of the layer's roles.
        """
        thirds = op.split(self._weighted.linear(hidden, prefix + "conv_in"), int_constant(-1), 3)
        given = op.multiply(op.multiply(thirds.output(0), thirds.output(2)), self._counts)
        return op.multiply(thirds.output(1), self._convolved(given, prefix + "conv"))

    def _convolved(self, given: ov.Node, role: str) -> ov.Node:
        """Return the sums over neighbours, each channel with its own weights: float32[B, L, H].

        A product and a sum for each neighbour: of three of them, that is no slower than the
        plugin's convolution, which wants channels before tokens.
        """
        beside = int_constants(0, self._width // 2, 0)
        padded = op.pad(given, beside, beside, "constant", float_constant(0))
        length = op.gather(op.shape_of(given, "i32"), int_constants(1), int_constant(0))
        weights = np.asarray(self._weights[f"{role}.weight"], np.float32)
        total = None
        for place in range(self._width):
            start = int_constants(place)
            seen = op.slice(
                padded, start, op.add(length, start), int_constants(1), int_constants(1)
            )
            part = op.multiply(seen, op.constant(np.ascontiguousarray(weights[:, 0, place])))
            total = part if total is None else op.add(total, part)
        return self._weighted.add_bias(total, role)
