"""Reads and writes model.int8.safetensors: all weights of a model by role, chosen matrices in int8.

An int8 matrix is stored under its role with the type I8; its scales are `ROLE_scale`,
float32[rows]. All other tensors keep the model's type and numbers. The file name differs from
model.safetensors so that no other library loads it as a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.int8 import quantize_rows
from embedlib.models.compiled.jobs import CompileJob
from embedlib.models.compiled.tensor_blocks import (
    WrittenTensor,
    as_numbers,
    create_file,
    quantized_kinds,
    read_blocks,
    write_quantized,
)
from embedlib.models.weights.file_hashes import ReportBytes
from embedlib.models.weights.load import Weights
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors, map_file

INT8_NAME: Final = "model.int8.safetensors"


class Int8Weights(Mapping[str, NDArray[Any]]):
    """Maps roles to arrays in the types a graph takes: int8[rows, columns], all others float32.

    Arrays stored as int8 or float32 are views onto the mapped file.
    """

    def __init__(self, path: Path) -> None:
        """Map a file that `write_int8` wrote; no tensor is read yet.

        Raises:
            ModelWeightsError: the file is missing or damaged.
        """
        self._tensors = list_tensors(path, path.name)
        self._data = map_file(path)

    def __getitem__(self, role: str) -> NDArray[Any]:
        """Return one tensor; 16-bit tensors are converted on every call."""
        tensor = self._tensors[role]
        if tensor.dtype != "I8":
            return tensor.read(self._data)
        rows, columns = tensor.shape
        codes = self._data[tensor.start : tensor.start + rows * columns]
        return codes.view(np.int8).reshape(rows, columns)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the roles and the names of the scales."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors, scales included."""
        return len(self._tensors)


def write_int8(weights: Weights, path: Path, quantized: Collection[str]) -> list[CompileJob]:
    """Start the int8 file of a model, and return the jobs that complete it.

    Each job writes one tensor. It raises ModelWeightsError if a matrix to quantize contains NaN or
    infinity.

    Args:
        weights: of the model.
        path: the file to write.
        quantized: roles of the matrices to write in int8, such as `layers.0.q.weight`.
    """
    # Weights that are computed at load depend on the template, and are not part of the model.
    stored = {role: weights.stored(role) for role in weights if weights.is_stored(role)}
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for role, tensor in stored.items():
        # Norms that are stored minus one get the 1 added on reading, in float32.
        kinds[role] = "F32" if tensor.added else tensor.dtype, tensor.shape
        if role in quantized:
            kinds |= quantized_kinds(role, tensor.shape, "I8")
    written = create_file(path, kinds)
    in_order = sorted(stored.items(), key=_place)
    return [partial(_write_tensor, *item, path, written) for item in in_order]


def _place(item: tuple[str, StoredTensor]) -> tuple[Path, int]:
    """Return the sort key that reads every file from front to back."""
    return item[1].path, item[1].start


def _write_tensor(
    role: str,
    tensor: StoredTensor,
    path: Path,
    written: Mapping[str, WrittenTensor],
    report: ReportBytes,
) -> None:
    """Write one tensor, in int8 or unchanged."""
    with tensor.path.open("rb") as reader, path.open("r+b") as writer:
        blocks = read_blocks(tensor, reader, report)
        if written[role].dtype == "I8":
            if not write_quantized(role, tensor, blocks, quantize_rows, written, writer):
                raise ModelWeightsError(
                    f"{tensor.file}: the tensor of {role} contains NaN or infinity; download the "
                    "model again, or ask its authors"
                )
            return
        writer.seek(written[role].start)
        for block in blocks:
            numbers = as_numbers(block, tensor).astype("<f4") if tensor.added else block
            writer.write(numbers.data)
