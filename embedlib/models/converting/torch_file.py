"""A file of `torch.save`: a zip archive with a pickle, and an entry for every storage.

The entries are not compressed, so a tensor is a part of the file, which is mapped and never copied
as a whole. No number of the pickle is believed that the archive does not bear out.

Source: PyTorch 2.13, `_save` and `_load` in torch/serialization.py.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError, first_line
from embedlib.models.converting.opcodes import PickledTensor, read_checkpoint
from embedlib.models.reading.json_files import show
from embedlib.models.reading.model_file import name_in, open_file
from embedlib.models.reading.pack_file import LOCAL_HEADER, SIGNATURE
from embedlib.models.weights.safetensors_files import MAX_EMPTY, NUMPY_TYPES, map_file

MAX_PICKLE_BYTES: Final = 1 << 26
"""64 MiB; that of bge-m3, with 391 tensors, has 0.1 MB."""
MAX_ENTRIES: Final = 1 << 18
MAX_TIMES_SHARED: Final = 64
"""How often the numbers of a file may be in its tensors, each of which is written by itself. T5 has
its table four times; a pickle of 64 MiB could name a gigabyte often enough to fill any disk."""

LEGACY: Final = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of the format before PyTorch 1.6. Source: `MAGIC_NUMBER` in
torch/serialization.py, as a pickle of protocol 2."""

_ARCHIVE_ERRORS: Final = (
    *(zipfile.BadZipFile, ValueError, OSError, EOFError, struct.error),
    RuntimeError,  # of an encrypted entry, or of a method or version that zipfile does not know
)
"""What zipfile raises of an archive that is none, or is damaged."""


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of a mapped file."""

    dtype: str
    """As safetensors names it."""
    values: NDArray[Any]
    """A view of the file, in any order of strides; bfloat16 as uint16."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.values.shape

    @property
    def num_bytes(self) -> int:
        """Its size, without what the file has between its numbers."""
        return self.values.nbytes


def read_torch_file(path: Path, folder: Path) -> dict[str, CheckpointTensor]:
    """Return the tensors of a file of `torch.save` by name, as views of the mapped file.

    Args:
        path: the file.
        folder: the model folder; messages name the file relative to it.

    Raises:
        ModelWeightsError: it is in another format, damaged, or holds anything but tensors.
        ModelUnsupportedError: it is no regular file.
    """
    file = name_in(path, folder)
    with open_file(path, folder) as stream:
        if stream.read(len(LEGACY)) == LEGACY:
            raise ModelWeightsError(
                f"{file}: is in the format of PyTorch before 1.6, which is not converted; write it "
                f"again where torch is installed: torch.save(torch.load({path.name!r}, "
                f"weights_only=True), {path.name!r})"
            )
        try:
            with zipfile.ZipFile(stream) as archive:
                entries = _entries(archive, file)
                program = _program(archive, entries, file)
        except _ARCHIVE_ERRORS as error:
            raise ModelWeightsError(
                f"{file}: is no archive of torch.save ({first_line(error)}); download it again"
            ) from error
    tensors = read_checkpoint(program, file)
    data = map_file(path)
    starts: dict[str, int] = {}
    found = {}
    for name, tensor in tensors.items():
        what, key = f"{file}: {show(name)}", tensor.storage.key
        info = _checked_entry(tensor, entries, what)
        if key not in starts:  # tensors may share a storage, which is read once
            starts[key] = _start(info, data, what)
        flat = data[starts[key] : starts[key] + info.file_size]
        found[name] = _tensor(tensor, flat)
    total = sum(tensor.num_bytes for tensor in found.values())
    if total > MAX_TIMES_SHARED * len(data):
        raise ModelWeightsError(
            f"{file}: its tensors share what is stored, and have {total:,} bytes without that, "
            f"more than {MAX_TIMES_SHARED} times the file; it is not converted"
        )
    return found


def _entries(archive: zipfile.ZipFile, file: str) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by name without the archive's own folder."""
    infos = archive.infolist()
    if len(infos) > MAX_ENTRIES:
        raise ModelWeightsError(f"{file}: has {len(infos)} entries, more than {MAX_ENTRIES}")
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ModelWeightsError(f"{file}: {info.filename!a} is compressed")
        name = info.filename.partition("/")[2]
        if name in entries:
            raise ModelWeightsError(f"{file}: has {name!a} twice")
        if info.CRC == 0:  # so torch writes all after `set_crc32_options(False)`
            info.CRC = None  # type: ignore[assignment] # zipfile checks none then
        entries[name] = info
    return entries


def _program(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], file: str) -> bytes:
    """Return the pickle."""
    info = entries.get("data.pkl")
    if info is None:
        raise ModelWeightsError(f"{file}: has no data.pkl; it was not written by torch.save")
    if info.file_size > MAX_PICKLE_BYTES:
        raise ModelWeightsError(
            f"{file}: data.pkl has {info.file_size} bytes, more than {MAX_PICKLE_BYTES}"
        )
    order = entries.get("byteorder")
    if order is not None and (order.file_size > 6 or archive.read(order) != b"little"):
        raise ModelWeightsError(f"{file}: its numbers are not little-endian")
    return archive.read(info)


def _checked_entry(
    tensor: PickledTensor, entries: Mapping[str, zipfile.ZipInfo], what: str
) -> zipfile.ZipInfo:
    """Return the entry of a tensor's storage, after checking that it has all its numbers."""
    storage = tensor.storage
    item_bytes = np.dtype(NUMPY_TYPES[storage.kind]).itemsize
    info = entries.get(f"data/{storage.key}")
    if info is None:
        raise ModelWeightsError(f"{what} has no storage {ascii(storage.key)[:80]} in the file")
    if info.file_size != storage.num_items * item_bytes:
        raise ModelWeightsError(
            f"{what}: its storage has {info.file_size} bytes, not {storage.num_items} numbers of "
            f"{item_bytes}"
        )
    size = prod(tensor.shape)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    # Strides of 0 would make any size of a few numbers.
    is_inside = tensor.offset + last < storage.num_items and size <= storage.num_items
    is_small = prod(filter(None, tensor.shape)) <= MAX_EMPTY
    if not (is_inside if size else is_small):
        raise ModelWeightsError(f"{what} has shape {list(tensor.shape)}, beyond its storage")
    return info


def _tensor(tensor: PickledTensor, flat: NDArray[np.uint8]) -> CheckpointTensor:
    """Return a view of a tensor's numbers, which its storage has."""
    kind = np.dtype(NUMPY_TYPES[tensor.storage.kind])
    if not prod(tensor.shape):
        return CheckpointTensor(tensor.storage.kind, np.empty(tensor.shape, kind))
    numbers = np.ndarray(
        tensor.shape,
        kind,
        buffer=flat,
        offset=tensor.offset * kind.itemsize,
        # The stride of an axis with one place may be any number, and says nothing.
        strides=tuple(
            step * kind.itemsize if n > 1 else 0
            for n, step in zip(tensor.shape, tensor.strides, strict=True)
        ),
    )
    return CheckpointTensor(tensor.storage.kind, numbers)


def _start(info: zipfile.ZipInfo, data: NDArray[np.uint8], what: str) -> int:
    """Return where the bytes of an entry start, after checking them.

    Its own header says how long that header is.
    """
    header = data[info.header_offset : info.header_offset + LOCAL_HEADER.size].tobytes()
    if len(header) < LOCAL_HEADER.size:
        raise ModelWeightsError(f"{what}: its storage begins behind the end of the file")
    signature, _, name_size, extra_size = LOCAL_HEADER.unpack(header)
    start = int(info.header_offset) + LOCAL_HEADER.size + int(name_size) + int(extra_size)
    end = start + info.file_size
    is_whole = signature == SIGNATURE and end <= len(data)
    if not is_whole or info.CRC not in (None, zlib.crc32(data[start:end].data)):
        raise ModelWeightsError(f"{what}: its storage is damaged; download the file again")
    return start
