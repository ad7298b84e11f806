"""Vectors as the bytes of an answer."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from embedlib.serve.vectors import as_msgpack


@pytest.mark.parametrize("dim", [0, 15, 16, 65_535, 65_536])
def test_a_row_is_an_array_of_messagepack_whatever_its_length(dim: int) -> None:
    rows = np.linspace(-1, 1, 2 * dim, dtype=np.float32).reshape(2, dim)
    found = [msgspec.msgpack.decode(row) for row in as_msgpack(rows)]
    assert found == rows.tolist()
