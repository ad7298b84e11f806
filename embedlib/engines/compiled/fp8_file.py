"""One safetensors file rewritten as another: chosen weights in FP8, all other numbers in bfloat16.

Source: names and types are those that nvidia-modelopt 0.47 exports with
`FP8_PER_CHANNEL_PER_TOKEN_CFG` and TensorRT-LLM reads: the weight keeps its name and has the type
F8_E4M3, `NAME_scale` is float32[output channels].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.compiled.tensor_blocks import (
    ITEM_BYTES,
    Report,
    WrittenTensor,
    as_numbers,
    place_tensors,
    read_blocks,
    write_header,
)
from embedlib.engines.fp8 import is_finite_bfloat16, quantize_rows, round_bfloat16
from embedlib.errors import ModelWeightsError
from embedlib.models.safetensors_files import STORED_DTYPES, StoredTensor, list_tensors


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
    with source.open("rb") as reader, target.open("wb") as writer:
        first = write_header(written, writer)
        for name, tensor in sorted(stored.items(), key=lambda item: item[1].start):
            blocks = read_blocks(tensor, reader, report)
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
    """Return the tensors of the new file."""
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
    return place_tensors(kinds)


def _write_fp8(
    blocks: Iterator[NDArray[np.uint8]], tensor: StoredTensor, name: str, writer: IO[bytes]
) -> NDArray[np.float32]:
    """Write the codes of a matrix and return the scales of its rows."""
    scales = []
    for block in blocks:
        codes, block_scales = quantize_rows(as_numbers(block, tensor))
        if not np.isfinite(block_scales).all():
            raise _not_finite(tensor, name)
        writer.write(codes.tobytes())
        scales.append(block_scales)
    return np.concatenate(scales)


def _write_bfloat16(
    blocks: Iterator[NDArray[np.uint8]], tensor: StoredTensor, name: str, writer: IO[bytes]
) -> None:
    for block in blocks:
        bits = round_bfloat16(as_numbers(block, tensor))
        if not is_finite_bfloat16(bits):
            raise _not_finite(tensor, name)
        writer.write(bits.astype("<u2").tobytes())


def _not_finite(tensor: StoredTensor, name: str) -> ModelWeightsError:
    return ModelWeightsError(
        f"{tensor.file}: tensor {name} holds NaN, infinity or a number too large for bfloat16; "
        "fetch the model again, or ask those who trained it"
    )
