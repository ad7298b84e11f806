"""bfloat16, which numpy has not: its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def bfloat16_bits(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return float32[...] as bfloat16: the bits as uint16[...], rounded to nearest, ties to even.

    Finite numbers alone: what is not a number may become one.

    Source: bfloat16 is the upper half of float32,
    https://en.wikipedia.org/wiki/Bfloat16_floating-point_format.
    """
    bits: NDArray[Any] = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
