"""A file lock for destinations that have no lock of their own: one writer at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from embedlib.errors import ConfigError, SinkError
from embedlib.system.user_folders import user_cache


class FileLock:
    """A lock on a file; the kernel releases it when the process ends, also after a kill."""

    def __init__(self, path: Path, name: str) -> None:
        """Take the lock.

        Args:
            path: file to lock, created if missing. It is never removed: a second writer could then
                lock a new file of the same name while the first still holds the old one.
            name: the destination, for the message.

        Raises:
            SinkError: another process or object holds the lock, or the file cannot be created.
        """
        self._pid = os.getpid()
        try:
            self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise SinkError(f"cannot write {name}: {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(self._pid).encode(), 0)
        except BlockingIOError as error:
            owner = os.pread(self._file, 20, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise SinkError(
                f"{name} is being written by process {owner}; wait for it or stop it ({path})"
            ) from error
        except OSError as error:
            self.release()
            raise SinkError(f"cannot lock {name}: {path}: {error.strerror}") from error

    def release(self) -> None:
        """Release the lock; may be called twice."""
        # Forgotten first: Ctrl-C behind the close would let a second call close another's file.
        file, self._file = self._file, None
        if file is not None:
            # A child that was forked meanwhile has the file too: it neither keeps the lock nor
            # gives it away.
            with suppress(OSError):  # where there are no locks
                if os.getpid() == self._pid:
                    fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def lock_folder() -> Path:
    """Return the user's folder for locks of destinations on other machines; it may not exist yet.

    Two writers exclude each other only if both compute the same path, so this folder does not
    depend on any option and must not move.

    Raises:
        SinkError: no variable names it, and the user has no home.
    """
    try:
        return user_cache() / "embedlib" / "locks"
    except ConfigError:
        raise SinkError(
            "no folder for locks: this user has no home folder; set XDG_CACHE_HOME or HOME"
        ) from None
