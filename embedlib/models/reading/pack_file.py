"""Reads a pack: the files of a model in one file, each in a place that can be mapped.

A pack is a ZIP archive whose entries are stored without compression, each from a multiple of
`ALIGNMENT` on, so that weights are mapped where they lie and any unzip makes a folder of it. A path
in a pack is written like one in a folder: `minilm.embedlib/1_Pooling/config.json`. Nothing is ever
written to the disk by the names in a pack: they are only looked up.

Source: APPNOTE.TXT 6.3.10 of PKWARE, 4.3.7 (local file header), and the entry `mimetype` of EPUB
(OCF 3.3, 4.3), by whose place a file can be told from its first bytes.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

from embedlib.errors import ModelUnsupportedError, ModelWeightsError, first_line, shown

PACK_SUFFIX: Final = ".embedlib"
FORMAT_VERSION: Final = 1
ALIGNMENT: Final = 4096
"""A page, from which the system maps a file."""

TYPE_NAME: Final = "mimetype"
TYPE: Final = b"application/vnd.embedlib.pack"
INDEX_NAME: Final = "embedlib/pack.json"
"""The entry that lists all others, with their hashes."""
COMPILED_PLACE: Final = "embedlib/compiled"
"""Engine directories, each in a folder of its own."""
REPORTS_PLACE: Final = "embedlib/fidelity"
"""Fidelity reports of precisions that are computed from the model's own files."""

LOCAL_HEADER: Final = struct.Struct("<4s22sHH")
"""Signature, what the central directory says too, length of the name, length of the extra field."""
SIGNATURE: Final = b"PK\x03\x04"
UNREADABLE: Final = 0x01 | 0x20 | 0x40
"""Flags of an entry that is a patch, or encrypted. Source: APPNOTE.TXT, 4.4.4."""

MAX_INDEX_BYTES: Final = 1 << 24
"""16 MiB; the index of a pack with a hundred files has 20 KiB."""

_INDEX_ERRORS: Final = (
    AttributeError, KeyError, TypeError, ValueError, RecursionError, struct.error,
)  # fmt: skip
"""What reading an index raises that is none."""


@dataclass(frozen=True)
class Entry:
    """One file in a pack."""

    start: int
    """First byte in the pack."""
    num_bytes: int
    sha256: str
    """Of its content, as the index says; see `packing.verify`."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What a pack holds, from its directory and its index; the entries are not read."""

    path: Path
    entries: Mapping[str, Entry]
    """By path."""
    hub_name: str | None
    """The model's name on the hub, by which its prompts are found; None: it was a folder."""
    hub_revision: str | None
    """The model's commit on the hub; None: it was a folder."""
    embedlib_version: str
    """That wrote it."""
    index_digest: str
    """SHA-256 of the index, which stands for all of the content."""

    def open(self, name: str) -> IO[bytes]:
        """Open an entry for reading; at its end the checksum of the ZIP archive is compared."""
        with zipfile.ZipFile(self.path) as archive:
            return archive.open(name)


def is_pack(path: Path) -> bool:
    """Return whether a file begins as a pack does; False also if it cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(LOCAL_HEADER.size + len(TYPE_NAME) + len(TYPE))
    except OSError:
        return False
    return head.startswith(SIGNATURE) and head.endswith(TYPE_NAME.encode() + TYPE)


def open_pack(path: Path) -> Pack:
    """Read the directory and the index of a pack.

    Raises:
        ModelUnsupportedError: it has another format version.
        ModelWeightsError: it is damaged or cannot be read.
    """
    try:
        status = path.stat()
        identity = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        return _read(path, identity)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise damaged(path, f"{first_line(error)}: it was cut off or changed") from error
    except _INDEX_ERRORS as error:
        raise damaged(path, f"{INDEX_NAME}: {type(error).__name__}: {first_line(error)}") from error
    except OSError as error:
        raise ModelWeightsError(f"{path}: cannot be read: {error.strerror}") from error


def find_in_pack(path: Path) -> tuple[Pack, str] | None:
    """Return the pack that a path leads into, and the path in it; None: it leads into none.

    Raises:
        what `open_pack` raises.
    """
    for parent in path.parents:
        try:
            is_file = stat.S_ISREG(parent.stat().st_mode)
        except NotADirectoryError:  # below a file
            continue
        except OSError:
            return None
        if is_file and is_pack(parent):
            return open_pack(parent), path.relative_to(parent).as_posix()
        return None
    return None


def damaged(path: Path, reason: str) -> ModelWeightsError:
    """Return the error for a pack whose bytes are not those that were written."""
    return ModelWeightsError(f"{path}: is damaged ({reason}); copy the pack again")


@lru_cache(maxsize=8)  # a model asks for fifty files; the second argument tells a changed file
def _read(path: Path, identity: tuple[int, ...]) -> Pack:
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        infos = {info.filename: info for info in archive.infolist()}
        if infos[INDEX_NAME].file_size > MAX_INDEX_BYTES:
            raise zipfile.BadZipFile(f"{INDEX_NAME} is too large")
        content = archive.read(_plain(path, infos[INDEX_NAME]))
        index = json.loads(content)
        if index["format_version"] != FORMAT_VERSION:
            raise ModelUnsupportedError(
                f"{path}: format_version = {shown(index['format_version'])}; this version of "
                f"embedlib reads only {FORMAT_VERSION}; pack the model again, or use the embedlib "
                "that packed it"
            )
        entries = {
            str(name): _entry(path, stream, infos, name, facts)
            for name, facts in index["files"].items()
        }
    beside = sorted(set(infos) - set(entries) - {TYPE_NAME, INDEX_NAME})
    if beside or len(infos) != len(archive.infolist()):
        raise damaged(
            path, f"it holds {shown(beside[:1]) if beside else 'a name twice'}, unlike its index"
        )
    names = [index["hub_name"], index["hub_revision"]]
    if names != [None, None] and not all(isinstance(name, str) for name in names):
        raise ValueError(f"hub_name, hub_revision = {names}")
    return Pack(
        path=path,
        entries=entries,
        hub_name=names[0],
        hub_revision=names[1],
        embedlib_version=str(index["embedlib"]),
        index_digest=hashlib.sha256(content).hexdigest(),
    )


def _entry(
    path: Path,
    stream: IO[bytes],
    infos: Mapping[str, zipfile.ZipInfo],
    name: str,
    facts: Mapping[str, Any],
) -> Entry:
    """Return the place of an entry, after comparing the archive with the index.

    Its bytes, wherever they are, are compared with their hash when the pack is opened.
    """
    if name not in infos:
        raise damaged(path, f"{shown(name, 200)} is missing")
    info = _plain(path, infos[name])
    stream.seek(info.header_offset)
    signature, _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
    start = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    if signature != SIGNATURE or info.file_size != facts["num_bytes"]:
        raise damaged(
            path, f"{shown(name, 200)} does not have the place and size that the index says"
        )
    return Entry(start, info.file_size, facts["sha256"])


def _plain(path: Path, info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return an entry that lies in the archive as it is."""
    is_stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
    if not is_stored or info.flag_bits & UNREADABLE:
        raise damaged(
            path,
            f"{shown(info.filename, 200)} is compressed or encrypted, which no pack's are",
        )
    return info
