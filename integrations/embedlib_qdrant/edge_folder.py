"""The folder of `edge:PATH`: the engine's shard, and two files of ours beside it.

`embedlib.json` is the mark, `embedlib.lock` the lock. The mark is a file and not a point or a part
of the engine's own files, as those would be seen by every search or lost in an upgrade. It is
written first, so a folder without it is not ours; the shard is made under another name and renamed
when it is whole. A killed writer thus leaves either a shard or none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedlib.errors import SinkError
from embedlib_qdrant.one_line_errors import one_line_errors
from embedlib_qdrant.points import Mark

_MARK_FILE = "embedlib.json"
_LOCK_FILE = "embedlib.lock"
_SHARD = "shard"
_NEW_SHARD = "shard.new"
_OLD_SHARD = "shard.old"
_BUILDERS = "temp_segments"
"""Where the engine builds what then replaces a segment."""


class EdgeFolder:
    """A folder that holds a shard, or will."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self.shard = path / _SHARD
        self.lock_file = path / _LOCK_FILE

    def read_mark(self) -> Mark | None:
        """Return the mark of the shard; None: there is no shard.

        Raises:
            SinkError: the folder is not ours.
        """
        try:
            text = (self._path / _MARK_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            self._check_empty()
            return None
        except OSError as error:
            raise SinkError(f"{self._name} cannot be read: {error.strerror}") from error
        if not self.shard.is_dir():
            return None
        try:
            data = json.loads(text)
        except ValueError as error:
            raise SinkError(f"{self._name}: {_MARK_FILE} is not JSON: {error}") from error
        return Mark.from_json(data, self._name)

    def make(self) -> None:
        """Make the folder."""
        with one_line_errors(self._name, "cannot be made"):
            self._path.mkdir(parents=True, exist_ok=True)

    def repair(self) -> None:
        """Remove what a killed writer left half made or half dropped."""
        with one_line_errors(self._name, "cannot be repaired"):
            for leftover in (self._path / _NEW_SHARD, self._path / _OLD_SHARD):
                if leftover.exists():
                    shutil.rmtree(leftover)

    def drop(self) -> None:
        """Remove the shard."""
        with one_line_errors(self._name, "cannot be dropped"):
            if self.shard.exists():
                old = self.shard.rename(self._path / _OLD_SHARD)
                shutil.rmtree(old)

    @contextmanager
    def new_shard(self, mark: Mark) -> Iterator[Path]:
        """Give a place for a new shard, which must be closed at the end."""
        with one_line_errors(self._name, "cannot be made"):
            _write_file(self._path / _MARK_FILE, json.dumps(mark.to_json(), indent=2))
            new = self._path / _NEW_SHARD
            new.mkdir()
            yield new
            new.rename(self.shard)
            _sync_folder(self._path)

    def clear_builders(self) -> None:
        """Remove what a killed index build left, as the engine does not; with the shard open."""
        with one_line_errors(self._name, "cannot be repaired"):
            builders = self.shard / _BUILDERS
            for builder in builders.iterdir() if builders.is_dir() else ():
                shutil.rmtree(builder)

    def _check_empty(self) -> None:
        if not self._path.exists():
            return
        # A writer killed at its very start leaves the lock and the mark's first half.
        others = set(os.listdir(self._path)) - {_LOCK_FILE, f"{_MARK_FILE}.new"}
        if others:
            raise SinkError(
                f"{self._name} holds {min(others)!r} and was not made by embedlib; choose another "
                "folder"
            )


def _write_file(path: Path, text: str) -> None:
    """Write a file that is there in full or not at all, also after a power failure."""
    temporary = path.with_name(f"{path.name}.new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
