"""Vectors in fewer bytes: float16, one byte or one bit per dimension.

int8 and uint8 need the range of every dimension. The caller passes the ranges; they are never taken
from the texts of the call, because the same text would then get different codes in different calls.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from tokenize import TokenError
from typing import Any, get_args
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embedlib.config import VectorPrecision
from embedlib.errors import ConfigError, first_line, shown

_PRECISIONS: tuple[str, ...] = get_args(VectorPrecision)
NUM_STEPS = 255
"""Steps between a byte's 256 codes. Source: sentence-transformers 6.2, `quantize_embeddings`."""

UNIT_TOLERANCE = 1e-3
"""How much a number of a vector of unit length may exceed 1, by rounding."""


def calibrate(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32[2, D]: the minimum and the maximum of every dimension of float32[N, D].

    Raises:
        ConfigError: if there are no vectors, or a dimension is constant or not finite.
    """
    if len(vectors) == 0:
        raise ConfigError("calibration needs texts; pass some hundreds that are typical of yours")
    return _checked(np.stack([vectors.min(axis=0), vectors.max(axis=0)]), vectors.shape[1])


def load_ranges(ranges: str | PathLike[str] | ArrayLike, dim: int) -> NDArray[np.float32]:
    """Return float32[2, D] from an array, or from the .npy file that contains it.

    Raises:
        ConfigError: if the file cannot be read, the array is not float[2, D], or a minimum is not
            below its maximum.
    """
    if not isinstance(ranges, (str, PathLike)):
        try:
            array = np.asarray(ranges)
        except ValueError as error:  # rows of unequal length
            raise ConfigError(
                f"quantization_ranges = {shown(ranges)} is no array: {first_line(error)}"
            ) from error
        return _checked(array, dim)
    try:
        with Path(ranges).open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                raise ValueError("it is an archive of arrays, as of numpy.savez")
        return _checked(loaded, dim)
    # EOFError: an empty file; the last two: a damaged header, which numpy reads as Python's.
    except (OSError, ValueError, EOFError, BadZipFile, SyntaxError, TokenError) as error:
        raise ConfigError(
            f"quantization_ranges = {str(ranges)!r} cannot be read: {first_line(error)}; save what "
            "Embedder.calibrate returns with numpy.save"
        ) from error


def may_be_of_unit_vectors(ranges: NDArray[np.float32]) -> bool:
    """Return whether float32[2, D] may be the ranges of vectors of unit length."""
    return bool(np.abs(ranges).max() <= 1 + UNIT_TOLERANCE)


def check_precision(precision: str, ranges: NDArray[np.float32] | None) -> None:
    """Reject a precision that is unknown or whose ranges are missing.

    Raises:
        ConfigError: if the precision is unknown, or is int8 or uint8 and `ranges` is None.
    """
    if precision not in _PRECISIONS:
        known = ", ".join(_PRECISIONS)
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

    - float16: float16[N, D].
    - int8, uint8: int8[N, D] or uint8[N, D], 256 codes from the minimum to the maximum of each
      dimension; values outside the range are clipped.
    - binary, ubinary: int8 or uint8[N, D / 8 rounded up], one bit per dimension, 1 where the value
      is above 0.

    Source: sentence-transformers 6.2, `util/quantization.py`. The codes are the same.

    Args:
        vectors: float32[N, D].
        precision: the precision of the result.
        ranges: float32[2, D], for int8 and uint8.

    Raises:
        ConfigError: if the precision is unknown, `ranges` is missing, or a value does not fit
            float16.
    """
    check_precision(precision, ranges)
    if precision == "float32":
        return vectors
    if precision == "float16":
        with np.errstate(over="ignore", under="ignore"):
            halves = vectors.astype(np.float16)
        if not np.isfinite(halves).all():
            greatest = float(np.abs(vectors).max())
            raise ConfigError(f"precision = 'float16': the value {greatest:.4g} does not fit")
        return halves
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    assert ranges is not None, "checked above"
    least, greatest = ranges[:, : vectors.shape[1]]
    # Divide and truncate in the same order as the reference, so that the codes are the same.
    steps = (vectors - least) / ((greatest - least) / NUM_STEPS)
    codes: NDArray[np.uint8] = np.clip(steps, 0, NUM_STEPS).astype(np.uint8)
    return codes if precision == "uint8" else (codes.astype(np.int16) - 128).astype(np.int8)


def _checked(ranges: NDArray[Any], dim: int) -> NDArray[np.float32]:
    if ranges.shape != (2, dim) or not np.issubdtype(ranges.dtype, np.floating):
        raise ConfigError(
            f"quantization_ranges is {ranges.dtype}{list(ranges.shape)}; it must be "
            f"float32[2, {dim}], the minimum and the maximum of every dimension"
        )
    with np.errstate(over="ignore", under="ignore"):
        ranges = ranges.astype(np.float32)  # before two numbers of float64 are told apart
    bad = np.flatnonzero(~(ranges[0] < ranges[1]) | ~np.isfinite(ranges).all(axis=0))
    if len(bad):
        least, greatest = ranges[:, bad[0]].tolist()
        raise ConfigError(
            f"quantization_ranges: dimension {bad[0]} goes from {least} to {greatest}; calibrate "
            "with more texts"
        )
    return ranges
