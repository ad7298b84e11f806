"""Scales of 8-bit matrices: one float32 per row, which maps its largest number to the largest code.

Needs numpy alone, so that every precision and engine can use it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

E4M3_MAX: Final = 448.0
"""Source: P. Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433, table 1."""
INT8_MAX: Final = 127.0
"""-128 is not used, so that every code has its negative."""
SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)
"""A smaller scale would be subnormal: a GPU may flush it to zero, and 1 / scale is infinite."""
SCALE_SUFFIX: Final = "_scale"
"""The scales of an 8-bit tensor are stored under its name with this suffix."""


def row_scales(weight: NDArray[np.float32], largest_code: float) -> NDArray[np.float32]:
    """Return the scale of every row; a row of zeros gets the scale 1.

    Args:
        weight: float32[rows, columns].
        largest_code: the code that stands for the row's largest absolute value.

    Returns:
        float32[rows]; NaN or infinite exactly if the row contains NaN or infinity.
    """
    with np.errstate(invalid="ignore"):  # NaN and infinity: the caller rejects the row
        largest = np.maximum(weight.max(axis=1), -weight.min(axis=1))
        scales: NDArray[np.float32] = np.maximum(
            largest / np.float32(largest_code), np.float32(SMALLEST_SCALE)
        )
    scales[largest == 0] = 1
    return scales
