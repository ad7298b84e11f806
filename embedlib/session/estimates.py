"""Estimates how long it takes to measure a model here, and which texts a load can wait for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import linear_weights

SIDE: Final = 512
"""Of the square matrices that are multiplied: some milliseconds, and more than the caches next to
a core hold."""
SHARE_OF_PRODUCTS: Final = 0.7
"""Of the rate of products alone that a model in float32 reaches. Source: the shares of
the products in docs/benchmarks.md, a CPU with AVX2 alone; rounded down."""
BYTES_PER_SECOND: Final = 3e8
"""Of float32 weights that are hashed, rounded and written. Source: docs/compile.md, time."""


@dataclass(frozen=True)
class QuickTexts:
    """The texts that are measured while a load waits: `fidelity.texts.quick_texts`."""

    max_tokens: int
    """Where documents are cut."""
    num_tokens: int
    """Of all texts, rounded up."""
    share_of_wait: float
    """That an estimate takes at most. What is left is for starting the process and its engines."""


QUICK: Final = (QuickTexts(128, 4_000, 1 / 5), QuickTexts(32, 1_700, 2 / 3))
"""Best first: a larger model is measured on shorter texts."""
QUICK_PAIRS: Final = (QuickTexts(32, 24_000, 2 / 3),)
"""The same for a model with a head, whose texts may be pairs."""


def flop_per_second(num_threads: int) -> float:
    """Return how many operations a second a model in float32 makes here, measured.

    By processor time, of which a busy machine takes no more, on however many cores NumPy
    multiplies.

    Args:
        num_threads: that the model uses.
    """
    square = np.ones((SIDE, SIDE), np.float32)
    times = []
    for _ in range(3):  # the first one may start threads
        start = time.process_time()
        square @ square
        times.append(time.process_time() - start)
    return SHARE_OF_PRODUCTS * num_threads * 2 * SIDE**3 / max(min(times), 1e-9)


def quick_texts_for(
    spec: ModelSpec, num_precisions: int, rate: float, max_seconds: float
) -> QuickTexts | None:
    """Return the texts that a model is measured on while a load waits; None: it is too large.

    Args:
        spec: the model.
        num_precisions: that are measured if none passes.
        rate: operations per second in float32.
        max_seconds: the longest wait.
    """
    for texts in QUICK if spec.head is None else QUICK_PAIRS:
        seconds = measuring_seconds(spec, num_precisions, rate, texts)
        if seconds <= texts.share_of_wait * max_seconds:
            return texts
    return None


def measuring_seconds(
    spec: ModelSpec, num_precisions: int, rate: float, texts: QuickTexts
) -> float:
    """Return an estimate of how long measuring takes.

    Args:
        spec: the model.
        num_precisions: that are measured if none passes.
        rate: operations per second in float32.
        texts: that are embedded.
    """
    times = 1 + num_precisions / 2  # a lower precision takes about half of the time
    weights = linear_weights(spec.encoder)
    computing = 2 * weights * texts.num_tokens * times / rate
    return computing + 4 * weights / BYTES_PER_SECOND
