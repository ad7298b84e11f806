"""The MLP of a layer, cut into parts where AMX multiplies smaller matrices faster.

With the rows of `up` (and of `gate`) and the columns of `down` cut alike,

    down(act(up x)) = sum over the parts of down_part(act(up_part x))

so a part's activations go from one product to the next as they are. The matrices of a part stay in
the cache of a core while it multiplies all rows of a batch, and its sums are short. Source:
docs/measurements/cpu-amx.md, products by their sizes.
"""

from __future__ import annotations

from functools import reduce

from embedlib.engines.openvino.graphs.weighted import Weighted
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.sizes.mlp_sizes import parts_of
from embedlib.models.spec import Encoder


def mlp(
    hidden: ov.Node, prefix: str, encoder: Encoder, weighted: Weighted, num_parts: int
) -> ov.Node:
    """Return down(act(gate) * up), or down(act(up)) without a gate; [B, L, H] to [B, L, H].

    Args:
        hidden: float32[B, L, H].
        prefix: prefix of the layer's roles.
        encoder: of the model.
        weighted: the weights.
        num_parts: into how many parts it is cut.
    """
    if num_parts == 1:
        return weighted.linear(_inner(hidden, prefix, encoder, weighted), prefix + "down")
    sums = []
    for part in parts_of(encoder.intermediate_size, num_parts):
        inner = _inner(hidden, prefix, encoder, weighted, part)
        sums.append(weighted.linear_columns(inner, prefix + "down", part, has_bias=part.start == 0))
    return reduce(op.add, sums)


def _inner(
    hidden: ov.Node, prefix: str, encoder: Encoder, weighted: Weighted, rows: slice = slice(None)
) -> ov.Node:
    """Return act(gate) * up, or act(up), of these rows: float32[B, L, rows]."""
    if not encoder.is_gated:
        return weighted.activated(hidden, prefix + "up", encoder.activation, rows)
    gate = weighted.activated(hidden, prefix + "gate", encoder.activation, rows)
    return op.multiply(gate, weighted.linear(hidden, prefix + "up", rows))
