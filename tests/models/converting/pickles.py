"""Writes pickles of weights as `torch.save` does, without torch."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

HEAD = b"\x80\x02"
DICT = b"ccollections\nOrderedDict\n)R"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """Return the opcode of a whole number of at most 64 bits."""
    is_short = -(1 << 31) <= value < 1 << 31
    return b"J" + struct.pack("<i", value) if is_short else b"\x8a\x08" + struct.pack("<q", value)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    key: str = "0",
    kind: bytes = b"FloatStorage",
    offset: int = 0,
    num_items: int | None = None,
) -> bytes:
    """Return the opcodes of a tensor, as `torch.save` writes them."""
    size = int(np.prod(shape)) if num_items is None else num_items
    steps = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    storage = b"(" + text("storage") + b"ctorch\n" + kind + b"\n" + text(key) + text("cpu")
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(size) + b"tQ"
        + number(offset) + numbers(shape) + numbers(strides or steps) + b"\x89" + DICT + b"tR"
    )  # fmt: skip


def checkpoint(items: Mapping[str, bytes]) -> bytes:
    """Return the pickle of a dict of tensors."""
    return HEAD + DICT + b"(" + b"".join(text(key) + items[key] for key in items) + b"u."


def write(path: Path, program: bytes, storages: Mapping[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def as_pickles(folder: Path, num_shards: int) -> None:
    """Replace the safetensors of a model folder by pickles."""
    for path in list(folder.rglob("model.safetensors")):
        arrays = load_file(path)
        names = sorted(arrays)
        table = {}
        for shard in range(num_shards if path.parent == folder else 1):
            part = names[shard::num_shards] if path.parent == folder else names
            items = {name: tensor(arrays[name].shape, key=name) for name in part}
            is_one = num_shards == 1 or path.parent != folder
            file = "pytorch_model.bin" if is_one else f"pytorch_model-{shard + 1}.bin"
            content = {name: arrays[name].tobytes() for name in part}
            write(path.with_name(file), checkpoint(items), content)
            table |= dict.fromkeys(part, file)
        if num_shards > 1 and path.parent == folder:
            index = {"metadata": {"note": 1}, "weight_map": table}
            path.with_name("pytorch_model.bin.index.json").write_text(json.dumps(index))
        path.unlink()
