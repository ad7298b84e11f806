"""Writes model.int8.safetensors: all weights of a model by role, chosen matrices in int8.

An int8 matrix is stored under its role with the type I8; its scales are `ROLE_scale`,
float32[rows, groups]. All other tensors keep the model's type and numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.int8 import groups_of, quantize_groups
from embedlib.models.compiled.jobs import CompileJob
from embedlib.models.compiled.role_file import tensors_to_store
from embedlib.models.compiled.tensor_blocks import (
    FileFormat,
    as_numbers,
    create_file,
    quantized_kinds,
    rewrite_tensor,
)
from embedlib.models.weights.load import Weights
from embedlib.models.weights.safetensors_files import StoredTensor

INT8_NAME: Final = "model.int8.safetensors"


def write_int8(
    weights: Weights, path: Path, quantized: Collection[str], group: int
) -> list[CompileJob]:
    """Start the int8 file of a model, and return the jobs that complete it.

    Each job writes one tensor. It raises ModelWeightsError if a matrix to quantize contains NaN or
    infinity.

    Args:
        weights: of the model.
        path: the file to write.
        quantized: roles of the matrices to write in int8, such as `layers.0.q.weight`.
        group: neighboring weights of a row that share a scale.
    """
    stored = tensors_to_store(weights)
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for role, tensor in stored.items():
        # Norms that are stored minus one get the 1 added on reading, in float32.
        kinds[role] = "F32" if tensor.added else tensor.dtype, tensor.shape
        if role in quantized:
            rows, columns = tensor.shape
            kinds |= quantized_kinds(role, tensor.shape, "I8", (rows, groups_of(columns, group)))
    written = create_file(path, kinds)
    file_format = FileFormat(
        code_dtype="I8",
        quantize=partial(quantize_groups, group=group),
        convert=_as_stored,
        refused="NaN or infinity",
    )
    return [partial(rewrite_tensor, file_format, *item, written) for item in stored.items()]


def _as_stored(block: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[Any]:
    return as_numbers(block, tensor).astype("<f4") if tensor.added else block
