"""How alike vectors are: every pair of rows of two matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embedlib.config import Similarity

Vectors = NDArray[np.float32]


def normalize(vectors: Vectors) -> Vectors:
    """Scale float32[..., D] to unit length; a zero vector stays zero.

    Source: torch.nn.functional.normalize: x / max(|x|, 1e-12).
    """
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
    return unit


def similarity(kind: Similarity, first: ArrayLike, second: ArrayLike) -> NDArray[np.float32]:
    """Return float32[N, M]; higher is more alike, so distances come negated.

    Args:
        kind: cosine, dot, euclidean or manhattan.
        first: float[N, D] or float[D].
        second: float[M, D] or float[D].

    Source: sentence-transformers, util/similarity.py.
    """
    a: NDArray[Any] = np.atleast_2d(np.asarray(first, np.float32))
    b: NDArray[Any] = np.atleast_2d(np.asarray(second, np.float32))
    if kind == "cosine":
        a, b = normalize(a), normalize(b)
    if kind in ("cosine", "dot"):
        products: NDArray[np.float32] = a @ b.T
        return products
    # A row at a time: all differences at once would take N * M * D floats.
    result = np.empty((len(a), len(b)), np.float32)
    for row, vector in zip(result, a, strict=True):
        difference = vector - b
        if kind == "euclidean":
            row[:] = -np.linalg.norm(difference, axis=1)
        else:
            row[:] = -np.abs(difference).sum(axis=1)
    return result
