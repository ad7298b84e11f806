"""Writes a safetensors file tensor by tensor, as the library's own `serialize_file` would.

The library takes all tensors as bytes in memory at once; this takes one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.new_folder import sync
from embedlib.models.compiled.tensor_blocks import create_file
from embedlib.models.new_file import part_of

BLOCK_BYTES: Final = 1 << 26


class Writable(Protocol):
    """A tensor that can be written."""

    @property
    def dtype(self) -> str:
        """As safetensors names it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""

    @property
    def values(self) -> NDArray[Any]:
        """Its numbers, in any order of strides; read once, when they are written."""


def write_safetensors(
    path: Path, tensors: Mapping[str, Writable], report: Callable[[int], None]
) -> None:
    """Write a file that appears under its name when it is complete.

    Args:
        path: the file; one that exists is replaced.
        tensors: by name. Two that share their bytes get them twice.
        report: called with the bytes of every block written.

    Raises:
        OSError: it cannot be written.
    """
    part = part_of(path)
    kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    try:
        part.unlink(missing_ok=True)  # of a killed process, or a link that came with the model
        places = create_file(part, kinds)
        with part.open("ab") as file:
            for name in places:
                for block in _blocks(tensors[name]):
                    report(file.write(block.data))
        sync(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def _blocks(tensor: Writable) -> list[NDArray[np.uint8]]:
    """Return a tensor's bytes in the order of its axes, in blocks."""
    flat = np.ascontiguousarray(tensor.values).reshape(-1).view(np.uint8)
    return [flat[at : at + BLOCK_BYTES] for at in range(0, flat.size, BLOCK_BYTES)]
