"""Vectors in fewer bytes: float16, one byte or one bit for each dimension.

Bytes need the range of every dimension. It is given, never taken from the texts of a call: the same
text would get another code in other company.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embedlib.config import VectorPrecision
from embedlib.errors import ConfigError

NUM_STEPS = 255
"""Codes of a byte, less one. Source: sentence-transformers 6.2, `quantize_embeddings`."""


def calibrate(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32[2, D]: the least and the greatest value of every dimension of float32[N, D].

    Raises:
        ConfigError: there are fewer than two different vectors.
    """
    if len(vectors) == 0:
        raise ConfigError("calibration needs texts; give some hundreds that are like your own")
    return _checked(np.stack([vectors.min(axis=0), vectors.max(axis=0)]), vectors.shape[1])


def load_ranges(ranges: str | PathLike[str] | ArrayLike, dim: int) -> NDArray[np.float32]:
    """Return float32[2, D] from such an array or from the .npy file that holds it.

    Raises:
        ConfigError: there is no such file, or it is not float[2, D].
    """
    if not isinstance(ranges, (str, PathLike)):
        return _checked(np.asarray(ranges), dim)
    try:
        return _checked(np.load(Path(ranges), allow_pickle=False), dim)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"quantization_ranges = {str(ranges)!r} cannot be read: {error}; save what "
            "Embedder.calibrate returns with numpy.save"
        ) from error


def check_precision(precision: str, ranges: NDArray[np.float32] | None) -> None:
    """Refuse a precision that is unknown or whose ranges are missing.

    Raises:
        ConfigError: it is.
    """
    if precision not in get_args(VectorPrecision):
        known = ", ".join(get_args(VectorPrecision))
        raise ConfigError(f"precision = {precision!r}; it must be one of {known}")
    if precision in ("int8", "uint8") and ranges is None:
        raise ConfigError(
            f"precision = {precision!r} needs the range of every dimension; call "
            "embedder.calibrate(texts) once, or pass quantization_ranges= to the Embedder"
        )


def quantize(
    vectors: NDArray[np.float32],
    precision: VectorPrecision,
    ranges: NDArray[np.float32] | None,
) -> NDArray[Any]:
    """Return float32[N, D] in another precision.

    float16[N, D]; int8[N, D] or uint8[N, D], 256 steps from the least to the greatest value of each
    dimension, values beyond at the end of the scale; binary and ubinary: int8 or uint8[N, D / 8
    rounded up], one bit for each dimension, 1 where it is above 0.

    Source: sentence-transformers 6.2, `util/quantization.py`, which gives the same codes; only its
    bytes wrap around beyond the range.

    Args:
        vectors: float32[N, D].
        precision: what to make of it.
        ranges: float32[2, D], for int8 and uint8.

    Raises:
        ConfigError: no such precision, `ranges` is missing, or a value does not fit float16.
    """
    check_precision(precision, ranges)
    if precision == "float32":
        return vectors
    if precision == "float16":
        with np.errstate(over="ignore"):
            halves = vectors.astype(np.float16)
        if not np.isfinite(halves).all():
            greatest = float(np.abs(vectors).max())
            raise ConfigError(f"precision = 'float16': the value {greatest:.4g} does not fit it")
        return halves
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    assert ranges is not None, "checked above"
    least, greatest = ranges[:, : vectors.shape[1]]
    # Divided and cut in this order, as the reference does, so that the codes are the same.
    steps = (vectors - least) / ((greatest - least) / NUM_STEPS)
    codes: NDArray[np.uint8] = np.clip(steps, 0, NUM_STEPS).astype(np.uint8)
    return codes if precision == "uint8" else (codes.astype(np.int16) - 128).astype(np.int8)


def _checked(ranges: NDArray[Any], dim: int) -> NDArray[np.float32]:
    if ranges.shape != (2, dim) or not np.issubdtype(ranges.dtype, np.floating):
        raise ConfigError(
            f"quantization_ranges is {ranges.dtype}{list(ranges.shape)}; it must be "
            f"float32[2, {dim}], the least and the greatest value of every dimension"
        )
    bad = np.flatnonzero(~(ranges[0] < ranges[1]) | ~np.isfinite(ranges).all(axis=0))
    if len(bad):
        least, greatest = ranges[:, bad[0]].tolist()
        raise ConfigError(
            f"quantization_ranges: dimension {bad[0]} goes from {least} to {greatest}; calibrate "
            "with more texts"
        )
    return ranges.astype(np.float32)
