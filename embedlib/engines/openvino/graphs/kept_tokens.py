"""The part of a graph that lets sequences begin behind a prefix whose keys and values are kept.

Inputs: `num_before` int32[1], how many tokens of a prefix lie before every sequence of the batch,
and `before` int32[P], their positions; for each layer tensors of those tokens, with no rows if
there are none; and `keep` int32[K], the positions of the first tokens of the first sequence that
are to be kept. Sizes follow from the sizes of inputs alone, never from a value, for which the
library would wait in every layer. Outputs, before the vectors: tensors of those tokens, which are
the inputs of later batches. They are in float32, or in bfloat16 where that is computed in:
otherwise each batch would convert all of a prefix, and the plugin would compute the rotations,
whose results it hands out, in float32.

A layer keeps keys and values. The last layer, which is computed for the pooled tokens alone, has no
values; it keeps its normed input in their place, see `layers`.
"""

from __future__ import annotations

from embedlib.engines.openvino.graphs.nodes import int_constant, int_constants, int_input
from embedlib.engines.openvino.library import op, ov

PREFIX = "kept."
"""What the names of the tensors of tokens begin with."""


class KeptTokens:
    """Builds these inputs and outputs; they are in the same order."""

    def __init__(self, seq_lens: ov.Node, *, is_bf16: bool) -> None:
        self._type = ov.Type.bf16 if is_bf16 else ov.Type.f32
        self.num_before = int_input("num_before", [1])
        self._before = int_input("before", [-1])
        self._keep = int_input("keep", [-1])
        self._for_all = op.subtract(seq_lens, seq_lens)
        """int32[B]: zeros. To gather by them repeats a tensor for every sequence; Tile keeps the
        shape of earlier batches in OpenVINO 2026.4."""
        self.inputs = [self.num_before, self._before, self._keep]
        self.outputs: list[ov.Node] = []

    def positions(self, indices: ov.Node) -> tuple[ov.Node, ov.Node]:
        """Return the positions of the batch's tokens, and of these and all before them.

        Args:
            indices: int32[L]: 0, 1, 2 ...

        Returns:
            int32[L] and int32[S].
        """
        positions = op.add(indices, self.num_before)
        return positions, op.concat([self._before, positions], 0)

    def behind(self, vectors: ov.Node, role: str, axis: int) -> ov.Node:
        """Return the kept tokens' vectors with those of the batch behind them, in float32.

        Args:
            vectors: float32[B, ... L ...] of the batch's tokens.
            role: what the vectors are; unique.
            axis: which axis the tokens are on.
        """
        shape = vectors.get_output_partial_shape(0)
        shape[0], shape[axis] = ov.Dimension(1), ov.Dimension(-1)
        before = op.parameter(shape, self._type, name=PREFIX + role)
        self.inputs.append(before)
        # Taken from all sequences, then the first of them: with nothing to keep both are empty.
        kept = op.gather(vectors, self._keep, int_constant(axis))
        zero, one = int_constants(0), int_constants(1)
        first = op.slice(kept, zero, one, one, zero)
        self.outputs.append(_as(first, self._type))
        for_all = op.gather(before, self._for_all, int_constant(0))
        return op.concat([_as(for_all, ov.Type.f32), vectors], axis)


def _as(node: ov.Node, kind: ov.Type) -> ov.Node:
    return node if node.get_element_type() == kind else op.convert(node, kind)
