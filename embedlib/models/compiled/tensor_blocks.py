"""Reads and writes safetensors files a few rows at a time, so memory does not grow with the model.

Source: the layout is that of https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.row_scales import SCALE_SUFFIX
from embedlib.models.weights.file_hashes import ReportBytes
from embedlib.models.weights.safetensors_files import (
    HEADER_LENGTH_BYTES,
    NUMPY_TYPES,
    StoredTensor,
)

Quantize = Callable[[NDArray[np.float32]], tuple[NDArray[Any], NDArray[np.float32]]]
"""Returns the codes of float32[rows, columns], one byte each, and scales, float32[rows, ...]."""

ITEM_BYTES: Final = {name: np.dtype(kind).itemsize for name, kind in NUMPY_TYPES.items()}

BLOCK_NUMBERS: Final = 1 << 16
"""Numbers to convert at a time: they fit into a core's own cache, which is up to twice as fast."""


def create_file(
    path: Path, kinds: Mapping[str, tuple[str, tuple[int, ...]]]
) -> dict[str, StoredTensor]:
    """Write the header of a new file, and return the place of each tensor, in their order.

    Tensors with larger items come first, so that every tensor is aligned. The header is that of
    the library. Source: `prepare` of safetensors 0.8, src/tensor.rs.

    Args:
        path: the file; there is none yet.
        kinds: type and shape by name.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    tensors: dict[str, StoredTensor] = {}
    end = 0
    types = list(NUMPY_TYPES)
    for name in sorted(kinds, key=lambda name: (types.index(kinds[name][0]), name)):
        dtype, shape = kinds[name]
        tensors[name] = StoredTensor(path, path.name, dtype, shape, end)
        start, end = end, end + tensors[name].num_bytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:  # follows no link
        file.write(len(text).to_bytes(HEADER_LENGTH_BYTES, "little") + text)
    first = HEADER_LENGTH_BYTES + len(text)
    return {name: replace(tensor, start=first + tensor.start) for name, tensor in tensors.items()}


def read_blocks(
    tensor: StoredTensor, reader: IO[bytes], report: ReportBytes
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a tensor in blocks of whole rows.

    Raises:
        ModelWeightsError: the file was truncated since its header was read.
    """
    if not tensor.num_bytes:
        return
    row_numbers = math.prod(tensor.shape[1:])
    num_rows = tensor.shape[0] if tensor.shape else 1
    row_bytes = row_numbers * ITEM_BYTES[tensor.dtype]
    block_rows = max(1, BLOCK_NUMBERS // row_numbers)
    reader.seek(tensor.start)
    for row in range(0, num_rows, block_rows):
        num_bytes = min(block_rows, num_rows - row) * row_bytes
        block = np.frombuffer(reader.read(num_bytes), np.uint8)
        if block.size != num_bytes:
            raise ModelWeightsError(
                f"{tensor.file}: was truncated while it was read; do not write to the model while "
                "it is compiled"
            )
        yield block
        report(num_bytes)


def as_numbers(block: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[np.float32]:
    """Return a block of a tensor as float32[rows, columns]."""
    columns = math.prod(tensor.shape[1:])
    rows = block.size // (columns * ITEM_BYTES[tensor.dtype])
    return replace(tensor, shape=(rows, columns), start=0).read(block)


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """How a kind of file stores tensors: matrices as codes with scales, or numbers."""

    code_dtype: str
    quantize: Quantize
    convert: Callable[[NDArray[np.uint8], StoredTensor], NDArray[Any] | None]
    """Returns a block of a tensor that is not quantized as it is to be stored; None: it contains
    numbers that the file cannot store."""
    refused: str
    """What a tensor that cannot be stored contains."""


def rewrite_tensor(
    file_format: FileFormat,
    name: str,
    tensor: StoredTensor,
    written: Mapping[str, StoredTensor],
    report: ReportBytes,
) -> None:
    """Write one tensor to its place in the new file.

    Args:
        file_format: of the new file.
        name: of the tensor in the new file.
        tensor: the tensor as it is stored.
        written: the places in the new file, which has its header.
        report: called with the number of bytes read.

    Raises:
        ModelWeightsError: the tensor contains numbers that the new file cannot store.
    """
    place = written[name]
    with tensor.path.open("rb") as reader, place.path.open("r+b") as writer:
        blocks = read_blocks(tensor, reader, report)
        writer.seek(place.start)
        if place.dtype == file_format.code_dtype:
            scales = list(_write_codes(file_format, name, tensor, blocks, writer))
            writer.seek(written[name + SCALE_SUFFIX].start)
            writer.write(np.concatenate(scales).astype("<f4").data)
            return
        for block in blocks:
            numbers = file_format.convert(block, tensor)
            if numbers is None:
                raise _cannot_be_stored(file_format, name, tensor)
            writer.write(numbers.data)


def _write_codes(
    file_format: FileFormat,
    name: str,
    tensor: StoredTensor,
    blocks: Iterable[NDArray[np.uint8]],
    writer: IO[bytes],
) -> Iterator[NDArray[np.float32]]:
    """Write the codes of a matrix, and yield the scales of each block of rows."""
    for block in blocks:
        codes, scales = file_format.quantize(as_numbers(block, tensor))
        if not np.isfinite(scales).all():
            raise _cannot_be_stored(file_format, name, tensor)
        writer.write(codes.data)
        yield scales


def _cannot_be_stored(
    file_format: FileFormat, name: str, tensor: StoredTensor
) -> ModelWeightsError:
    return ModelWeightsError(
        f"{tensor.file}: tensor {name} contains {file_format.refused}; download the model again, "
        "or ask its authors"
    )


def quantized_kinds(
    name: str, shape: tuple[int, ...], dtype: str, scales: tuple[int, ...]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of a quantized matrix and of its scales, for `create_file`."""
    return {name: (dtype, shape), name + SCALE_SUFFIX: ("F32", scales)}
