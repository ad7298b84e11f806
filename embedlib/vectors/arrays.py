"""Type names of arrays of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Vectors as they are computed: float32[N, D], or float32[D] for one text."""
AnyVectors = NDArray[Any]
"""Vectors in the type that the caller asked for: float32, float16, int8, uint8 or packed bits."""
