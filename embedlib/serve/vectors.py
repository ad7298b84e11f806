"""Vectors as bytes of a response: decimal numbers, base64, MessagePack, plain float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from embedlib.vectors.arrays import Vectors
from embedlib.vectors.bfloat16 import bfloat16_bits

MAX_ROWS_IN_LOOP = 16
"""More rows are encoded by a thread, one by one, so that other requests go on meanwhile. Source:
measured beside lone requests; in the event loop 128 rows of 1,024 delay a query by 76 ms, row by
row in a thread by 2.7 ms."""

EncodeRow = Callable[[NDArray[Any]], bytes]
STORED_TYPES = {"float32": "f4", "float16": "f2", "bfloat16": "u2"}
"""Types that vectors can be sent in, and numpy's code of what holds their bits."""


def as_decimals(row: NDArray[Any]) -> bytes:
    """Return `[0.1,...]`: the shortest decimals that give the same float32 again.

    Of float32[T, D] a list of rows.
    """
    return orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY)


def as_base64(row: NDArray[Any]) -> bytes:
    """Return `"..."`: the numbers little-endian, as the openai SDK reads them."""
    stored = row if row.dtype.kind != "f" else row.astype("<f4", copy=False)
    return as_stored_base64(np.ascontiguousarray(stored))


def as_stored_base64(row: NDArray[Any]) -> bytes:
    """Return `"..."`: the bytes of a contiguous row as they are."""
    return msgspec.json.encode(row.tobytes())  # an array's view costs more than the copy


def encoded(rows: NDArray[Any], encode_row: EncodeRow = as_decimals) -> list[msgspec.Raw]:
    """Return each row, for a document of JSON."""
    return [msgspec.Raw(encode_row(row)) for row in rows]


def stored_as(rows: Vectors, kind: str, *, is_big_endian: bool) -> NDArray[Any]:
    """Return float32[N, D] as numbers of one of `STORED_TYPES`, with this order of their bytes."""
    numbers: NDArray[Any] = bfloat16_bits(rows) if kind == "bfloat16" else rows
    return numbers.astype((">" if is_big_endian else "<") + STORED_TYPES[kind])


def as_msgpack(rows: Vectors) -> list[bytes]:
    """Return each row of float32[N, D] as an array of MessagePack's float32.

    Source: https://github.com/msgpack/msgpack/blob/master/spec.md, array 16/32 and float 32.
    """
    num_rows, dim = rows.shape
    cells = np.empty((num_rows, dim, 5), np.uint8)
    cells[:, :, 0] = 0xCA
    cells[:, :, 1:] = rows.astype(">f4").view(np.uint8).reshape(num_rows, dim, 4)
    head = msgpack_array_head(dim)
    return [head + cell.tobytes() for cell in cells]


def msgpack_array_head(length: int) -> bytes:
    """Return the head of a MessagePack array."""
    if length < 16:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")
