"""Rewrites one safetensors file: chosen weights in FP8, all other floats in bfloat16.

Source: names and types are those that nvidia-modelopt 0.47 exports with
`FP8_PER_CHANNEL_PER_TOKEN_CFG` and TensorRT-LLM reads: the weight keeps its name and has the type
F8_E4M3, `NAME_scale` is float32[output channels].
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.fp8 import is_finite_bfloat16, quantize_rows, round_bfloat16
from embedlib.models.compiled.jobs import CompileJob
from embedlib.models.compiled.tensor_blocks import (
    ITEM_BYTES,
    FileFormat,
    as_numbers,
    create_file,
    quantized_kinds,
    rewrite_tensor,
)
from embedlib.models.weights.safetensors_files import STORED_DTYPES, StoredTensor, list_tensors


def rewrite_file(
    source: Path, target: Path, quantized: Collection[str]
) -> tuple[dict[str, StoredTensor], list[CompileJob]]:
    """Start rewriting a safetensors file; return its tensors by name, and the jobs to complete it.

    Each job writes one tensor and raises ModelWeightsError if it contains NaN or infinity.

    Args:
        source: the file to read.
        target: the file to write.
        quantized: names of the matrices to write in FP8.

    Raises:
        ModelWeightsError: a tensor has an unknown type.
    """
    stored = list_tensors(source, source.parent)
    written = create_file(target, _kinds(stored, quantized))
    in_order = sorted(stored.items(), key=lambda item: item[1].start)
    return written, [partial(rewrite_tensor, _FORMAT, *item, written) for item in in_order]


def _kinds(
    stored: Mapping[str, StoredTensor], quantized: Collection[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of every tensor of the new file, by name."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in stored.items():
        if tensor.dtype not in ITEM_BYTES:
            raise tensor.refuse_type(name, ITEM_BYTES)
        dtype = "BF16" if tensor.dtype in STORED_DTYPES else tensor.dtype
        kinds[name] = dtype, tensor.shape
        if name in quantized:
            kinds |= quantized_kinds(name, tensor.shape, "F8_E4M3", tensor.shape[:1])
    return kinds


def _to_bfloat16(block: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[Any] | None:
    """Return the bits of a block of floats in bfloat16, and of other types as they are."""
    if tensor.dtype not in STORED_DTYPES:
        return block
    is_bfloat16 = tensor.dtype == "BF16"
    bits = block.view("<u2") if is_bfloat16 else round_bfloat16(as_numbers(block, tensor))
    return bits.astype("<u2", copy=False) if is_finite_bfloat16(bits) else None


_FORMAT: Final = FileFormat(
    code_dtype="F8_E4M3",
    quantize=quantize_rows,
    convert=_to_bfloat16,
    refused="NaN, infinity or a number too large for bfloat16",
)
