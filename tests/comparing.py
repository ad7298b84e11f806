"""How far vectors are from the expected ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def relative_errors(
    vectors: NDArray[np.float32], expected: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return float32[N]: the norm of each difference, relative to the expected vector's."""
    difference = np.linalg.norm(vectors - expected, axis=1)
    return difference / np.linalg.norm(expected, axis=1)
