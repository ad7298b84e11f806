"""The matrix of a linear layer, in float32 or int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.openvino.library import op, ov

DYNAMIC_GROUP: Final = 64
"""Numbers of an activation that share a scale where the matrix is int8.

OpenVINO rounds the activations to int8 itself, as they come, one scale for so many neighbours of a
token's vector: `scale = largest / 127`. A shorter rest is a group of its own, and a vector shorter
than a group stays float32. Where no instruction multiplies int8 (x86 without VNNI, ARM), all stay
float32. Fewer numbers are more faithful and slower. Source: docs/fidelity.md, group sizes.
"""


def matrix(weights: Mapping[str, NDArray[Any]], role: str) -> ov.Node:
    """Return a matrix float32[rows, columns] of the graph.

    Where the weight is int8, it is the codes times the scales of the rows: the form that the plugin
    keeps in int8, and multiplies with vectors that it has rounded to int8.
    """
    stored = np.ascontiguousarray(weights[role])
    node = op.constant(stored, shared_memory=True)
    if stored.dtype != np.int8:
        return node
    scales = np.ascontiguousarray(weights[f"{role}_scale"])[:, np.newaxis]
    return op.multiply(op.convert(node, "f32"), op.constant(scales))


def float_matrix(weights: Mapping[str, NDArray[Any]], role: str) -> NDArray[np.float32]:
    """Return a matrix float32[rows, columns] as it is, or as its codes stand for."""
    stored: NDArray[Any] = np.ascontiguousarray(weights[role])
    if stored.dtype == np.int8:
        scales: NDArray[np.float32] = weights[f"{role}_scale"]
        stored = stored.astype(np.float32) * scales[:, np.newaxis]
    return stored
