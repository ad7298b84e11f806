"""Similarity of vectors: every pair of rows of two matrices, or row by row."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Similarity
from embedlib.errors import InputError, a_type, first_line
from embedlib.packages.imported import imported_torch
from embedlib.vectors.arrays import ArrayOrTensor, Vectors
from embedlib.vectors.sparse import Comparable, are_sparse, as_rows


def normalize(vectors: Vectors) -> Vectors:
    """Scale float32[..., D] to unit length; a zero vector stays zero.

    Source: torch.nn.functional.normalize: x / max(|x|, 1e-12).
    """
    with np.errstate(under="ignore"):  # a caller may have np.seterr(all="raise")
        # What np.linalg.norm computes, which takes twice as long for one vector.
        lengths: Any = np.sqrt(np.add.reduce(vectors * vectors, axis=-1, keepdims=True))
        unit: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
    return unit


def similarity(kind: Similarity, first: Comparable, second: Comparable) -> NDArray[np.float32]:
    """Return float32[N, M]; higher is more similar, so distances are negated.

    Args:
        kind: cosine, dot, euclidean or manhattan.
        first: float[N, D] or float[D].
        second: float[M, D] or float[D].

    Raises:
        InputError: if the arguments are not vectors of equal length.

    Source: sentence-transformers, util/similarity.py.
    """
    a, b = _comparable(kind, first, second)
    with np.errstate(under="ignore"):
        if kind in ("cosine", "dot"):
            products: NDArray[np.float32] = a @ b.T
            return products
        # One row at a time: all differences at once would take N * M * D floats.
        result = np.empty((len(a), len(b)), np.float32)
        for row, vector in zip(result, a, strict=True):
            difference = vector - b
            if kind == "euclidean":
                row[:] = -np.linalg.norm(difference, axis=1)
            else:
                row[:] = -np.abs(difference).sum(axis=1)
        return result


def similarity_pairwise(
    kind: Similarity, first: Comparable, second: Comparable
) -> NDArray[np.float32]:
    """Return float32[N]: the similarity of row n of `first` and row n of `second`.

    One vector is compared with each of the others.

    Args:
        kind: cosine, dot, euclidean or manhattan.
        first: float[N, D] or float[D].
        second: the same, or either is one vector.

    Raises:
        InputError: if the two differ in the number or the length of their vectors.

    Source: sentence-transformers, util/similarity.py.
    """
    a, b = _comparable(kind, first, second)
    if len(a) != len(b) and 1 not in (len(a), len(b)):
        raise InputError(
            f"{len(a)} and {len(b)} vectors do not form pairs; similarity() compares each with all"
        )
    with np.errstate(under="ignore"):
        if kind in ("cosine", "dot"):
            products: NDArray[np.float32] = np.einsum("nd,nd->n", a, b)
            return products
        order = 2 if kind == "euclidean" else 1
        distances: NDArray[np.float32] = np.linalg.norm(a - b, ord=order, axis=1)
        return -distances


def _comparable(
    kind: Similarity, first: Comparable, second: Comparable
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return both as matrices of equal width; for cosine, with rows of unit length."""
    # A list without any vector may be of either kind.
    kinds = [are_sparse(side) for side in (first, second) if not isinstance(side, list) or side]
    if any(kinds):
        if not all(kinds):
            raise InputError("one side is sparse and the other is not; encode both in the same way")
        # For cosine of unit length already.
        return as_rows(kind, cast(Any, first), cast(Any, second))
    a, b = _rows(first), _rows(second)
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"vectors of {a.shape[1]} and {b.shape[1]} dimensions cannot be compared; both must "
            "be of the same model and truncate_dim"
        )
    return (normalize(a), normalize(b)) if kind == "cosine" else (a, b)


def as_torch(numbers: NDArray[np.float32]) -> ArrayOrTensor:
    """Return a tensor where the program has imported torch, else the array itself.

    sentence-transformers returns tensors, and its manual goes on with `torch.topk`; who has not
    imported torch cannot want one.
    """
    torch = imported_torch()
    return cast(ArrayOrTensor, numbers if torch is None else torch.from_numpy(numbers))


def off_device(vectors: Any) -> Any:
    """Return tensors as arrays: numpy refuses those of a GPU, in bf16 or with a gradient."""
    torch = imported_torch()
    if torch is not None and isinstance(vectors, torch.Tensor):
        return vectors.float().numpy(force=True)
    several = isinstance(vectors, (list, tuple))
    return [off_device(item) for item in vectors] if several else vectors


def _rows(vectors: Comparable) -> NDArray[np.float32]:
    try:
        found = np.asarray(off_device(vectors))
        is_column = found.ndim == 1 and found.dtype == object  # of pandas or Arrow, of vectors
        rows = np.asarray(list(found) if is_column else found, np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of torch: the last
        reason = first_line(error)
        raise InputError(f"similarity compares vectors; encode texts first ({reason})") from error
    if rows.ndim not in (1, 2):
        raise InputError(f"{a_type(vectors)} of shape {rows.shape}; vectors must be [N, D] or [D]")
    # An empty list holds no vector, and not one without dimensions.
    return np.atleast_2d(rows) if rows.shape != (0,) else rows.reshape(0, 0)
