"""e4m3 codes, scales and bfloat16, against ml_dtypes and the error bounds of the formats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from embedlib.models.compiled.fp8 import (
    encode_e4m3,
    is_finite_bfloat16,
    quantize_rows,
    round_bfloat16,
)
from embedlib.models.compiled.row_scales import E4M3_MAX, SMALLEST_SCALE

HALF_STEP = 2.0**-4
"""Maximum relative error of rounding to 3 mantissa bits: half of 2**-3."""
SUBNORMAL_HALF_STEP = 2.0**-10


def cast(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the codes of ml_dtypes, with saturation."""
    with np.errstate(invalid="ignore"):
        clipped = np.clip(values, -E4M3_MAX, E4M3_MAX)
        return clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the codes, and leave the numbers as they are."""
    return encode_e4m3(values.copy())


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the numbers that codes stand for."""
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


@pytest.mark.parametrize("lower", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_every_upper_half_is_encoded_as_ml_dtypes_does(lower: int) -> None:
    values = ((np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(lower)).view(np.float32)
    np.testing.assert_array_equal(encode(values), cast(values))


@given(arrays(np.uint32, 64))
def test_any_bits_are_encoded_as_ml_dtypes_does(bits: NDArray[np.uint32]) -> None:
    values = bits.view(np.float32)
    np.testing.assert_array_equal(encode(values), cast(values))


def test_every_tie_goes_to_even() -> None:
    numbers = decode(np.arange(0x7F, dtype=np.uint8))  # 0 … 448
    middles = (numbers[1:] + numbers[:-1]) / 2
    below, above = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))
    codes = np.arange(0x7E, dtype=np.uint8)
    np.testing.assert_array_equal(encode(below), codes)
    np.testing.assert_array_equal(encode(above), codes + 1)
    np.testing.assert_array_equal(encode(middles), codes + codes % 2)
    np.testing.assert_array_equal(encode(-middles), 0x80 | (codes + codes % 2))


def test_every_code_survives() -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(encode(decode(codes)), codes)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (448, 448),
        (464, 448),
        (1e30, 448),
        (np.inf, 448),
        (-np.inf, -448),
        (2.0**-9, 2.0**-9),
        (2.0**-10, 0),
        (1.01 * 2.0**-10, 2.0**-9),
        (1e-40, 0),
        (1.0625, 1.0),
        (1.1875, 1.25),
    ],
)
def test_the_ends_of_the_range(value: float, number: float) -> None:
    assert decode(encode(np.array([value], np.float32)))[0] == number


def test_nan_stays_nan_and_zero_keeps_its_sign() -> None:
    codes = encode(np.array([np.nan, 0.0, -0.0], np.float32))
    assert codes.tolist() == [0x7F, 0, 0x80]


def weights(kind: str, seed: int, rows: int, columns: int, size: float) -> NDArray[np.float32]:
    dice = np.random.default_rng(seed)
    if kind == "gaussian":
        drawn = dice.standard_normal((rows, columns))
    else:
        drawn = dice.standard_t(2, (rows, columns))
    return (drawn * size).astype(np.float32)


@settings(max_examples=60)
@given(
    st.sampled_from(["gaussian", "heavy-tailed"]),
    st.integers(0, 1 << 30),
    st.integers(1, 9),
    st.integers(1, 700),
    st.floats(-30, 30),
)
def test_the_error_is_within_the_bound_of_the_format(
    kind: str, seed: int, rows: int, columns: int, exponent: float
) -> None:
    weight = weights(kind, seed, rows, columns, 10.0**exponent)
    codes, scales = quantize_rows(weight)
    assert (codes.dtype, scales.dtype, codes.shape) == (np.uint8, np.float32, weight.shape)
    error = np.abs(decode(codes) * scales[:, None].astype(np.float64) - weight)
    bound = np.maximum(HALF_STEP * np.abs(weight), SUBNORMAL_HALF_STEP * scales[:, None])
    # The division by the scale rounds once in float32.
    assert (error <= bound * (1 + 1e-6) + np.abs(weight) * 2.0**-23).all()
    np.testing.assert_array_equal((codes & 0x7F).max(axis=1), 0x7E)  # the largest becomes 448


def test_gaussian_weights_lose_less_than_three_percent() -> None:
    weight = weights("gaussian", 0, 64, 4096, 0.02)
    codes, scales = quantize_rows(weight)
    error = decode(codes) * scales[:, None] - weight
    assert 0.02 < np.sqrt((error**2).mean() / (weight**2).mean()) < 0.03


def test_a_row_does_not_suffer_from_another() -> None:
    weight = weights("gaussian", 1, 2, 512, 1.0)
    alone = quantize_rows(weight[:1])
    weight[1] *= 1e6
    beside = quantize_rows(weight)
    np.testing.assert_array_equal(alone[0][0], beside[0][0])
    assert alone[1][0] == beside[1][0]


def test_rows_of_zeros_and_of_tiny_numbers_have_a_usable_scale() -> None:
    weight = np.zeros((4, 8), np.float32)
    weight[1, 3] = 1e-44
    weight[2, 3] = -SMALLEST_SCALE
    weight[3, 3] = -0.0
    codes, scales = quantize_rows(weight)
    assert scales.tolist() == [1.0, SMALLEST_SCALE, SMALLEST_SCALE, 1.0]
    assert (decode(codes)[0] == 0).all()
    assert decode(codes)[2, 3] == -1


def test_the_largest_floats_do_not_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    codes, scales = quantize_rows(np.array([[largest, -largest, 1.0]], np.float32))
    assert np.isfinite(scales).all()
    assert decode(codes).tolist() == [[448.0, -448.0, 0.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_a_scale_that_is_not_finite(bad: float) -> None:
    weight = np.ones((3, 5), np.float32)
    weight[1, 4] = bad
    _, scales = quantize_rows(weight)
    assert np.isfinite(scales).tolist() == [True, False, True]


@given(arrays(np.uint32, 64))
def test_bfloat16(bits: NDArray[np.uint32]) -> None:
    values = bits.view(np.float32)
    rounded = round_bfloat16(values)
    finite = np.isfinite((rounded.astype(np.uint32) << 16).view(np.float32))
    assert is_finite_bfloat16(rounded) == finite.all()
    ordinary = np.isfinite(values)
    low = (bits & np.uint32(0xFFFF)).astype(np.int64)
    upper = (bits >> 16).astype(np.int64)
    nearest = upper + ((low > 0x8000) | ((low == 0x8000) & (upper % 2 == 1)))
    np.testing.assert_array_equal(rounded[ordinary], nearest[ordinary])


def test_a_number_too_large_for_bfloat16() -> None:
    assert not is_finite_bfloat16(round_bfloat16(np.array([3.4e38], np.float32)))
    assert is_finite_bfloat16(round_bfloat16(np.array([3.38e38], np.float32)))


@pytest.mark.parametrize("exponent", [0, 1, 20, 21, 40, 127, 254])
def test_rows_of_bfloat16_are_those_of_ml_dtypes(exponent: int) -> None:
    # Every fraction of the largest number, and all below it that do not become zero.
    for largest in range(exponent << 7, exponent + 1 << 7):
        tiny = np.arange(0, largest + 1, 251, dtype=np.uint16)
        near = np.arange(max(0, largest - (23 << 7)), largest + 1, dtype=np.uint16)
        bits = np.concatenate([tiny, near, tiny | 0x8000, near | 0x8000])[None]
        weight = (bits.astype(np.uint32) << 16).view(np.float32)
        given = weight.copy()
        codes, scales = quantize_rows(weight)
        np.testing.assert_array_equal(codes, cast(weight / scales[:, None]))
        np.testing.assert_array_equal(weight, given)


def test_a_signaling_nan_shows_in_the_scale_without_a_warning() -> None:
    weight = np.array([[0x7F810000, 0x3F800000], [0, 0x3F800000]], np.uint32).view(np.float32)
    _, scales = quantize_rows(weight)
    assert np.isfinite(scales).tolist() == [False, True]
