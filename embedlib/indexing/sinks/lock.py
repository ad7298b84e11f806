"""One writer per destination, where the destination itself has no lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from embedlib.errors import SinkError


class FileLock:
    """A lock that the kernel gives back when the process ends, however it ends."""

    def __init__(self, path: Path, name: str) -> None:
        """Take the lock.

        Args:
            path: file to lock, made if missing; it stays, as removing it would let two in.
            name: the destination, for the message.

        Raises:
            SinkError: another process or object holds it, or the file cannot be made.
        """
        try:
            self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise SinkError(f"cannot write {name}: {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
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
        """Give the lock back; may be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
