"""Numbers are rounded to the nearest bfloat16, ties to even."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib.vectors.bfloat16 import bfloat16_bits

LARGEST = float(np.uint32(0x7F7F0000).view(np.float32))


def widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    numbers: NDArray[np.float32] = (bits.astype(np.uint32) << 16).view(np.float32)
    return numbers


@given(st.floats(-LARGEST, LARGEST, width=32))
def test_none_is_nearer(number: float) -> None:
    bits = bfloat16_bits(np.array([number], np.float32))
    assert bits.dtype == np.uint16
    near = (int(bits[0]) + np.arange(-1, 2)) % (1 << 16)
    with np.errstate(invalid="ignore"):  # beside 0 and the largest lies what is not a number
        distances = np.abs(widened(near).astype(np.float64) - np.float32(number))
    assert distances[1] <= np.nanmin(distances)


def test_the_bits_lie_row_by_row() -> None:
    assert bfloat16_bits(np.ones((2, 3), np.float32).T).flags.c_contiguous


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (1.0, 0x3F80),
        (1 + 2**-8, 0x3F80),  # half way: to the even one below
        (1 + 3 * 2**-8, 0x3F82),  # half way: to the even one above
        (-2.5, 0xC020),
        (0.0, 0),
    ],
)
def test_ties_go_to_even(number: float, bits: int) -> None:
    assert bfloat16_bits(np.array([[number]], np.float32)).tolist() == [[bits]]
