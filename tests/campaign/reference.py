"""sentence-transformers as the reference, where it is installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def is_installed() -> bool:
    return find_spec("sentence_transformers") is not None and find_spec("torch") is not None


def open_reference(folder: Path, *, is_scorer: bool = False) -> Any:
    """Return a SentenceTransformer or CrossEncoder that computes in float32.

    Attention is the plain one: torch's own leaves out Gemma 2's cap of the scores.
    """
    import sentence_transformers

    kind = "CrossEncoder" if is_scorer else "SentenceTransformer"
    return getattr(sentence_transformers, kind)(
        str(folder),
        device="cpu",
        local_files_only=True,
        model_kwargs={"torch_dtype": "float32", "attn_implementation": "eager"},
    )


def error_of(vectors: Any, expected: Any) -> float:
    """Return the largest difference of an element, relative to the largest number of its row."""
    got = np.atleast_2d(np.asarray(vectors, np.float64))
    wanted: NDArray[np.float64] = np.atleast_2d(np.asarray(expected, np.float64))
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return float("inf")
    scale = np.maximum(np.abs(wanted).max(axis=1, keepdims=True), 1e-9)
    return float((np.abs(got - wanted) / scale).max(initial=0))
