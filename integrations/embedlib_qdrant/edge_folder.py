"""The folder of `edge:PATH`: the engine's shard, and files of embedlib beside it.

`embedlib.json` is the mark, `embedlib.lock` the lock, and `embedlib.position` says how far a source
was read, once one was. The mark is a file of its own: as a point
every search would see it, and as a part of the engine's files an upgrade could lose it. It is
written first, so a folder without it is not embedlib's. The shard is created under another name and
renamed when it is complete, so a killed writer leaves a complete shard or none.
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
_POSITION_FILE = "embedlib.position"
_SHARD = "shard"
_NEW_SHARD = "shard.new"
_OLD_SHARD = "shard.old"
_BUILDERS = "temp_segments"
"""Where the engine builds new segments before they replace old ones."""


class EdgeFolder:
    """A folder with a shard, or for one."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self.shard = path / _SHARD
        self.lock_file = path / _LOCK_FILE

    def read_mark(self) -> Mark | None:
        """Return the mark of the shard; None: there is no shard.

        Raises:
            SinkError: the folder is not embedlib's.
        """
        try:
            text = (self._path / _MARK_FILE).read_bytes()
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

    def write_mark(self, mark: Mark) -> None:
        """Replace the mark of the shard."""
        with one_line_errors(self._name, "cannot be written"):
            _write_file(self._path / _MARK_FILE, json.dumps(mark.to_json(), indent=2))

    def make(self) -> None:
        """Create the folder."""
        with one_line_errors(self._name, "cannot be created"):
            self._path.mkdir(parents=True, exist_ok=True)

    def repair(self) -> None:
        """Remove a shard that a killed writer left incomplete."""
        with one_line_errors(self._name, "cannot be repaired"):
            for leftover in (self._path / _NEW_SHARD, self._path / _OLD_SHARD):
                if leftover.exists():
                    shutil.rmtree(leftover)

    def drop(self) -> None:
        """Remove the shard."""
        self.write_position(None)
        with one_line_errors(self._name, "cannot be dropped"):
            if self.shard.exists():
                old = self.shard.rename(self._path / _OLD_SHARD)
                shutil.rmtree(old)

    @contextmanager
    def new_shard(self, mark: Mark) -> Iterator[Path]:
        """Yield a folder for a new shard, which the caller closes before the end of the block."""
        with one_line_errors(self._name, "cannot be created"):
            self.write_mark(mark)
            new = self._path / _NEW_SHARD
            new.mkdir()
            yield new
            new.rename(self.shard)
            _sync_folder(self._path)

    def clear_builders(self) -> None:
        """Remove the files of a killed index build, which the engine keeps; needs an open shard."""
        with one_line_errors(self._name, "cannot be repaired"):
            builders = self.shard / _BUILDERS
            for builder in builders.iterdir() if builders.is_dir() else ():
                shutil.rmtree(builder)

    def read_position(self) -> str | None:
        """Return how far a source was read; None: not told."""
        path = self._path / _POSITION_FILE
        with one_line_errors(self._name, "cannot be read"):
            return path.read_text(encoding="utf-8") if path.exists() else None

    def write_position(self, position: str | None) -> None:
        """Store how far a source was read, or remove that."""
        path = self._path / _POSITION_FILE
        with one_line_errors(self._name, "cannot be written"):
            if position is not None:
                _write_file(path, position)
            elif path.exists():
                path.unlink()
                _sync_folder(self._path)

    def _check_empty(self) -> None:
        if not self._path.exists():
            return
        # A writer killed at its start leaves the lock and an incomplete mark.
        others = set(os.listdir(self._path)) - {_LOCK_FILE, f"{_MARK_FILE}.new"}
        if others:
            raise SinkError(
                f"{self._name} holds {min(others)!r} and was not created by embedlib; choose "
                "another folder"
            )


def _write_file(path: Path, text: str) -> None:
    """Write a file atomically, also with regard to a power failure."""
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
