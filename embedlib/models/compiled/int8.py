"""int8 quantization for CPUs: int8 codes with one float32 scale for a few neighboring weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.row_scales import INT8_MAX, row_scales

Floats = NDArray[np.float32]

INT8_GROUPS: Final[Mapping[str, int]] = {"int8-g128": 128, "int8": 64}
"""The precisions in int8, and how many neighboring weights of a row share a scale in each. Fewer
are more accurate and slower. Source: docs/int8.md, groups of weights."""


def quantize_groups(weight: Floats, group: int) -> tuple[NDArray[np.int8], Floats]:
    """Return the codes of a linear layer's weight and the scale of every group.

    A group's largest absolute value becomes 127 or -127; each weight is its code times the scale of
    its group, off by at most half a scale. A group of zeros gets the scale 1.

    Args:
        weight: float32[rows, columns]; every row is an output channel.
        group: neighboring weights that share a scale.

    Returns:
        int8[rows, columns] and float32[rows, groups]; a scale is NaN or infinite exactly if its
        group contains NaN or infinity.
    """
    num_groups = groups_of(weight.shape[1], group)
    grouped = weight.reshape(len(weight) * num_groups, -1)
    scales = row_scales(grouped, INT8_MAX)
    with np.errstate(invalid="ignore"):  # NaN and infinity: the caller rejects the group
        codes = np.rint(grouped / scales[:, None])
        codes = np.clip(codes, -INT8_MAX, INT8_MAX).astype(np.int8)
    return codes.reshape(weight.shape), scales.reshape(len(weight), num_groups)


def dequantize(codes: NDArray[np.int8], scales: Floats) -> Floats:
    """Return float32[rows, columns]: the weights that codes and the scales of their groups mean."""
    grouped = codes.reshape(*scales.shape, -1) * scales[:, :, np.newaxis]
    return grouped.reshape(codes.shape)


def groups_of(num_columns: int, group: int) -> int:
    """Return how many groups a row has: one, unless it is divided without a remainder."""
    return num_columns // group if num_columns % group == 0 else 1
