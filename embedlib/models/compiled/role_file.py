"""Reads and starts files of weights by role: one file of a whole model, in other number types.

Their names differ from model.safetensors so that no other library loads them as a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embedlib.models.weights.load import Weights
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors


class RoleFile(Weights):
    """Maps roles to arrays in the types a graph takes: int8[rows, columns], all others float32.

    Arrays stored as int8 or float32 are views onto the mapped file. Scales are among them.
    """

    def __init__(self, path: Path) -> None:
        """Map a file; no tensor is read yet.

        Raises:
            ModelWeightsError: the file is missing or damaged.
        """
        super().__init__(list_tensors(path, path.parent))

    def __getitem__(self, role: str) -> NDArray[Any]:
        """Return one tensor; 16-bit tensors are converted on every call."""
        tensor = self.stored(role)
        if tensor is None or tensor.dtype != "I8":
            return super().__getitem__(role)
        return tensor.stored(self.mapped_files[tensor.path])


def tensors_to_store(weights: Weights) -> dict[str, StoredTensor]:
    """Return the tensors of a model by role, as its files have them from front to back.

    Weights that are computed at load are left out: they depend on the template, and are not part
    of the model.
    """
    places = {role: weights.stored(role) for role in weights}
    stored = {role: place for role, place in places.items() if place is not None}
    return dict(sorted(stored.items(), key=lambda item: (item[1].path, item[1].start)))
