"""Operators that have weights: linear layers and norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from embedlib.engines.openvino.graphs.matrices import (
    check_finite,
    float_matrix,
    matrix_columns,
    matrix_rows,
    parts_packed_once,
    widened,
)
from embedlib.engines.openvino.graphs.nodes import (
    activate,
    activate_apart,
    float_constant,
    int_constant,
    int_constants,
)
from embedlib.engines.openvino.library import op, ov
from embedlib.models.spec import Activation
from embedlib.models.weights.mapped import stored_bits
from embedlib.models.weights.tensor_roles import ArraysByRole

Multiplier = Literal["any", "onednn", "mlas"]
"""The library that multiplies vectors with a float32 matrix. OpenVINO's CPU plugin chooses MLAS for
a bare product and oneDNN for one that it fuses with an activation; "any": as the model has it."""


@dataclass(frozen=True)
class Weighted:
    """Builds the nodes of operators with weights, which it looks up by role."""

    weights: ArraysByRole
    multiplier: Multiplier

    def linear(self, vectors: ov.Node, role: str, rows: slice = slice(None)) -> ov.Node:
        """Return vectors @ weight[rows].T, plus bias[rows] if the model has one."""
        sums = self.add_bias(self._product(vectors, f"{role}.weight", rows), role, rows)
        return self._by_onednn(sums) if self.multiplier == "onednn" else sums

    def linear_columns(
        self, vectors: ov.Node, role: str, columns: slice, *, has_bias: bool
    ) -> ov.Node:
        """Return vectors @ weight[:, columns].T, plus any bias if asked, for a graph in bf16."""
        part = matrix_columns(self.weights, f"{role}.weight", columns)
        product = op.matmul(vectors, part, False, True)
        return self._by_onednn(self.add_bias(product, role) if has_bias else product)

    def _by_onednn(self, product: ov.Node) -> ov.Node:
        """Let oneDNN multiply.

        A leaky ReLU of slope 1 changes nothing, but the plugin runs a matrix product followed by an
        activation with oneDNN, and a bare one with MLAS. Which is faster for the few tokens of a
        query depends on the CPU. Source: docs/measurements/queries.md, single queries.
        """
        return op.prelu(product, op.constant(np.ones(1, np.float32)))

    def _product(self, vectors: ov.Node, role: str, rows: slice) -> ov.Node:
        """Return vectors @ weight[rows].T; in parts where a large model would be packed twice."""
        if self.multiplier != "mlas":
            return op.matmul(vectors, matrix_rows(self.weights, role, rows), False, True)
        assert rows == slice(None), "oneDNN multiplies the parts of an MLP; a bug in embedlib"
        parts = parts_packed_once(self.weights, role)
        products = [op.matmul(vectors, part, False, True) for part in parts]
        return op.concat(products, -1) if len(products) > 1 else products[0]

    def activated(
        self, vectors: ov.Node, role: str, activation: Activation, rows: slice = slice(None)
    ) -> ov.Node:
        """Return the activation of `linear`; fused with it unless MLAS multiplies.

        Raises:
            ModelWeightsError: NaN in the weights of a ReLU, which would pass unseen.
        """
        sums = self.linear(vectors, role, rows)
        if activation == "relu":  # NaN of the vectors goes on in the residual stream
            for name in (f"{role}.weight", f"{role}.bias"):
                if name in self.weights:
                    check_finite(self.weights, name, rows)
            return op.relu(sums)
        apply = activate_apart if self.multiplier == "mlas" else activate
        return apply(sums, activation)

    def add_bias(self, vectors: ov.Node, role: str, rows: slice = slice(None)) -> ov.Node:
        """Return vectors + bias[rows]; the vectors alone if the model has no such bias."""
        if f"{role}.bias" not in self.weights:
            return vectors
        bias = np.ascontiguousarray(self.weights[f"{role}.bias"])[rows]
        return op.add(vectors, op.constant(bias, shared_memory=True))

    def by_head(self, role: str, num_heads: int) -> ov.Node:
        """Return a linear layer's matrix, split by heads: float32[heads, head_dim, H]."""
        values = float_matrix(self.weights, f"{role}.weight")
        return op.constant(values.reshape(num_heads, -1, values.shape[1]), shared_memory=True)

    def bias_by_head(self, role: str, num_heads: int) -> ov.Node:
        """Return a linear layer's bias, split by heads: float32[heads, 1, head_dim]."""
        values = np.ascontiguousarray(self.weights[f"{role}.bias"])
        return op.constant(values.reshape(num_heads, 1, -1), shared_memory=True)

    def norm(
        self, kind: Literal["layer_norm", "rms_norm"], vectors: ov.Node, role: str, eps: float
    ) -> ov.Node:
        """Return the norm of this kind over the last axis."""
        if kind == "rms_norm":
            return self.rms_norm(vectors, role, eps)
        return self.layer_norm(vectors, role, eps)

    def layer_norm(self, vectors: ov.Node, role: str, eps: float) -> ov.Node:
        """Return (x - mean) / sqrt(variance + eps) * weight, plus any bias; over the last axis."""
        centred = op.mvn(vectors, int_constants(-1), True, eps, "inside_sqrt")
        return self.add_bias(op.multiply(centred, self.constant(f"{role}.weight")), role)

    def rms_norm(self, vectors: ov.Node, role: str, eps: float) -> ov.Node:
        """Return x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
        return op.multiply(self.bare_rms_norm(vectors, eps), self.constant(f"{role}.weight"))

    def bare_rms_norm(self, vectors: ov.Node, eps: float) -> ov.Node:
        """Return x / sqrt(mean(x^2) + eps), over the last axis."""
        square = op.reduce_mean(op.multiply(vectors, vectors), int_constant(-1), True)
        root = op.sqrt(op.add(square, float_constant(eps)))
        return op.divide(vectors, root)

    def constant(self, role: str) -> ov.Node:
        """Return a weight as a constant: a view onto its mapped file, not a copy.

        Only vectors in 16 bits are copied, as float32.
        """
        narrow = stored_bits(self.weights, role)
        if narrow is not None and narrow.bits.ndim > 1:
            return widened(narrow)
        return op.constant(np.ascontiguousarray(self.weights[role]), shared_memory=True)
