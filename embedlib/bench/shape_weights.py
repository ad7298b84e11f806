"""Writes seeded random weights for a model folder, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.tensor_blocks import create_file
from embedlib.models.families.table import ROWS
from embedlib.models.reading.files import is_scoring_model, read_model_files
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.spec import Dense, LayerNorm
from embedlib.models.weights.tensor_roles import encoder_shapes, module_shapes, tensor_rows

_PIECE_VALUES: Final = 1 << 23
"""Values made at once: 16 MiB of random numbers, 32 MiB of float32."""

Shapes = dict[str, tuple[int, ...]]


def write_weights(folder: Path, *, seed: str, prefix: str, dtype: Literal["F32", "BF16"]) -> None:
    """Write model.safetensors for the config.json, and what else there is, of a folder.

    Matrices are normally distributed and keep the size of their input, norms are ones with a
    little noise. The same seed gives the same file.

    Args:
        folder: a model folder; weights that it has are replaced.
        seed: any text.
        prefix: of the transformer's tensors.
        dtype: how the values are stored.
    """
    shapes = _tensor_shapes(folder, prefix)
    path = folder / "model.safetensors"
    path.unlink(missing_ok=True)
    names = create_file(path, {name: (dtype, shape) for name, shape in shapes.items()})
    with path.open("ab") as file:
        quantiles = _normal_quantiles()
        for name in names:
            shape = shapes[name]
            table = _table(quantiles, *_distribution(name, shape), dtype)
            for numbers in _random_numbers(f"{seed}/{name}", math.prod(shape)):
                table[numbers].tofile(file)


def _tensor_shapes(folder: Path, prefix: str) -> Shapes:
    """Return the shape of every tensor of the file, in its order."""
    files = read_model_files(folder, with_head=is_scoring_model(folder))
    family = ROWS[files.spec.encoder.family]
    shapes: Shapes = {}
    for role, shape in encoder_shapes(files.spec.encoder).items():
        stored = tensor_rows(role, family)
        assert stored.count == 1, f"{role} shares a tensor; give its family a writer of its own"
        shapes[prefix + stored.name] = shape
    for position, place in files.module_tensors.items():
        module = files.spec.modules[position]
        assert not isinstance(place, AnswerRows), "no shape has a language model's head"
        assert isinstance(module, (Dense, LayerNorm))
        shapes |= {f"{place}.{leaf}": shape for leaf, shape in module_shapes(module).items()}
    return shapes


def _table(
    quantiles: NDArray[np.float64], mean: float, deviation: float, dtype: Literal["F32", "BF16"]
) -> NDArray[Any]:
    """Return what to store for each random number of 16 bits."""
    values = (quantiles * deviation + mean).astype(np.float32)
    if dtype == "F32":
        return values
    # bfloat16 is the upper half of a float32, rounded.
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of a tensor's values."""
    if len(shape) == 2:
        # A row of n weights with a variance of 1/n keeps the size of its input; rows of a table of
        # embeddings are as large as a sum of normalized values.
        return 0.0, 1 / math.sqrt(shape[1])
    return (0.0, 0.02) if name.endswith(".bias") else (1.0, 0.02)


def _normal_quantiles() -> NDArray[np.float64]:
    """Return float64[65536]: the normal distribution in steps of equal probability."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((step + 0.5) / 65536) for step in range(65536)])


def _random_numbers(seed: str, count: int) -> Iterator[NDArray[np.uint16]]:
    """Yield uint16 numbers, `count` in all.

    Source: numpy's compatibility policy: the stream of a bit generator does not change.
    """
    start = int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "little")
    generator = np.random.SFC64(start)
    while count > 0:
        size = min(count, _PIECE_VALUES)
        raw: NDArray[np.uint64] = generator.random_raw(-(-size // 4))
        yield raw.astype("<u8", copy=False).view("<u2")[:size]
        count -= size
