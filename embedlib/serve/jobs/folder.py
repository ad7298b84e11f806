"""The folder of a server's jobs: held by one process, and what a full disk means."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from embedlib.errors import ConfigError, first_line
from embedlib.models.compiled.new_folder import sync
from embedlib.serve.errors import HTTPError

FREE_BYTES = 64 << 20
"""Of the disk, kept free when something is accepted: room for the results of what runs."""


class DataFolder:
    """A folder that this process alone writes to; the lock ends with the process."""

    def __init__(self, path: str | Path) -> None:
        """Take the folder; make it if it is not there.

        Raises:
            ConfigError: another server has it, or it cannot be written to.
        """
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.path / "files").mkdir(exist_ok=True, mode=0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the folder of jobs {self.path} cannot be used: {error.strerror or error}; give "
                "another --data-dir"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(
                f"the folder of jobs {self.path} is used by another server; end it, or give this "
                "one a --data-dir of its own"
            ) from None

    @property
    def database(self) -> Path:
        """Where the database is."""
        return self.path / "jobs.sqlite3"

    def check_whole(self) -> None:
        """Check that the database is not lost: all contents would be taken for remains.

        Raises:
            ConfigError: there are contents, and no database.
        """
        if not self.database.exists() and any((self.path / "files").iterdir()):
            raise ConfigError(
                f"{self.database} is missing, and {self.path / 'files'} has contents of jobs; put "
                "it back, or remove them"
            )

    def file(self, file_id: str) -> Path:
        """Return where the content of a file is."""
        return self.path / "files" / file_id

    def remove(self, file_id: str) -> None:
        """Remove the content of a file, if it is there."""
        with suppress(FileNotFoundError):
            self.file(file_id).unlink()

    def remove_others(self, file_ids: Collection[str]) -> None:
        """Remove what was left by a server that was killed: all contents but these."""
        for path in (self.path / "files").iterdir():
            if path.name not in file_ids and path.is_file():
                path.unlink()

    def sync(self) -> None:
        """Write the names of files to disk: a new file is there only after this."""
        sync(self.path / "files")

    def has(self, file_id: str, size: int) -> bool:
        """Return whether the first `size` bytes of a file are there."""
        path = self.file(file_id)
        return size == 0 or (path.exists() and path.stat().st_size >= size)

    def append(self, file_id: str, size: int, data: bytes) -> None:
        """Write data behind the first `size` bytes of a file, which are all that count, to disk.

        Raises:
            FileNotFoundError: they are not there any more.
        """
        path = self.file(file_id)
        if not self.has(file_id, size):
            raise FileNotFoundError(errno.ENOENT, "what was written is gone", str(path))
        is_new = not path.exists()
        with open(path, "ab" if is_new else "r+b") as stream:
            stream.truncate(size)
            stream.seek(size)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            self.sync()

    def check_room(self, num_bytes: int = 0) -> None:
        """Check that the disk has room for so many bytes more, and that the folder is there.

        Raises:
            HTTPError: it has not, or it is not.
        """
        if not self.database.exists():  # what is written into one that was removed is lost
            raise HTTPError(
                507,
                "the database in --data-dir was removed, nothing was accepted; put it back, or "
                "start the server again",
                "disk_full",
            )
        if shutil.disk_usage(self.path).free < FREE_BYTES + num_bytes:
            raise full_disk()

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._lock)


def told(error: Exception) -> Exception:
    """Return what a client is told of an error of the disk; another error is returned itself."""
    if is_full(error):
        return full_disk()
    if is_storage(error):
        what = getattr(error, "strerror", None) or first_line(error)  # without the path
        return HTTPError(
            507, f"the disk of --data-dir failed, nothing was accepted: {what}", "disk_full"
        )
    return error


def full_disk() -> HTTPError:
    """Return the error of a disk without room."""
    return HTTPError(
        507,
        "the disk of --data-dir is full, nothing was accepted; delete files of jobs, or give it "
        "room",
        "disk_full",
    )


def is_full(error: BaseException) -> bool:
    """Return whether an error says that the disk has no room.

    Source: SQLite, result code 13 (SQLITE_FULL); its text, since Python 3.10 keeps no code.
    """
    if isinstance(error, sqlite3.Error):
        return "full" in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_storage(error: BaseException) -> bool:
    """Return whether an error is of the disk: what runs waits and tries again.

    A file that is not there will not come back.
    """
    is_gone = isinstance(error, FileNotFoundError)
    return isinstance(error, (OSError, sqlite3.OperationalError)) and not is_gone
