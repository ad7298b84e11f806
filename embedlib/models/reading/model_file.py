"""Opens the files of a model folder: every file of a model is looked for and read here.

A folder may be damaged, or made by somebody who means harm. Only regular files are read, or links
to them: a pipe would wait for ever, a device could do anything. Every error names the file.

A "folder" may also be a pack, or a place in one (`pack_file`): all functions here take its paths.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import stat
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, Final

from embedlib.errors import ModelUnsupportedError, first_line
from embedlib.models.hub_cache import is_snapshot, may_have
from embedlib.models.reading.pack_file import find_in_pack, is_pack, open_pack

MAX_JSON_BYTES: Final = 1 << 28
"""256 MiB; the largest file of known models, Gemma's tokenizer.json, has 33 MB."""

MAX_JSON_DEPTH: Final = 64
"""Objects and lists in one another; files of known models have at most 8, and Python's own limit
depends on the caller's stack."""

MAX_NAME_BYTES: Final = 255
"""The limit of Linux's file systems for one name."""

LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""Begins the text that stands in a file's place where a folder was cloned without Git LFS."""

FILE_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def has_file(path: Path, folder: Path) -> bool:
    """Return whether a model has a file; False only if there is nothing of that name.

    Args:
        path: the file.
        folder: the model folder; messages name the file relative to it.

    Raises:
        ModelUnsupportedError: there is something else than a file, or a link to nothing.
    """
    try:
        return _is_there(path, folder)
    except FileNotFoundError as error:
        raise ModelUnsupportedError(
            f"{name_in(path, folder)}: is a link to a file that does not exist; copy the model "
            "with the files that its links name"
        ) from error


@dataclass(frozen=True)
class FilePlace:
    """The bytes of a file of a model."""

    path: Path
    """The file itself, or the pack that it is in."""
    start: int
    """The first byte in `path`."""
    num_bytes: int


def place_of(path: Path) -> FilePlace:
    """Return where the bytes of a file are, to map them.

    Raises:
        OSError: there is no such file.
        ModelWeightsError: it is in a damaged pack.
    """
    found = find_in_pack(path)
    if found is None:
        return FilePlace(path, 0, path.stat().st_size)
    pack, name = found
    if name not in pack.entries:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    entry = pack.entries[name]
    return FilePlace(pack.path, entry.start, entry.num_bytes)


def file_bytes(path: Path) -> int | None:
    """Return the size of a file; None: there is no regular file."""
    try:
        is_file = path.is_file() or find_in_pack(path) is not None
        return place_of(path).num_bytes if is_file else None
    except OSError:
        return None


def list_files(directory: Path, pattern: str = "*") -> list[Path]:
    """Return what lies directly in a directory and has a name like a pattern, sorted."""
    if directory.is_dir():
        return sorted(directory.glob(pattern))
    return [
        path
        for path in _in_pack(directory)
        if path.parent == directory and fnmatchcase(path.name, pattern)
    ]


def list_directories(directory: Path) -> list[Path]:
    """Return the directories directly in a directory, sorted; empty if there is none to be read."""
    if os.path.isdir(directory):  # a method of Path raises below a folder of another user
        try:
            return sorted(path for path in directory.iterdir() if path.is_dir())
        except OSError:
            return []
    depth = len(directory.parts)
    return sorted(
        {
            Path(*path.parts[: depth + 1])
            for path in _in_pack(directory)
            if len(path.parts) > depth + 1
        }
    )


def _in_pack(directory: Path) -> list[Path]:
    """Return the files below a directory of a pack, sorted; empty if it is in none."""
    if is_pack(directory):
        pack, prefix = open_pack(directory), ""
    elif (found := find_in_pack(directory)) is not None:
        pack, prefix = found[0], f"{found[1]}/"
    else:
        return []
    return sorted(pack.path / name for name in pack.entries if name.startswith(prefix))


def open_file(path: Path, folder: Path) -> IO[bytes]:
    """Open a file of a model for reading.

    Raises:
        FileNotFoundError: there is no such file.
        ModelUnsupportedError: there is something else than a file, or it cannot be read.
    """
    if not _is_there(path, folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        found = find_in_pack(path)
        return path.open("rb") if found is None else found[0].open(found[1])
    except OSError as error:
        raise _unreadable(path, folder, error) from error


def read_file(path: Path, folder: Path) -> bytes:
    """Return the bytes of a small file of a model.

    Raises:
        ModelUnsupportedError: it is missing, something else than a file, too large or cannot be
            read.
    """
    try:
        with open_file(path, folder) as stream:
            num_bytes = place_of(path).num_bytes
            # To its end, where a pack's checksum is compared, and not to the limit: Python takes
            # memory for as many bytes as it is asked for.
            content = stream.read(num_bytes + 1) if num_bytes <= MAX_JSON_BYTES else None
    except OSError as error:
        raise _unreadable(path, folder, error) from error
    except zipfile.BadZipFile as error:  # changed since the pack was opened
        raise ModelUnsupportedError(
            f"{name_in(path, folder)}: is damaged ({first_line(error)}); copy the pack again"
        ) from error
    if content is None:
        raise ModelUnsupportedError(
            f"{name_in(path, folder)}: has more than {MAX_JSON_BYTES >> 20} MiB, which no file of "
            "a model has but weights; download the model again"
        )
    return content


def read_text(path: Path, folder: Path) -> str:
    """Return the text of a small file of a model.

    Raises:
        ModelUnsupportedError: as `read_file`, or if it is a pointer of Git LFS, or begins with a
            byte order mark.
        UnicodeDecodeError: it is not UTF-8.
    """
    content = read_file(path, folder)
    if content.startswith(LFS_POINTER):
        raise ModelUnsupportedError(lfs_pointer(path, folder))
    if content.startswith(codecs.BOM_UTF8):
        raise ModelUnsupportedError(
            f"{name_in(path, folder)}: begins with a byte order mark, which transformers refuses "
            'too; save it in plain UTF-8, in Windows editors "UTF-8" and not "UTF-8 with BOM"'
        )
    return content.decode("utf-8")


def load_json(path: Path, folder: Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        ModelUnsupportedError: as `read_text`, or if it is not valid JSON in UTF-8, or too deep.
    """
    name = name_in(path, folder)
    try:
        values = json.loads(read_text(path, folder))
        is_deep = _depth(values) > MAX_JSON_DEPTH
    except RecursionError:
        is_deep = True
    except ValueError as error:
        raise ModelUnsupportedError(f"{name}: is not valid JSON: {error}") from error
    if is_deep:
        raise ModelUnsupportedError(
            f"{name}: has objects or lists nested more than {MAX_JSON_DEPTH} deep, which no file "
            "of a model has; download the model again"
        )
    return values


def lfs_pointer(path: Path, folder: Path) -> str:
    """Return what is said of a pointer of Git LFS in the place of a file."""
    return (
        f"{name_in(path, folder)}: is a pointer of Git LFS and not the file; install git-lfs and "
        "run `git lfs pull` in the model folder"
    )


def missing_file(path: Path, folder: Path, remedy: str | None = None) -> str:
    """Return what is said of a file that a model needs and lacks.

    Args:
        path: where the file would be.
        folder: the model folder.
        remedy: what to do where the model was published without the file; None: no model is.
    """
    name = name_in(path, folder)
    if is_snapshot(folder) and may_have(folder, path.relative_to(folder).as_posix()):
        online = "the hub's cache may be incomplete: load the model once online by its name"
        remedy = online if remedy is None else f"{online}; if its repository lacks it, {remedy}"
    return f"{name}: the file is missing; {remedy or 'copy all files of the model'}"


def is_file_name(text: str) -> bool:
    """Return whether a string of a model's file may name another file in the same folder."""
    if not text.isprintable() or text in ("", ".", "..") or "/" in text:
        return False
    return len(text.encode()) <= MAX_NAME_BYTES


def name_in(path: Path, folder: Path) -> str:
    """Return a file's path relative to the model folder, for messages: on one line."""
    name = path.relative_to(folder).as_posix()
    return name if name.isprintable() else ascii(name)[1:-1]


def _is_there(path: Path, folder: Path) -> bool:
    """Return whether there is a regular file; False if there is nothing of that name.

    Raises:
        FileNotFoundError: it is a link to nothing.
        ModelUnsupportedError: there is something else than a file.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return False
    except NotADirectoryError as error:  # only a pack has files in it and is one itself
        found = find_in_pack(path)
        if found is None:
            raise _unreadable(path, folder, error) from error
        return found[1] in found[0].entries
    except OSError as error:
        raise _unreadable(path, folder, error) from error
    if stat.S_ISREG(status.st_mode):
        return True
    kind = next((kind for is_kind, kind in FILE_KINDS if is_kind(status.st_mode)), "no file")
    raise ModelUnsupportedError(f"{name_in(path, folder)}: is {kind}; it must be a regular file")


def _unreadable(path: Path, folder: Path, error: OSError) -> ModelUnsupportedError:
    return ModelUnsupportedError(f"{name_in(path, folder)}: cannot be read: {error.strerror}")


def _depth(values: object) -> int:
    """Return how many objects and lists are in one another, without recursion."""
    depth, level = 0, [values]
    while level := [
        inner
        for value in level
        if isinstance(value, (dict, list))
        for inner in (value.values() if isinstance(value, dict) else value)
    ]:
        depth += 1
    return depth
