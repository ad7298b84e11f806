"""The part of a graph that lets sequences begin behind a prefix whose keys and values are kept.

Inputs: `num_before` int32[1], how many tokens of a prefix lie before every sequence of the batch;
for each layer tensors of those tokens, with no rows if there are none; and `num_keep` int32[1], how
many first tokens of the first sequence to keep. Outputs, behind the vectors: tensors of those
tokens, which are the inputs of later batches. They are in float32, or in bfloat16 where that is
computed in: otherwise each batch would convert all of a prefix, and the plugin would compute the
rotations, whose results it hands out, in float32.

A layer keeps keys and values. The last layer, which is computed for the pooled tokens alone, has no
values; it keeps its normed input in their place, see `layers`.
"""

from __future__ import annotations

from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.nodes import int_constant, int_constants, int_input

PREFIX = "kept."
"""What the names of the tensors of tokens begin with."""


class KeptTokens:
    """Builds these inputs and outputs; they are in the same order."""

    def __init__(self, *, is_bf16: bool) -> None:
        self._type = ov.Type.bf16 if is_bf16 else ov.Type.f32
        self.num_before = int_input("num_before", [1])
        self._num_keep = int_input("num_keep", [1])
        self.inputs = [self.num_before, self._num_keep]
        self.outputs: list[ov.Node] = []

    def positions(self, indices: ov.Node) -> tuple[ov.Node, ov.Node]:
        """Return the positions of the batch's tokens, and of these and all before them.

        Args:
            indices: int32[L]: 0, 1, 2 ...

        Returns:
            int32[L] and int32[S].
        """
        positions = op.add(indices, self.num_before)
        ends = op.add(op.shape_of(indices, "i32"), self.num_before)
        end = op.squeeze(ends, int_constant(0))
        return positions, op.range(int_constant(0), end, int_constant(1), output_type="i32")

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
        first = op.slice(
            vectors,
            int_constants(0, 0),
            op.concat([int_constants(1), self._num_keep], 0),
            int_constants(1, 1),
            int_constants(0, axis),
        )
        self.outputs.append(_as(first, self._type))
        # In OpenVINO 2026.4 Tile keeps the shape of earlier batches, and Broadcast multiplies by 1.
        num_seqs = op.gather(op.shape_of(vectors, "i32"), int_constants(0), int_constant(0))
        for_all = op.gather(before, op.broadcast(int_constant(0), num_seqs), int_constant(0))
        return op.concat([_as(for_all, ov.Type.f32), vectors], axis)


def _as(node: ov.Node, kind: ov.Type) -> ov.Node:
    return node if node.get_element_type() == kind else op.convert(node, kind)
