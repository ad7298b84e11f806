"""What mapped files hold of the weights, for an engine that reads them in place."""

from __future__ import annotations

import mmap
import sys
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

NO_RESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Linux else refuses to map a file larger than its memory so that it may be written to, although
nobody writes. Source: MAP_NORESERVE of asm-generic/mman.h, which x86 and ARM have; Python names it
from 3.13 on. https://docs.kernel.org/mm/overcommit-accounting.html."""


class FileBytes(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The bytes of a mapped file: uint8[file size]; it knows the file's path."""

    path: Path


@dataclass(frozen=True)
class StoredBits:
    """A tensor as its file stores it, in a 16-bit type."""

    dtype: Literal["F16", "BF16"]
    bits: NDArray[np.uint16]
    """uint16[the tensor's shape], a view onto the mapped file."""


@runtime_checkable
class MappedWeights(Protocol):
    """Weights by role whose tensors lie in mapped files."""

    @property
    def mapped_files(self) -> Sequence[NDArray[np.uint8]]:
        """The bytes of each file, as `map_bytes` returned them."""
        ...

    def stored_bits(self, role: str) -> StoredBits | None:
        """Return a tensor that is stored in 16 bits; None: it is stored or computed otherwise."""
        ...


def map_bytes(path: Path) -> NDArray[np.uint8]:
    """Return a file's bytes, mapped copy-on-write: uint8[file size].

    The array is writable because some libraries share only writable memory. The file never changes.

    Raises:
        OSError: it cannot be opened, or the system has no memory for it.
    """
    with path.open("rb") as file:
        kinds = mmap.MAP_PRIVATE | NO_RESERVE
        mapping = mmap.mmap(file.fileno(), 0, kinds, mmap.PROT_READ | mmap.PROT_WRITE)
    content = FileBytes((len(mapping),), np.uint8, mapping)
    content.path = path
    return np.asarray(content)


def stored_bits(weights: Mapping[str, Any], role: str) -> StoredBits | None:
    """Return the tensor of a role as its file stores it; None: not in 16 bits of a mapped file."""
    owner = next((part for part in _parts(weights) if role in part), None)
    return owner.stored_bits(role) if isinstance(owner, MappedWeights) else None


def mapped_files(weights: Mapping[str, Any]) -> list[NDArray[np.uint8]]:
    """Return the mapped files of weights; empty for arrays in memory."""
    parts = [part for part in _parts(weights) if isinstance(part, MappedWeights)]
    return [file for part in parts for file in part.mapped_files]


def mapped_paths(weights: Mapping[str, Any]) -> list[Path]:
    """Return the paths of the mapped files of weights."""
    return [_path(file) for file in mapped_files(weights)]


def _path(array: Any) -> Path:
    while not isinstance(array, FileBytes):
        array = array.base
    return array.path


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
