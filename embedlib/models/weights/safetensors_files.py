"""Maps safetensors files into memory and reads their tensors without copying where possible.

Source: https://github.com/huggingface/safetensors#format: 8 bytes with the length of a JSON header,
the header, then the tensors, all little-endian.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError, typed_line
from embedlib.models.reading.json_files import show
from embedlib.models.reading.model_file import (
    LFS_POINTER,
    lfs_pointer,
    missing_file,
    name_in,
    open_file,
    place_of,
)
from embedlib.models.weights.memory import no_memory

NUMPY_TYPES: Final[Mapping[str, str]] = {
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "F32": "<f4", "U32": "<u4", "I32": "<i4",
    "BF16": "<u2", "F16": "<f2", "U16": "<u2", "I16": "<i2", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
    "I8": "|i1", "U8": "|u1", "BOOL": "|u1",
}  # fmt: skip
"""Type name in the header to the numpy type of the stored bytes; numpy has no bfloat16.

In the order in which the library writes tensors. Source: `Dtype` in its src/tensor.rs.
"""

STORED_DTYPES: Final = {name: NUMPY_TYPES[name] for name in ("F32", "F16", "BF16")}
"""Those of a transformer's weights."""

NO_RESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Linux else refuses to map a file larger than its memory so that it may be written to, although
nobody writes. Source: MAP_NORESERVE of asm-generic/mman.h, which x86 and ARM have; Python names it
from 3.13 on. https://docs.kernel.org/mm/overcommit-accounting.html."""

HEADER_LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the library: `MAX_HEADER_SIZE` of safetensors, src/tensor.rs."""
MAX_DIMS: Final = 32
"""Axes of a tensor, as in numpy."""
MAX_EMPTY: Final = 1 << 40
"""The product of the other axes of a tensor with an axis of 0; numpy refuses 2**63 bytes."""
_TYPE_NAME: Final = re.compile("[A-Z0-9_]{1,16}")
"""Such as F32, or F8_E4M3, and those of releases to come."""


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor is stored, from the header alone."""

    path: Path
    """The file to map: the pack if it is in one."""
    file: str
    """The name of the file in messages."""
    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    added: float = 0.0
    """Added to every value when the tensor is read."""

    def block(self, index: int, count: int) -> StoredTensor:
        """Return one of `count` equal blocks of rows."""
        rows = self.shape[0] // count
        num_bytes = self.num_bytes // count
        return replace(self, shape=(rows, *self.shape[1:]), start=self.start + index * num_bytes)

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the tensor as float32: a view if it is stored as float32 and `added` is 0.

        Args:
            data: uint8[file size], the mapped file.
        """
        stored = self.stored(data)
        if self.dtype == "BF16":
            # bfloat16 is the upper half of a float32.
            values = (stored.astype(np.uint32) << 16).view(np.float32)
        else:
            values = stored.astype(np.float32, copy=False)
        return values + np.float32(self.added) if self.added else values

    def stored(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the tensor as it is stored, a view: of the type in `NUMPY_TYPES`."""
        kind = np.dtype(NUMPY_TYPES[self.dtype])
        return data[self.start : self.start + self.num_bytes].view(kind).reshape(self.shape)

    def check(self, name: str, shape: tuple[int, ...], dtypes: Collection[str]) -> None:
        """Refuse a tensor of another shape or type.

        Args:
            name: of the tensor, for messages.
            shape: what it must be; -1 stands for any number from 1 on.
            dtypes: what its type may be.

        Raises:
            ModelWeightsError: it is something else.
        """
        is_alike = len(self.shape) == len(shape) and all(
            size == wanted or (wanted < 0 < size)
            for size, wanted in zip(self.shape, shape, strict=True)
        )
        if not is_alike:
            expected = ["any" if size < 0 else size for size in shape]
            raise ModelWeightsError(
                f"{self.file}: tensor {name} has shape {list(self.shape)}; expected: {expected}"
            )
        if self.dtype not in dtypes:
            raise self.refuse_type(name, dtypes)

    def refuse_type(self, name: str, accepted: Iterable[str]) -> ModelWeightsError:
        """Return the error for a tensor of this name that is stored in another type."""
        remedy = (
            "; where torch is installed, safetensors.torch.save_file({name: tensor.float() for "
            "name, tensor in safetensors.torch.load_file(FILE).items()}, FILE, "
            "{'format': 'pt'}) makes F32 of it"
            if self.dtype == "F64"
            else ""
        )
        return ModelWeightsError(
            f"{self.file}: tensor {name} has type {self.dtype}; "
            f"accepted: {', '.join(accepted)}{remedy}"
        )

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * np.dtype(NUMPY_TYPES[self.dtype]).itemsize


@dataclass(frozen=True)
class RowDifference:
    """One row of a stored matrix minus another row, divided; computed when it is read."""

    row: StoredTensor
    """Of shape [1, columns]."""
    subtracted: StoredTensor | None
    """A row in the same file; None: nothing is subtracted."""
    divisor: float = 1.0

    @property
    def path(self) -> Path:
        """The file that contains both rows."""
        return self.row.path

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return float32[1, columns].

        Args:
            data: uint8[file size], the mapped file.
        """
        row = self.row.read(data)
        if self.subtracted is not None:
            row = row - self.subtracted.read(data)
        return row if self.divisor == 1 else row / np.float32(self.divisor)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return a file's bytes, or for a file in a pack the pack's, mapped copy-on-write.

    The array, uint8[file size], is writable because some libraries share only writable memory. The
    file never changes.

    Raises:
        OSError: it cannot be opened.
        ModelWeightsError: the system has no memory for it.
    """
    path = place_of(path).path
    kinds = mmap.MAP_PRIVATE | NO_RESERVE
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, kinds, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise no_memory(path.name, path.stat().st_size) from error
    return np.frombuffer(mapped, np.uint8)


def list_tensors(path: Path, folder: Path) -> dict[str, StoredTensor]:
    """Return a file's tensors by name, after checking that the file is complete.

    Args:
        path: a `.safetensors` file.
        folder: the model folder; messages name the file relative to it.

    Raises:
        ModelUnsupportedError: it is something else than a file.
        ModelWeightsError: if the file is missing, truncated, a pointer of Git LFS or not
            safetensors.
    """
    file = name_in(path, folder)
    try:
        with open_file(path, folder) as stream:
            place = place_of(path)
            first_bytes = stream.read(HEADER_LENGTH_BYTES)
            if first_bytes == LFS_POINTER[:HEADER_LENGTH_BYTES]:  # no header is as long as it says
                raise ModelWeightsError(lfs_pointer(path, folder))
            length = int.from_bytes(first_bytes, "little")
            header = json.loads(stream.read(min(length, MAX_HEADER_BYTES)))
        header.pop("__metadata__", None)
        start = HEADER_LENGTH_BYTES + length
        _check_places(header, place.num_bytes - start)
    except FileNotFoundError as error:
        raise ModelWeightsError(missing_file(path, folder)) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        line = typed_line(error)
        raise ModelWeightsError(f"{file}: is damaged ({line}); download it again") from error
    return {
        name: StoredTensor(
            place.path,
            file,
            entry["dtype"],
            tuple(entry["shape"]),
            place.start + start + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }


def _check_places(tensors: Mapping[str, Any], num_bytes: int) -> None:
    """Check that tensors lie one behind the other, as large as their shapes, and fill the file.

    Args:
        tensors: the entries of a header.
        num_bytes: of the file, behind the header.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: they do not, or the header is none.
    """
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        if not _TYPE_NAME.fullmatch(entry["dtype"]):  # it is told in messages
            raise ValueError(f"tensor {show(name)} of type {entry['dtype']!r:.40}")
        kind = NUMPY_TYPES.get(entry["dtype"])  # a file may have others beside those of a model
        is_plain = (
            len(shape) <= MAX_DIMS
            and all(type(number) is int and number >= 0 for number in (start, stop, *shape))
            and (0 not in shape or math.prod(filter(None, shape)) <= MAX_EMPTY)
        )
        size = math.prod(shape) * np.dtype(kind).itemsize if is_plain and kind else stop - start
        if not is_plain or not end == start <= stop or stop - start != size:
            raise ValueError(f"tensor {show(name)} of another size than its place")
        end = stop
    if end != num_bytes:
        raise ValueError(f"{num_bytes} bytes of tensors, {end} according to the header")
