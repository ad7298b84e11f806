"""Writes a folder atomically: it appears under its name only when it is complete.

The folder is filled beside its target as `.NAME.embedlib-part` and then renamed; the old one is
`.NAME.embedlib-old` for that moment. The writer holds a file lock on `.NAME.embedlib-lock`, which
the kernel releases when the process ends. So what such a lock does not hold was left by a killed
process: parts are removed, and an old folder without a new one gets its name back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from embedlib.models.new_file import part_of

LOCK_SUFFIX: Final = ".embedlib-lock"
_OLD_SUFFIX: Final = ".embedlib-old"


@contextmanager
def place_lock(target: Path) -> Iterator[int]:
    """Hold the exclusive lock for writing `target`; wait while another process holds it.

    Yields its descriptor: a process that inherits it keeps the lock until it ends. What killed
    processes left beside `target` is removed: locks, part folders, and part files that had such a
    lock. Folders that they were about to replace are put back. What another user writes or has left
    there stays.

    Raises:
        OSError: the parent folder or the lock file cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(".*[!.].embedlib-*"):
        place = left.with_name(left.stem[1:])
        lock = _beside(place, LOCK_SUFFIX)
        if not (left.is_dir() or lock.exists()):
            continue  # a file whose writer takes no lock
        # Locked by its writer, or of another user: it is not in the way of this target.
        with suppress(OSError), _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _clear(place)
    with _locked(_beside(target, LOCK_SUFFIX), fcntl.LOCK_EX) as file:
        _clear(target)  # its last writer may have been killed while this one waited
        yield file


@contextmanager
def try_place_lock(target: Path) -> Iterator[bool]:
    """Hold the lock of `place_lock` if it is free; yield whether it is held.

    Raises:
        OSError: the lock file cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(
                _locked(_beside(target, LOCK_SUFFIX), fcntl.LOCK_EX | fcntl.LOCK_NB)
            )
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` when the block ends without an error.

    The caller holds `place_lock(target)`.

    Raises:
        OSError: a file or folder cannot be written.
    """
    part = part_of(target)
    part.mkdir()
    try:
        yield part
        for path in [*part.rglob("*"), part]:
            sync(path)  # otherwise a crash of the machine could leave empty files
        if target.exists():
            # Two folders cannot be exchanged atomically: for a moment there is no target.
            try:
                target.rename(_beside(target, _OLD_SUFFIX))
                part.rename(target)
            finally:  # also after Ctrl-C between the two; `place_lock` does it after a kill
                _settle(target)
        else:
            part.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _clear(target: Path) -> None:
    """Clear away what a killed writer of a target left; the caller holds its lock."""
    _settle(target)
    part = part_of(target)
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)


def _settle(target: Path) -> None:
    """Remove the old folder of a target, or where no new one has taken its place, put it back."""
    old = _beside(target, _OLD_SUFFIX)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


@contextmanager
def _locked(path: Path, operation: int) -> Iterator[int]:
    """Hold a lock on a file, which is removed when the lock is released; yield its descriptor."""
    while True:
        # A link, which somebody else has laid there, is not followed.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(file, operation)
            # The previous holder removes the file. A process that opened it before then holds a
            # lock on a deleted file, while the next process creates and locks a new one: retry.
            if not _is_open_file(file, path):
                continue
            try:
                yield file
            finally:
                path.unlink(missing_ok=True)
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may still have it open
            return
        finally:
            os.close(file)


def _is_open_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}{suffix}")
