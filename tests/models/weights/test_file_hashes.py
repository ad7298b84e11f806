from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from embedlib.models.weights import file_hashes
from embedlib.models.weights.file_hashes import FileHashes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that did not change for a minute."""
    path = tmp_path / "weights"
    path.write_bytes(b"content")
    return path


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of files read; the clock is set one minute later."""
    files: list[Path] = []

    def sha256(path: Path, report: object) -> str:
        files.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    later = time.time_ns() + 60_000_000_000
    monkeypatch.setattr(file_hashes, "sha256", sha256)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    return files


def test_a_file_is_read_once_for_all_who_share_the_folder(path: Path, reads: list[Path]) -> None:
    expected = hashlib.sha256(b"content").hexdigest()
    store = path.parent / "store"
    for hashes in (FileHashes(store), FileHashes(store)):
        assert [hashes.sha256(path) for _ in range(2)] == [expected] * 2
    assert len(reads) == 1
    assert FileHashes().sha256(path) == expected
    assert len(reads) == 2


def test_a_change_is_seen(path: Path, reads: list[Path]) -> None:
    hashes = FileHashes(path.parent / "store")
    first = hashes.sha256(path)
    times = path.stat()
    path.write_bytes(b"CONTENT")  # same length; the times are restored below
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert hashes.sha256(path) == hashlib.sha256(b"CONTENT").hexdigest() != first
    assert len(reads) == 2


def test_what_changed_just_now_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = path.stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: now)
    store = path.parent / "store"
    FileHashes(store).sha256(path)
    assert not store.exists()


def test_what_changed_just_before_a_long_read_is_not_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have changed again while it was read, within the same tick."""
    now = path.stat().st_ctime_ns

    def read(*_: object) -> str:
        monkeypatch.setattr(time, "time_ns", lambda: now + 60_000_000_000)
        return "ab" * 32

    monkeypatch.setattr(time, "time_ns", lambda: now)
    monkeypatch.setattr(file_hashes, "sha256", read)
    store = path.parent / "store"
    assert FileHashes(store).sha256(path) == "ab" * 32
    assert not store.exists()


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b"[1, 2]", b"\xff", b'"a"', b"5", b"[" * 100_000]
)
def test_a_damaged_store_is_not_believed(path: Path, damage: bytes) -> None:
    store = path.parent / "store"
    expected = FileHashes(store).sha256(path)
    (entry,) = store.iterdir()
    entry.write_bytes(damage)
    assert FileHashes(store).sha256(path) == expected
    state = json.loads(entry.read_bytes())
    entry.write_text(json.dumps([*state[:-1], "not a hash"]))
    assert FileHashes(store).sha256(path) == expected


def test_a_path_may_have_any_byte(path: Path, reads: list[Path]) -> None:
    other = path.rename(path.with_name("a\udcff"))  # as Python reads the byte 0xff of a name
    store = path.parent / "store"
    for hashes in (FileHashes(store), FileHashes(store)):
        assert hashes.sha256(other) == hashlib.sha256(b"content").hexdigest()
    assert len(reads) == 1


def test_a_store_that_cannot_be_written_is_no_error(path: Path) -> None:
    store = path.parent / "file"
    store.write_text("not a folder")
    assert FileHashes(store).sha256(path) == hashlib.sha256(b"content").hexdigest()


def test_a_full_disk_leaves_no_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = path.parent / "store"
    monkeypatch.setattr(Path, "replace", refuse)
    assert FileHashes(store).sha256(path) == hashlib.sha256(b"content").hexdigest()
    assert list(store.iterdir()) == []


def test_a_blob_of_the_hub_is_not_read(path: Path, reads: list[Path]) -> None:
    blob = path.parent / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    path.rename(blob)
    path.symlink_to(blob)
    assert FileHashes().sha256(path) == "ab" * 32
    assert reads == []
