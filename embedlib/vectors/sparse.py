"""Sparse vectors: a dict of token id to weight, for the tokens whose weight is not 0."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Similarity
from embedlib.vectors.arrays import DenseVectors, Vectors

SparseVector: TypeAlias = dict[int, float]
"""Token id to weight."""
Comparable: TypeAlias = DenseVectors | SparseVector | Sequence[SparseVector]
"""What `Embedder.similarity` compares."""


def weights_of(row: NDArray[np.float32]) -> SparseVector:
    """Return the numbers of float32[V] that are not 0, in the order of their ids."""
    (places,) = np.nonzero(row)
    return dict(zip(places.tolist(), row[places].tolist(), strict=True))


def strongest(weights: SparseVector, num_kept: int | None) -> SparseVector:
    """Return the greatest weights, of equal ones those of lower ids; None: all."""
    if num_kept is None or len(weights) <= num_kept:
        return weights
    kept = set(nlargest(num_kept, weights, key=lambda token: (weights[token], -token)))
    return {token: weight for token, weight in weights.items() if token in kept}


def are_sparse(vectors: Any) -> TypeGuard[SparseVector | Sequence[SparseVector]]:
    """Whether these are sparse vectors, or one."""
    items = vectors if isinstance(vectors, (list, tuple)) else [vectors]
    return bool(items) and all(isinstance(item, dict) for item in items)


def as_rows(
    kind: Similarity,
    first: SparseVector | Sequence[SparseVector],
    second: SparseVector | Sequence[SparseVector],
) -> tuple[Vectors, Vectors]:
    """Return both as float32[N, D], with a column for every token that matters to a similarity.

    For products those are the tokens that both sides have; lengths are divided out before.
    """
    sides = [[side] if isinstance(side, dict) else list(side) for side in (first, second)]
    if kind == "cosine":
        sides = [[_unit(vector) for vector in side] for side in sides]
    tokens = [{token for vector in side for token in vector} for side in sides]
    products = kind in ("cosine", "dot")
    chosen = tokens[0] & tokens[1] if products else tokens[0] | tokens[1]
    columns = {token: column for column, token in enumerate(sorted(chosen))}
    return _laid_out(sides[0], columns), _laid_out(sides[1], columns)


def _unit(vector: SparseVector) -> SparseVector:
    length = max(float(np.linalg.norm(list(vector.values()))), 1e-12)
    return {token: weight / length for token, weight in vector.items()}


def _laid_out(vectors: Sequence[SparseVector], columns: dict[int, int]) -> Vectors:
    rows = np.zeros((len(vectors), len(columns)), np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        for token, weight in vector.items():
            if token in columns:
                row[columns[token]] = weight
    return rows
