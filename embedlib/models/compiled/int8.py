"""int8 quantization for CPUs: int8 codes with one float32 scale per output channel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.row_scales import INT8_MAX, row_scales

Floats = NDArray[np.float32]


def quantize_rows(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return the codes of a linear layer's weight and the scale of every row.

    Row r is `codes[r] * scales[r]`, off by at most half a scale. Every row is an output channel;
    its largest absolute value becomes 127 or -127, and a row of zeros gets the scale 1.

    Args:
        weight: float32[rows, columns].

    Returns:
        int8[rows, columns] and float32[rows]; a scale is NaN or infinite exactly if its row
        contains NaN or infinity.
    """
    scales = row_scales(weight, INT8_MAX)
    with np.errstate(invalid="ignore"):  # NaN and infinity: the caller rejects the row
        codes = np.rint(weight / scales[:, None])
        return np.clip(codes, -INT8_MAX, INT8_MAX).astype(np.int8), scales
