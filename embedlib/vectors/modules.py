"""The modules after pooling, in numpy: for vectors that were pooled outside the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import numpy as np

from embedlib.models.spec import (
    Activation,
    Dense,
    LayerNorm,
    Module,
    Normalize,
    RoundTanh,
)
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.similarity import normalize


def apply_modules(
    vectors: Vectors, modules: Sequence[Module], weights: Callable[[], Mapping[str, Vectors]]
) -> Vectors:
    """Return float32[N, D]: pooled vectors after every module of the model except its Pooling.

    Args:
        vectors: float32[N, H].
        modules: all modules of the spec; the first is the Pooling.
        weights: opens the model's weights; called only if a module has any.
    """
    tensors: Mapping[str, Vectors] = {}
    for index, module in enumerate(modules[1:], 1):
        if isinstance(module, (Dense, LayerNorm)):
            tensors = tensors or weights()
        if isinstance(module, Dense):
            matrix = tensors[f"modules.{index}.weight"]
            vectors = vectors @ matrix.T
            if module.has_bias:
                vectors = vectors + tensors[f"modules.{index}.bias"]
            vectors = ACTIVATIONS[module.activation](vectors)
        elif isinstance(module, LayerNorm):
            vectors = layer_norm(vectors, module.eps) * tensors[f"modules.{index}.weight"]
            vectors = vectors + tensors[f"modules.{index}.bias"]
        elif isinstance(module, RoundTanh):
            vectors = np.rint(np.float32(127) * np.tanh(vectors))
        else:
            assert isinstance(module, Normalize), "one Pooling, the first; a bug in embedlib"
            vectors = normalize(vectors)
    return vectors


def layer_norm(vectors: Vectors, eps: float = 1e-5) -> Vectors:
    """Return float32[N, D] with mean 0 and variance 1 in every row.

    Source: torch.nn.functional.layer_norm: (x - mean) / sqrt(variance + eps).
    """
    centered = vectors - vectors.mean(axis=-1, keepdims=True)
    variance = np.square(centered).mean(axis=-1, keepdims=True)
    return cast(Vectors, centered / np.sqrt(variance + np.float32(eps)))


def _sigmoid(vectors: Vectors) -> Vectors:
    return cast(Vectors, 0.5 * (1 + np.tanh(0.5 * vectors)))  # never overflows


def _gelu(vectors: Vectors) -> Vectors:
    # numpy has no erf. Element by element is fast enough: a text has few chunks.
    errors = np.vectorize(math.erf, otypes=[np.float32])(vectors * np.float32(math.sqrt(0.5)))
    return cast(Vectors, 0.5 * vectors * (1 + errors))


ACTIVATIONS: Final[Mapping[Activation, Callable[[Vectors], Vectors]]] = {
    "identity": lambda vectors: vectors,
    "relu": lambda vectors: np.maximum(vectors, 0),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda vectors: vectors * _sigmoid(vectors),
    "gelu": _gelu,
}
"""Those that a Dense may have. Source: torch.nn.functional."""
