"""Stores the SHA-256 of large files, so that each is read only once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from embedlib.models.new_file import new_file
from embedlib.models.reading.pack_file import find_in_pack

ReportBytes = Callable[[int], object]
"""Called from time to time with the bytes read since the last call; an exception it raises aborts
the read."""

READ_BYTES: Final = 1 << 20
SETTLED_NS: Final = 2_000_000_000
"""Hashes of files changed more recently than this are not stored: another change could fall into
the same tick of the file system's clock."""


def sha256(path: Path, report: ReportBytes = lambda num_bytes: None) -> str:
    """Return the SHA-256 of a file's content; of one in a pack the stored one.

    That of a pack was compared when the pack was opened.

    Args:
        path: the file.
        report: called with the number of bytes read since the last call.
    """
    found = find_in_pack(path)
    if found is not None:
        return found[0].entries[found[1]].sha256
    content = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            content.update(chunk)
            report(len(chunk))
    return content.hexdigest()


def file_state(path: Path, about: str = "") -> tuple[str, int, int, int, int]:
    """Return what stays the same while a file is unchanged."""
    stat = path.stat()
    return f"{path}{about}", stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


class FileHashes:
    """Stores the SHA-256 of files until they change, in this object and in a folder.

    A file counts as unchanged while its size, its inode and both of its times stay the same, as in
    git. In the hub's cache a file is a link to a blob whose name is its SHA-256; such a file is
    never read.
    """

    def __init__(self, store: Path | None = None) -> None:
        """Store hashes in `store`, a folder that processes may share; None: only in this object."""
        self._store = store
        self._known: dict[tuple[object, ...], str] = {}

    def sha256(self, path: Path, report: ReportBytes = lambda num_bytes: None) -> str:
        """Return the SHA-256 of a file's content: 64 hexadecimal digits.

        Safe to call from any number of threads. Without a stored hash it reads the file, as the
        function `sha256` does.
        """
        if find_in_pack(path) is not None:
            return sha256(path, report)
        target = path.resolve()
        is_blob = path.is_symlink() and target.parent.name == "blobs"
        if is_blob and re.fullmatch("[0-9a-f]{64}", target.name):
            return target.name
        return self.once(target, lambda: sha256(target, report))

    def once(self, path: Path, compute: Callable[[], str], about: str = "") -> str:
        """Return a digest that belongs to a file's content, and compute it once for each content.

        Args:
            path: the file.
            compute: reads the file and returns 64 hexadecimal digits.
            about: tells apart what is stored of one file.
        """
        now, state = time.time_ns(), file_state(path, about)
        found = self._known.get(state) or self._read(state)
        if found is None:
            found = compute()
            if now - max(state[3:]) > SETTLED_NS:  # since either of its times
                self._write(state, found)
        self._known[state] = found
        return found

    def _place(self, state: tuple[object, ...]) -> Path | None:
        if self._store is None:
            return None
        name = hashlib.blake2b(os.fsencode(str(state[0])), digest_size=16).hexdigest()
        return self._store / f"{name}.json"

    def _read(self, state: tuple[object, ...]) -> str | None:
        place = self._place(state)
        if place is None:
            return None
        try:
            *stored, found = json.loads(place.read_bytes())
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        is_hash = isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found)
        return found if is_hash and tuple(stored) == state else None

    def _write(self, state: tuple[object, ...], found: str) -> None:
        place = self._place(state)
        if place is None:
            return
        with suppress(OSError):  # without it the next load is slower
            place.parent.mkdir(parents=True, exist_ok=True)
            with new_file(place) as part:
                part.write_text(json.dumps([*state, found]), encoding="utf-8")
