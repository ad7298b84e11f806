"""Reads and starts files of weights by role: one file of a whole model, in other number types.

Their names differ from model.safetensors so that no other library loads them as a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.models.weights.load import Weights
from embedlib.models.weights.mapped import StoredBits
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors, map_file


class RoleFile(Mapping[str, NDArray[Any]]):
    """Maps roles to arrays in the types a graph takes: int8[rows, columns], all others float32.

    Arrays stored as int8 or float32 are views onto the mapped file.
    """

    def __init__(self, path: Path) -> None:
        """Map a file; no tensor is read yet.

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


def tensors_to_store(weights: Weights) -> dict[str, StoredTensor]:
    """Return the tensors of a model by role, as its files have them from front to back.

    Weights that are computed at load are left out: they depend on the template, and are not part
    of the model.
    """
    stored = {role: weights.stored(role) for role in weights if weights.is_stored(role)}
    return dict(sorted(stored.items(), key=lambda item: (item[1].path, item[1].start)))
