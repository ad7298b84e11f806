"""Reads and writes model.int8.safetensors: all weights of a model by role, chosen matrices in int8.

An int8 matrix is stored under its role with the type I8; its scales are `ROLE_scale`,
float32[rows, groups]. All other tensors keep the model's type and numbers. The file name differs
from model.safetensors so that no other library loads it as a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.int8 import groups_of, quantize_groups
from embedlib.models.compiled.jobs import CompileJob
from embedlib.models.compiled.tensor_blocks import (
    FileFormat,
    as_numbers,
    create_file,
    quantized_kinds,
    rewrite_tensor,
)
from embedlib.models.weights.load import Weights
from embedlib.models.weights.mapped import StoredBits
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
        self._tensors = list_tensors(path, path.parent)
        self._data = map_file(path)

    def __getitem__(self, role: str) -> NDArray[Any]:
        """Return one tensor; 16-bit tensors are converted on every call."""
        tensor = self._tensors[role]
        if tensor.dtype != "I8":
            return tensor.read(self._data)
        rows, columns = tensor.shape
        codes = self._data[tensor.start : tensor.start + rows * columns]
        return codes.view(np.int8).reshape(rows, columns)

    @property
    def mapped_files(self) -> list[NDArray[np.uint8]]:
        """The bytes of the file; see `mapped.MappedWeights`."""
        return [self._data]

    def stored_bits(self, role: str) -> StoredBits | None:
        """Return a tensor that is stored in 16 bits; None: it is stored otherwise."""
        return self._tensors[role].bits(self._data)

    def __contains__(self, role: object) -> bool:
        """Return whether there is such a tensor; `Mapping` would read and convert it."""
        return role in self._tensors

    def __iter__(self) -> Iterator[str]:
        """Iterate over the roles and the names of the scales."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors, scales included."""
        return len(self._tensors)


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
    # Weights that are computed at load depend on the template, and are not part of the model.
    stored = {role: weights.stored(role) for role in weights if weights.is_stored(role)}
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for role, tensor in stored.items():
        # Norms that are stored minus one get the 1 added on reading, in float32.
        kinds[role] = "F32" if tensor.added else tensor.dtype, tensor.shape
        if role in quantized:
            rows, columns = tensor.shape
            kinds |= quantized_kinds(role, tensor.shape, "I8", (rows, groups_of(columns, group)))
    written = create_file(path, kinds)
    in_order = sorted(stored.items(), key=_place)
    file_format = FileFormat(
        code_dtype="I8",
        quantize=partial(quantize_groups, group=group),
        convert=_as_stored,
        refused="NaN or infinity",
    )
    return [partial(rewrite_tensor, file_format, *item, path, written) for item in in_order]


def _place(item: tuple[str, StoredTensor]) -> tuple[Path, int]:
    """Return the sort key that reads every file from front to back."""
    return item[1].path, item[1].start


def _as_stored(block: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[Any]:
    return as_numbers(block, tensor).astype("<f4") if tensor.added else block
