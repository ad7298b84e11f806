"""Writes a safetensors file tensor by tensor, as the library's own `serialize_file` would.

The library takes all tensors as bytes in memory at once; this takes one at a time.

Source: `prepare` and `serialize_to_file` of safetensors 0.8, src/tensor.rs: tensors sorted by type,
the widest first, then by name; a header of JSON without blanks, filled up to a multiple of 8 bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from embedlib.models.compiled.new_folder import sync
from embedlib.models.new_file import PART_SUFFIX

ORDER: Final = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
"""The library's order of the types that PyTorch saves."""
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
    names = sorted(tensors, key=lambda name: (ORDER.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.num_bytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    part = part_of(path)
    try:
        with part.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                for block in _blocks(tensors[name]):
                    report(file.write(block.data))
        sync(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def part_of(path: Path) -> Path:
    """Return the file that becomes `path` when it is complete."""
    return path.with_name(f".{path.name}{PART_SUFFIX}")


def _blocks(tensor: Writable) -> list[NDArray[np.uint8]]:
    """Return a tensor's bytes in the order of its axes, in blocks."""
    flat = np.ascontiguousarray(tensor.values).reshape(-1).view(np.uint8)
    return [flat[at : at + BLOCK_BYTES] for at in range(0, flat.size, BLOCK_BYTES)]
