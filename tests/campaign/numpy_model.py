"""What follows the transformer, in numpy and from the files alone: pooling, Dense, norms.

It is the reference where sentence-transformers is not installed.

Source: sentence_transformers/sentence_transformer/modules/pooling.py and dense.py, release 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from embedlib.testing.models.variant import TinyModule, TinyVariant

Array = NDArray[np.float64]

ACTIVATIONS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType(
    {
        "torch.nn.modules.linear.Identity": lambda x: x,
        "torch.nn.modules.activation.Tanh": np.tanh,
        "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
        "torch.nn.modules.activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "torch.nn.modules.activation.SiLU": lambda x: x / (1 + np.exp(-x)),
        "torch.nn.modules.activation.GELU": lambda x: (
            x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        ),
    }
)
FLAGS: Final = (
    *("cls_token", "max_tokens", "mean_tokens"),
    *("mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"),
)
"""In the order in which the vectors of several modes are put together."""


FLAG_OF: Final = MappingProxyType(
    dict(
        zip(
            ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
            FLAGS,
            strict=True,
        )
    )
)
"""By the name that the newer format gives a mode."""


def vector_of(tokens: NDArray[np.float32], folder: Path, row: TinyVariant) -> Array:
    """Return the vector that a model's modules make of the token vectors of one text.

    Args:
        tokens: float32[L, H], the transformer's output, special tokens included.
        folder: of the model.
        row: the content of the folder.
    """
    vector = tokens.astype(np.float64)
    for module in row.modules:
        vector = _apply(vector, folder, module)
    return vector


def _apply(values: Array, folder: Path, module: TinyModule) -> Array:
    kind = module.type.rpartition(".")[2]
    config: dict[str, Any] = module.config or {}
    if kind == "Pooling":
        modes = _modes(config)
        return np.concatenate([_pool(values, mode) for mode in modes])
    if kind == "FlexibleQuantizer":
        return np.rint(127 * np.tanh(values))
    if kind == "Normalize":
        return values / max(float(np.linalg.norm(values)), 1e-12)
    weights = {
        name: array.astype(np.float64)
        for name, array in load_file(folder / module.path / "model.safetensors").items()
    }
    if kind == "Dense":
        result = weights["linear.weight"] @ values + weights.get("linear.bias", 0.0)
        return ACTIVATIONS[config["activation_function"]](result)
    centred = values - values.mean()
    scaled = centred / np.sqrt((centred**2).mean() + 1e-5)
    return scaled * weights["norm.weight"] + weights["norm.bias"]


def _modes(config: dict[str, Any]) -> list[str]:
    """Return the flags of a Pooling, in the older or the newer format."""
    if "pooling_mode" not in config:
        return [flag for flag in FLAGS if config.get(f"pooling_mode_{flag}")]
    given = config["pooling_mode"]
    return [FLAG_OF[name] for name in ([given] if isinstance(given, str) else given)]


def _pool(tokens: Array, mode: str) -> Array:
    places = np.arange(1, len(tokens) + 1)[:, None]
    pooled: dict[str, Callable[[], Array]] = {
        "cls_token": lambda: tokens[0],
        "max_tokens": lambda: tokens.max(axis=0),
        "mean_tokens": lambda: tokens.mean(axis=0),
        "mean_sqrt_len_tokens": lambda: tokens.sum(axis=0) / math.sqrt(len(tokens)),
        "weightedmean_tokens": lambda: (tokens * places).sum(axis=0) / places.sum(),
        "lasttoken": lambda: tokens[-1],
    }
    return pooled[mode]()
