"""One safetensors file rewritten as another: chosen weights in FP8, all other numbers in bfloat16.

Tensors are read and written a few rows at a time, so that memory does not grow with the model.

Source: names and types are those that nvidia-modelopt 0.47 exports with
`FP8_PER_CHANNEL_PER_TOKEN_CFG` and TensorRT-LLM reads: the weight keeps its name and has the type
F8_E4M3, `NAME_scale` is float32[output channels].
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.fp8 import is_finite_bfloat16, quantize_rows, round_bfloat16
from embedlib.errors import ModelWeightsError
from embedlib.models.safetensors_files import (
    HEADER_LENGTH_BYTES,
    STORED_DTYPES,
    StoredTensor,
    list_tensors,
)

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


def rewrite_file(
    source: Path, target: Path, quantized: Collection[str], report: Report
) -> dict[str, WrittenTensor]:
    """Write a safetensors file anew and return what it holds, by name.

    Args:
        source: the file to read.
        target: the file to write.
        quantized: names of the matrices to write in FP8.
        report: hears of the bytes read.

    Raises:
        ModelWeightsError: a tensor holds NaN or infinity.
    """
    stored = list_tensors(source, source.name)
    written = _lay_out(stored, quantized, source.name)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, place in written.items():
        offsets = [place.start, place.start + place.num_bytes]
        header[name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    first = HEADER_LENGTH_BYTES + len(text)
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(len(text).to_bytes(HEADER_LENGTH_BYTES, "little") + text)
        for name, tensor in sorted(stored.items(), key=lambda item: item[1].start):
            blocks = _read_blocks(tensor, reader, report)
            writer.seek(first + written[name].start)
            if name in quantized:
                scales = _write_fp8(blocks, tensor, name, writer)
                writer.seek(first + written[f"{name}_scale"].start)
                writer.write(scales.astype("<f4").tobytes())
            elif tensor.dtype in STORED_DTYPES:
                _write_bfloat16(blocks, tensor, name, writer)
            else:
                for block in blocks:
                    writer.write(block.tobytes())
    return written


def _lay_out(
    stored: Mapping[str, StoredTensor], quantized: Collection[str], file: str
) -> dict[str, WrittenTensor]:
    """Return the tensors of the new file: those of large numbers first, so that all are aligned."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in stored.items():
        if tensor.dtype not in ITEM_BYTES:
            raise ModelWeightsError(
                f"{file}: tensor {name} has type {tensor.dtype}; accepted: {', '.join(ITEM_BYTES)}"
            )
        dtype = "BF16" if tensor.dtype in STORED_DTYPES else tensor.dtype
        kinds[name] = dtype, tensor.shape
        if name in quantized:
            kinds[name] = "F8_E4M3", tensor.shape
            kinds[f"{name}_scale"] = "F32", tensor.shape[:1]
    written = {}
    start = 0
    for name in sorted(kinds, key=lambda name: (-ITEM_BYTES[kinds[name][0]], name)):
        written[name] = WrittenTensor(*kinds[name], start)
        start += written[name].num_bytes
    return written


def _read_blocks(
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


def _numbers(block: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[np.float32]:
    """Return a block as float32[rows, columns]."""
    columns = math.prod(tensor.shape[1:])
    rows = block.size // (columns * ITEM_BYTES[tensor.dtype])
    return replace(tensor, shape=(rows, columns), start=0).read(block)


def _write_fp8(
    blocks: Iterator[NDArray[np.uint8]], tensor: StoredTensor, name: str, writer: IO[bytes]
) -> NDArray[np.float32]:
    """Write the codes of a matrix and return the scales of its rows."""
    scales = []
    for block in blocks:
        codes, block_scales = quantize_rows(_numbers(block, tensor))
        if not np.isfinite(block_scales).all():
            raise _not_finite(tensor, name)
        writer.write(codes.tobytes())
        scales.append(block_scales)
    return np.concatenate(scales)


def _write_bfloat16(
    blocks: Iterator[NDArray[np.uint8]], tensor: StoredTensor, name: str, writer: IO[bytes]
) -> None:
    for block in blocks:
        bits = round_bfloat16(_numbers(block, tensor))
        if not is_finite_bfloat16(bits):
            raise _not_finite(tensor, name)
        writer.write(bits.astype("<u2").tobytes())


def _not_finite(tensor: StoredTensor, name: str) -> ModelWeightsError:
    return ModelWeightsError(
        f"{tensor.file}: tensor {name} holds NaN, infinity or a number too large for bfloat16; "
        "fetch the model again, or ask those who trained it"
    )
