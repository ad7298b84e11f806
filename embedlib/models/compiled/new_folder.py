"""A folder that appears under its name when it is complete, whatever happens before.

It is filled beside its place as `.NAME.embedlib-part` and renamed. Whoever fills it holds a lock on
`.NAME.embedlib-lock`, which the kernel gives back when a process ends: a part without a holder was
left by one that was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PART_SUFFIX: Final = ".embedlib-part"
LOCK_SUFFIX: Final = ".embedlib-lock"


@contextmanager
def place_lock(target: Path) -> Iterator[None]:
    """Be the only one who makes `target`; waits for another, and removes what killed ones left.

    Raises:
        OSError: nothing can be written there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for part in target.parent.glob(f".*{PART_SUFFIX}"):
        lock = part.with_name(part.name.removesuffix(PART_SUFFIX) + LOCK_SUFFIX)
        with suppress(BlockingIOError), _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(part, ignore_errors=True)
    with _locked(_beside(target, LOCK_SUFFIX), fcntl.LOCK_EX):
        yield


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `target` when the block ends without an error.

    The caller holds `place_lock(target)`.

    Raises:
        OSError: something cannot be written.
    """
    part = _beside(target, PART_SUFFIX)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        for path in [*part.rglob("*"), part]:
            sync(path)  # else a crash of the machine could leave files without content
        if target.exists():
            # Two folders cannot be exchanged at once; in between there is none.
            old = _beside(target, f".old{PART_SUFFIX}")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            part.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            part.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk as it is now."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    """Hold a lock on a file that goes when the lock goes."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, operation)
            # The one who held it before has removed the file: whoever comes next makes a new one,
            # and would lock that.
            if not _is_open_file(file, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
                fcntl.flock(file, fcntl.LOCK_UN)  # a fork may have another handle of it
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
