"""Safetensors files read and written a few rows at a time, so that memory does not grow with them.

Source: the layout is that of https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.models.safetensors_files import HEADER_LENGTH_BYTES, StoredTensor

Report = Callable[[int], None]
"""Called now and then with the number of bytes read since the last call."""

ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}
"""Source: `Dtype` in https://github.com/huggingface/safetensors, safetensors/src/tensor.rs."""

BLOCK_NUMBERS: Final = 1 << 16
"""Converted at a time: few enough for a core's own cache, which makes it up to twice as fast."""


@dataclass(frozen=True)
class WrittenTensor:
    """Where one tensor goes in the new file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte behind the header."""

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def place_tensors(kinds: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, WrittenTensor]:
    """Return where tensors go, given type and shape: large numbers first, so that all are aligned.

    Args:
        kinds: type and shape by name.
    """
    written = {}
    start = 0
    for name in sorted(kinds, key=lambda name: (-ITEM_BYTES[kinds[name][0]], name)):
        written[name] = WrittenTensor(*kinds[name], start)
        start += written[name].num_bytes
    return written


def write_header(written: Mapping[str, WrittenTensor], writer: IO[bytes]) -> int:
    """Write the header of a file and return where its first tensor begins, in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, place in written.items():
        offsets = [place.start, place.start + place.num_bytes]
        header[name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    writer.write(len(text).to_bytes(HEADER_LENGTH_BYTES, "little") + text)
    return HEADER_LENGTH_BYTES + len(text)


def read_blocks(
    tensor: StoredTensor, reader: IO[bytes], report: Report
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a tensor, whole rows at a time."""
    row_numbers = math.prod(tensor.shape[1:])
    num_rows = tensor.shape[0] if tensor.shape else 1
    row_bytes = row_numbers * ITEM_BYTES[tensor.dtype]
    block_rows = max(1, BLOCK_NUMBERS // max(1, row_numbers))
    reader.seek(tensor.start)
    for row in range(0, num_rows, block_rows):
        num_bytes = min(block_rows, num_rows - row) * row_bytes
        yield np.frombuffer(reader.read(num_bytes), np.uint8)
        report(num_bytes)


def as_numbers(block: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[np.float32]:
    """Return a block of a tensor as float32[rows, columns]."""
    columns = math.prod(tensor.shape[1:])
    rows = block.size // (columns * ITEM_BYTES[tensor.dtype])
    return replace(tensor, shape=(rows, columns), start=0).read(block)
