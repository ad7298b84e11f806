"""The steps of attention that are the same in one piece and in blocks."""

from __future__ import annotations

from collections.abc import Callable

from embedlib.engines.openvino.graphs.nodes import MASKED, float_constant, int_constants
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Encoder

Mask = Callable[[ov.Node, ov.Node, "ov.Node | None"], ov.Node]
"""Makes a mask, [B or 1, heads or 1, queries or 1, keys], of the queries' positions int32[B or 1,
1, queries or 1, 1], the keys' positions int32[keys] and `Places.is_token`. float32: it is added to
the scores. bool: False on the scores that do not count."""


class AttentionParts:
    """Builds what happens to scores and to mixed values.

    The plugin moves a factor of the queries into the product that makes them, or one of the scores
    into that of the keys, and then multiplies with oneDNN in place of MLAS: slower, and a matrix
    more in memory. So where `scales_late`, the scores are scaled behind the mask.
    """

    def __init__(self, encoder: Encoder) -> None:
        """Hold the transformer."""
        self._encoder = encoder
        self.scales_late = _can_scale_late(encoder)
        """Whether queries come unscaled."""

    def shares(self, scores: ov.Node) -> ov.Node:
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


def masked(scores: ov.Node, mask: ov.Node) -> ov.Node:
    """Return the scores with a mask, see `Mask`."""
    if mask.get_element_type() == ov.Type.boolean:
        return op.select(mask, scores, op.constant(MASKED))
    return op.add(scores, mask)


def has_plain_keys(encoder: Encoder) -> bool:
    """Return whether keys are exactly K x + b and softmax cancels a shift of all scores."""
    return not encoder.has_rope and not encoder.has_qk_norm and encoder.attention_cap is None


def _can_scale_late(encoder: Encoder) -> bool:
    """Return whether a score changes only by its scale and by a mask, which stays finite.

    Queries that are rotated are scaled by that, which costs nothing.
    """
    has_bias = encoder.position_bias is not None or encoder.relative_positions is not None
    return has_plain_keys(encoder) and not has_bias and encoder.score_scale <= 1
