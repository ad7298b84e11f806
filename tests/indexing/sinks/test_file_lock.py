from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedlib.errors import SinkError
from embedlib.indexing import FileLock, lock_folder


def test_the_folder_of_locks_is_that_of_earlier_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another place would let a writer of an earlier version and one of this version in together.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert lock_folder() == tmp_path / "embedlib" / "locks"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert lock_folder() == tmp_path / ".cache" / "embedlib" / "locks"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored: it would be one of several
    assert lock_folder() == tmp_path / ".cache" / "embedlib" / "locks"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for a user without an entry
    with pytest.raises(SinkError, match="no home folder; set XDG_CACHE_HOME or HOME"):
        lock_folder()


def test_a_second_lock_is_refused_until_the_first_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, opened, open_file = FileLock(tmp_path / "lock", "docs:"), list[int](), os.open

    def open_noted(path: Path, flags: int, mode: int) -> int:
        opened.append(open_file(path, flags, mode))
        return opened[-1]

    with monkeypatch.context() as patched:
        patched.setattr("os.open", open_noted)
        with pytest.raises(SinkError, match=rf"^docs: is being written by process {os.getpid()}; "):
            FileLock(tmp_path / "lock", "docs:")
    with pytest.raises(OSError, match="Bad file descriptor"):  # it is not left open
        os.fstat(*opened)
    first.release()
    first.release()
    FileLock(tmp_path / "lock", "docs:").release()


def test_a_lock_in_a_folder_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"^cannot write docs:: .*lock: No such file or d"):
        FileLock(tmp_path / "none" / "lock", "docs:")


def test_a_release_that_is_interrupted_closes_no_file_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = FileLock(tmp_path / "lock", "docs:")
    closed = []

    def close(file: int) -> None:
        closed.append(file)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.close", close)
        with pytest.raises(KeyboardInterrupt):
            lock.release()
    lock.release()
    assert len(closed) == 1
    os.close(closed[0])


def test_a_forked_child_neither_keeps_a_lock_nor_gives_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path, "docs:")
    assert lock._file is not None
    of_child = os.dup(lock._file)  # as a fork does
    lock.release()
    lock = FileLock(path, "docs:")
    os.close(of_child)
    of_parent = os.dup(lock._file)
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: -1)
        lock.release()
    with pytest.raises(SinkError, match="being written"):
        FileLock(path, "docs:")
    os.close(of_parent)
