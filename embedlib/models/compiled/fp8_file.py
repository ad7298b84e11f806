"""Rewrites one safetensors file: chosen weights in FP8, all other floats in bfloat16.

Source: names and types are those that nvidia-modelopt 0.47 exports with
`FP8_PER_CHANNEL_PER_TOKEN_CFG` and TensorRT-LLM reads: the weight keeps its name and has the type
F8_E4M3, `NAME_scale` is float32[output channels].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.fp8 import (
    is_finite_bfloat16,
    quantize_rows,
    round_bfloat16,
)
from embedlib.models.compiled.jobs import CompileJob
from embedlib.models.compiled.tensor_blocks import (
    ITEM_BYTES,
    WrittenTensor,
    as_numbers,
    create_file,
    quantized_kinds,
    read_blocks,
    write_quantized,
)
from embedlib.models.weights.file_hashes import ReportBytes
from embedlib.models.weights.safetensors_files import STORED_DTYPES, StoredTensor, list_tensors


def rewrite_file(
    source: Path, target: Path, quantized: Collection[str]
) -> tuple[dict[str, WrittenTensor], list[CompileJob]]:
    """Start rewriting a safetensors file; return its tensors by name, and the jobs to complete it.

    Each job writes one tensor and raises ModelWeightsError if it contains NaN or infinity.

    Args:
        source: the file to read.
        target: the file to write.
        quantized: names of the matrices to write in FP8.

    Raises:
        ModelWeightsError: a tensor has an unknown type.
    """
    stored = list_tensors(source, source.name)
    written = create_file(target, _kinds(stored, quantized, source.name))
    in_order = sorted(stored.items(), key=lambda item: item[1].start)
    return written, [partial(_rewrite, *item, target, written) for item in in_order]


def _rewrite(
    name: str,
    tensor: StoredTensor,
    target: Path,
    written: Mapping[str, WrittenTensor],
    report: ReportBytes,
) -> None:
    """Convert and write one tensor."""
    with tensor.path.open("rb") as reader, target.open("r+b") as writer:
        blocks = read_blocks(tensor, reader, report)
        if written[name].dtype == "F8_E4M3":
            if not write_quantized(name, tensor, blocks, quantize_rows, written, writer):
                raise _not_finite(tensor, name)
            return
        writer.seek(written[name].start)
        if tensor.dtype in STORED_DTYPES:
            _write_bfloat16(blocks, tensor, name, writer)
        else:
            for block in blocks:
                writer.write(block.data)


def _kinds(
    stored: Mapping[str, StoredTensor], quantized: Collection[str], file: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of every tensor of the new file, by name."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in stored.items():
        if tensor.dtype not in ITEM_BYTES:
            raise ModelWeightsError(
                f"{file}: tensor {name} has type {tensor.dtype}; accepted: {', '.join(ITEM_BYTES)}"
            )
        dtype = "BF16" if tensor.dtype in STORED_DTYPES else tensor.dtype
        kinds[name] = dtype, tensor.shape
        if name in quantized:
            kinds |= quantized_kinds(name, tensor.shape, "F8_E4M3")
    return kinds


def _write_bfloat16(
    blocks: Iterator[NDArray[np.uint8]], tensor: StoredTensor, name: str, writer: IO[bytes]
) -> None:
    for block in blocks:
        is_bfloat16 = tensor.dtype == "BF16"
        bits = block.view("<u2") if is_bfloat16 else round_bfloat16(as_numbers(block, tensor))
        if not is_finite_bfloat16(bits):
            raise _not_finite(tensor, name)
        writer.write(bits.astype("<u2", copy=False).data)


def _not_finite(tensor: StoredTensor, name: str) -> ModelWeightsError:
    return ModelWeightsError(
        f"{tensor.file}: tensor {name} contains NaN, infinity or a number too large for bfloat16; "
        "download the model again, or ask its authors"
    )
