from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embedlib.errors import ConfigError
from embedlib.vectors.quantization import (
    calibrate,
    load_ranges,
    may_be_of_unit_vectors,
    quantize,
)

# Source: quantize_embeddings of sentence-transformers 6.2 on these two vectors, with these ranges.
VECTORS = np.array(
    [
        [0.1, -0.2, 0.0, 0.7, -0.9, 0.3, 0.55, -0.01, 0.2],
        [-1, 1, 0.5, -0.5, 0.25, -0.25, 0, 0.9, -0.9],
    ],
    np.float32,
)
RANGES = np.array([[-1.0] * 9, [1.0] * 9], np.float32)
CODES = {
    "int8": [[12, -27, -1, 88, -116, 37, 69, -2, 25], [-128, 126, 63, -65, 31, -33, -1, 114, -116]],
    "uint8": [
        [140, 101, 127, 216, 12, 165, 197, 126, 153],
        [0, 254, 191, 63, 159, 95, 127, 242, 12],
    ],
    "binary": [[22, 0], [-23, -128]],
    "ubinary": [[150, 128], [105, 0]],
}


@pytest.mark.parametrize("precision", CODES)
def test_the_codes_are_those_of_the_reference(precision: str) -> None:
    codes = quantize(VECTORS, precision, RANGES)  # type: ignore[arg-type]
    assert codes.dtype == np.dtype("uint8" if precision.startswith("u") else "int8")
    assert codes.tolist() == CODES[precision]


def test_half_precision_and_none() -> None:
    assert quantize(VECTORS, "float32", None) is VECTORS
    halves = quantize(VECTORS, "float16", None)
    assert halves.dtype == np.float16
    np.testing.assert_array_equal(halves, VECTORS.astype(np.float16))
    with np.errstate(all="raise"):  # as a caller may have it
        assert not quantize(VECTORS * np.float32(1e-20), "float16", None).any()
        with pytest.raises(ConfigError, match=r"the value 1e\+05 does not fit"):
            quantize(VECTORS * 1e5, "float16", None)


@given(hnp.arrays(np.float32, (5, 3), elements=st.floats(-2, 2, width=32)))
def test_codes_never_wrap_around(vectors: np.ndarray) -> None:
    ranges = RANGES[:, :3]
    for precision in ("int8", "uint8"):
        codes = quantize(vectors, precision, ranges).astype(int)  # type: ignore[arg-type]
        order = np.argsort(vectors, axis=0, kind="stable")
        assert (np.diff(np.take_along_axis(codes, order, 0), axis=0) >= 0).all()


def test_bytes_need_ranges_and_truncated_vectors_take_the_first() -> None:
    for precision in ("int8", "uint8"):
        with pytest.raises(ConfigError, match=rf"'{precision}' needs the range.*embedder\.calibr"):
            quantize(VECTORS, precision, None)  # type: ignore[arg-type]
    ranges = RANGES * np.arange(1, 10, dtype=np.float32)
    np.testing.assert_array_equal(
        quantize(VECTORS[:, :4], "int8", ranges), quantize(VECTORS, "int8", ranges)[:, :4]
    )
    with pytest.raises(ConfigError, match="'int4'; it must be one of float32"):
        quantize(VECTORS, "int4", None)  # type: ignore[arg-type]


def test_calibration() -> None:
    ranges = calibrate(VECTORS)
    assert ranges.tolist() == [VECTORS.min(0).tolist(), VECTORS.max(0).tolist()]
    with pytest.raises(ConfigError, match="needs texts"):
        calibrate(VECTORS[:0])
    with pytest.raises(ConfigError, match=r"dimension 0 goes from .* more texts"):
        calibrate(VECTORS[:1])


def test_ranges_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", RANGES)
    np.testing.assert_array_equal(load_ranges(tmp_path / "r.npy", 9), RANGES)
    np.testing.assert_array_equal(load_ranges(RANGES.tolist(), 9), RANGES)
    with pytest.raises(ConfigError, match=r"float32\[2, 9\]; it must be float32\[2, 8\]"):
        load_ranges(RANGES, 8)
    with pytest.raises(ConfigError, match=r"none.npy' cannot be read"):
        load_ranges(tmp_path / "none.npy", 9)
    with pytest.raises(ConfigError, match=r"int64\[2, 2\]; it must be float32"):
        load_ranges([[0, 0], [1, 1]], 2)
    with pytest.raises(ConfigError, match="dimension 1 goes from nan"):
        load_ranges([[0.0, np.nan], [1.0, 1.0]], 2)
    with pytest.raises(ConfigError, match=r"dimension 1 goes from 0\.0 to inf"):
        load_ranges([[0.0, 0.0], [1.0, np.inf]], 2)
    with pytest.raises(ConfigError, match=r"dimension 0 goes from 0\.5 to 0\.5"):  # in float32
        load_ranges([[0.5], [0.5 + 1e-12]], 1)


def test_a_pickle_as_ranges_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "was-run"),)

    np.save(tmp_path / "pickle.npy", np.array([Trap()]), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_ranges(str(tmp_path / "pickle.npy"), 9)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("bit", [70, 172])  # TokenError, SyntaxError
def test_ranges_with_a_wrong_bit_in_their_header_are_refused(bit: int, tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", RANGES)
    content = bytearray((tmp_path / "r.npy").read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    (tmp_path / "r.npy").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_ranges(tmp_path / "r.npy", 9)


def test_ranges_of_unit_vectors_are_told_by_their_greatest_number() -> None:
    assert may_be_of_unit_vectors(np.array([[-0.5], [1.0005]], np.float32))  # rounding
    assert not may_be_of_unit_vectors(np.array([[-1.01], [0.5]], np.float32))


def test_ranges_that_are_no_array_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").touch()
    (tmp_path / "damaged.npz").write_bytes(b"PK\3\4")
    np.savez(tmp_path / "several.npz", RANGES)
    names = ("empty.npy", "damaged.npz", "several.npz")
    for ranges in ([[1.0], [2.0, 3.0]], *(tmp_path / name for name in names)):
        with pytest.raises(ConfigError, match=r"^quantization_ranges = .+$"):
            load_ranges(ranges, 2)
