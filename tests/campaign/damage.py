"""Damages a model folder, one damage at a time: what disks, downloads, editors and enemies do.

`damage(rng, folder)` draws a kind, does it and says what it did, in one line. The same generator
and folder give the same damage.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from tests.campaign.damage_values import VALUE_DAMAGES, Kind, files_of


def damage(rng: random.Random, folder: Path) -> str:
    name = rng.choice(list(DAMAGES))
    return f"{name}: {ascii(DAMAGES[name](rng, folder))[1:-1]}"


# Files of any kind.


def _any(rng: random.Random, folder: Path) -> Path:
    return rng.choice(files_of(folder))


def _content(change: Callable[[random.Random, bytes], bytes]) -> Kind:
    def do(rng: random.Random, folder: Path) -> str:
        path = _any(rng, folder)
        path.write_bytes(change(rng, path.read_bytes()))
        return path.name

    return do


def _flipped(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 8, 200])):
        place = rng.randrange(len(changed))
        changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _zeroed(rng: random.Random, content: bytes) -> bytes:
    first = rng.randrange(len(content))
    return content[:first] + bytes(min(512, len(content) - first)) + content[first + 512 :]


def _recoded(rng: random.Random, content: bytes) -> bytes:
    codec = rng.choice(["utf-16", "utf-8-sig", "utf-32"])
    return content.decode("latin-1").encode(codec)


def _instead(make: Callable[[Path], object]) -> Kind:
    """Put something else into the place of a file."""

    def do(rng: random.Random, folder: Path) -> str:
        path = _any(rng, folder)
        path.unlink()
        make(path)
        return path.name

    return do


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        here = os.open(path.parent, os.O_RDONLY)
        try:  # by way of the folder: a socket's path has at most 108 bytes
            end.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _make_chain(path: Path) -> None:
    for number in range(50):
        path.with_name(f"{path.name}.{number}").symlink_to(f"{path.name}.{number + 1}")
    path.symlink_to(f"{path.name}.0")


def _make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(47 << 30)


def _swap_files(rng: random.Random, folder: Path) -> str:
    first, second = rng.sample(files_of(folder), 2)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    return f"{first.name}, {second.name}"


def _grow(rng: random.Random, folder: Path) -> str:
    path = _any(rng, folder)
    with path.open("r+b") as file:
        file.truncate(47 << 30)
    return path.name


def _add_odd_file(rng: random.Random, folder: Path) -> str:
    name = rng.choice(["\udcff.json", "a\nb.json", "x" * 200 + ".json", ".json", "own.json"])
    kinds: tuple[Callable[[Path], object], ...] = (Path.touch, Path.mkdir, os.mkfifo)
    make = rng.choice(kinds)
    make(folder / name)
    return name


def _pickle(rng: random.Random, folder: Path) -> str:
    path = rng.choice(files_of(folder, "*.safetensors"))
    path.rename(path.with_suffix(".bin"))
    return path.name


DAMAGES: MappingProxyType[str, Kind] = MappingProxyType(
    {
        "truncated": _content(lambda rng, content: content[: rng.randrange(len(content))]),
        "bits flipped": _content(_flipped),
        "a block of zeros": _content(_zeroed),
        "empty": _content(lambda rng, content: b""),
        "random bytes": _content(lambda rng, content: rng.randbytes(min(len(content), 4096))),
        "bytes behind it": _content(lambda rng, content: content + rng.randbytes(9)),
        "twice": _content(lambda rng, content: content * 2),
        "another encoding": _content(_recoded),
        "blanks only": _content(lambda rng, content: b" \n" * 9),
        "missing": _instead(lambda path: None),
        "a directory": _instead(lambda path: path.mkdir()),
        "a pipe": _instead(os.mkfifo),
        "a socket": _instead(_make_socket),
        "endless device": _instead(lambda path: path.symlink_to("/dev/zero")),
        "empty device": _instead(lambda path: path.symlink_to("/dev/null")),
        "link to nothing": _instead(lambda path: path.symlink_to("nowhere")),
        "link to itself": _instead(lambda path: path.symlink_to(path.name)),
        "link to its folder": _instead(lambda path: path.symlink_to(path.parent)),
        "chain of links": _instead(_make_chain),
        "47 GiB of nothing": _instead(_make_sparse),
        "grown to 47 GiB": _grow,
        "two files swapped": _swap_files,
        "a file with an odd name": _add_odd_file,
        "weights as a pickle": _pickle,
        **VALUE_DAMAGES,
    }
)
"""All kinds of damage, by the name that their report begins with."""
