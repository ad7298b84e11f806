"""SHA-256 of large files that are asked for again and again, each read once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

Report = Callable[[int], object]

READ_BYTES: Final = 1 << 20
SETTLED_NS: Final = 2_000_000_000
"""A file that changed later than this ago may change again within one tick of its clock."""


def sha256(path: Path, report: Report = lambda num_bytes: None) -> str:
    """Return the SHA-256 of a file's content.

    Args:
        path: the file.
        report: hears of the bytes read, now and then; an error of it ends the reading.
    """
    content = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            content.update(chunk)
            report(len(chunk))
    return content.hexdigest()


class FileHashes:
    """Remembers the SHA-256 of files until they change, in this object and in a folder.

    A file counts as unchanged while its size, its inode and both of its times are what they were,
    as git has it. In the hub's cache a file is a link to a blob whose name is its SHA-256; it is
    never read.
    """

    def __init__(self, store: Path | None = None) -> None:
        """Remember in `store`, a folder that any number of processes share; None: only here."""
        self._store = store
        self._known: dict[tuple[object, ...], str] = {}

    def sha256(self, path: Path, report: Report = lambda num_bytes: None) -> str:
        """Return the SHA-256 of a file's content: 64 hexadecimal digits.

        Any number of threads may ask. A file that is not known is read as `sha256` does.
        """
        target = path.resolve()
        is_blob = path.is_symlink() and target.parent.name == "blobs"
        if is_blob and re.fullmatch("[0-9a-f]{64}", target.name):
            return target.name
        stat = target.stat()
        state = (str(target), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        found = self._known.get(state) or self._read(state)
        if found is None:
            found = sha256(target, report)
            if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > SETTLED_NS:
                self._write(state, found)
        self._known[state] = found
        return found

    def _place(self, state: tuple[object, ...]) -> Path | None:
        if self._store is None:
            return None
        name = hashlib.blake2b(str(state[0]).encode(), digest_size=16).hexdigest()
        return self._store / f"{name}.json"

    def _read(self, state: tuple[object, ...]) -> str | None:
        place = self._place(state)
        if place is None:
            return None
        try:
            *stored, found = json.loads(place.read_bytes())
        except (OSError, ValueError, TypeError):
            return None
        is_hash = isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found)
        return found if is_hash and tuple(stored) == state else None

    def _write(self, state: tuple[object, ...], found: str) -> None:
        place = self._place(state)
        if place is None:
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=place.parent, delete=False) as part:
                json.dump([*state, found], part)
            os.replace(part.name, place)
        except OSError:
            return  # a cache that cannot be written costs time and nothing else
