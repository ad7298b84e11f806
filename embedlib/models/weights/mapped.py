"""What mapped files hold of the weights, for an engine that reads them in place."""

from __future__ import annotations

import mmap
import sys
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.models.weights.load import Weights


@dataclass(frozen=True)
class StoredBits:
    """A tensor as its file stores it, in a 16-bit type."""

    dtype: str
    """F16 or BF16."""
    bits: NDArray[np.uint16]
    """uint16[the tensor's shape], a view onto the mapped file."""


def stored_bits(weights: Mapping[str, Any], role: str) -> StoredBits | None:
    """Return the tensor of a role as its file stores it; None: not in 16 bits of a mapped file."""
    owner = next((part for part in _parts(weights) if role in part), None)
    if not isinstance(owner, Weights):
        return None
    tensor = owner.stored(role)
    if tensor is None or tensor.added or tensor.dtype not in ("F16", "BF16"):
        return None
    return StoredBits(tensor.dtype, tensor.stored(owner.mapped_files[tensor.path]).view("<u2"))


def mapped_files(weights: Mapping[str, Any]) -> list[NDArray[np.uint8]]:
    """Return the mapped files of weights; empty for arrays in memory."""
    parts = [part for part in _parts(weights) if isinstance(part, Weights)]
    return [file for part in parts for file in part.mapped_files.values()]


def mapped_paths(weights: Mapping[str, Any]) -> list[Path]:
    """Return the paths of the mapped files of weights, in the order of `mapped_files`."""
    parts = [part for part in _parts(weights) if isinstance(part, Weights)]
    return [path for part in parts for path in part.mapped_files]


def let_go(files: Iterable[NDArray[np.uint8]]) -> None:
    """Let the pages of mapped files go; who reads them again gets them from the file.

    The files are mapped copy-on-write and nobody writes, so nothing is lost. Elsewhere than on
    Linux nothing is done: there the same advice may zero the pages.
    """
    for file in files:
        mapping = _mapping(file)
        if sys.platform == "linux" and mapping is not None:
            mapping.madvise(mmap.MADV_DONTNEED)


def _parts(weights: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return weights.maps if isinstance(weights, ChainMap) else [weights]


def _mapping(array: Any) -> mmap.mmap | None:
    """Return the mapping that an array is a view of; None: its memory is not a mapping."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array
