"""Folders that appear whole, the lock of a place, and what killed processes leave beside it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from embedlib.models.compiled.new_folder import new_folder, place_lock, sync, try_place_lock

KILLED = """
import os, signal, subprocess, sys
from contextlib import suppress
from pathlib import Path
from embedlib.models.compiled.new_folder import place_lock
with place_lock(Path(sys.argv[1])) as lock:
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=(lock,))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_inherited_the_lock_keeps_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.wait() == -signal.SIGKILL
    with try_place_lock(target) as is_held:
        assert not is_held
    # Closes the standard input of the process that is left, and waits for its end.
    process.communicate()
    with try_place_lock(target) as is_held:
        assert is_held


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in ("killed", "running", "other"):
        (tmp_path / f".{name}.embedlib-part").touch()
    for name in ("killed", "begun"):
        (tmp_path / f".{name}.embedlib-lock").touch()
    (tmp_path / ".folder.embedlib-part").mkdir()
    (tmp_path / ".folder.embedlib-part" / "file").touch()
    with try_place_lock(tmp_path / "running") as is_held, place_lock(tmp_path / "target"):
        assert is_held
        left = {path.name for path in tmp_path.glob(".*")}
    left -= {".running.embedlib-lock", ".target.embedlib-lock"}
    # That of a writer without a lock may be written right now.
    assert left == {".running.embedlib-part", ".other.embedlib-part"}


@pytest.mark.parametrize("name", ["..embedlib-part", "...embedlib-part", "....embedlib-part"])
def test_what_is_no_part_of_anything_is_not_in_the_way(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / name, tmp_path / name.replace("part", "lock")):
        path.touch()
    with place_lock(tmp_path / "target"):
        pass
    assert (tmp_path / name).exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    for name in ("target", "other"):
        (tmp_path / f".{name}.embedlib-lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic link"), place_lock(tmp_path / "target"):
        pass
    assert not (tmp_path / "made").exists()


def test_what_another_user_writes_beside_a_target_is_not_in_its_way(tmp_path: Path) -> None:
    (tmp_path / ".theirs.embedlib-part").touch()
    (tmp_path / ".theirs.embedlib-lock").mkdir()  # cannot be opened, by root neither
    with place_lock(tmp_path / "target"):
        assert (tmp_path / ".target.embedlib-lock").exists()
    assert (tmp_path / ".theirs.embedlib-part").exists()


def test_a_new_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("first", "second"):
        with new_folder(target) as part:
            (part / name).touch()
        assert [path.name for path in target.iterdir()] == [name]
        assert list(tmp_path.iterdir()) == [target]


CHANGING = """
import os, signal, sys
from pathlib import Path
from embedlib.models.compiled.new_folder import new_folder, place_lock

def killed(path, other):
    os.rename(path, other)
    os.kill(os.getpid(), signal.SIGKILL)

Path.rename = killed
target = Path(sys.argv[1])
with place_lock(target), new_folder(target) as part:
    (part / "new").touch()
"""


@pytest.mark.parametrize("name", ["target", "other"])
def test_a_kill_while_folders_change_places_leaves_the_old_one(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()
    killed = subprocess.run([sys.executable, "-c", CHANGING, target])
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    with place_lock(tmp_path / name):
        assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("has_target", [True, False])
def test_what_a_process_left_that_was_killed_while_one_waited_for_its_lock(
    has_target: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real_flock = tmp_path / "target", fcntl.flock

    def flock(file: int, operation: int) -> None:
        real_flock(file, operation)
        if operation == fcntl.LOCK_EX:
            for name in (".target.embedlib-part", ".target.embedlib-old", "target")[
                : 2 + has_target
            ]:
                (tmp_path / name).mkdir()
                (tmp_path / name / name).touch()

    monkeypatch.setattr(fcntl, "flock", flock)
    with place_lock(target):
        left = [path.name for path in target.iterdir()]
        assert left == ["target" if has_target else ".target.embedlib-old"]
        with new_folder(target) as part:
            assert list(part.iterdir()) == []
    assert list(tmp_path.iterdir()) == [target]


def test_all_is_on_the_disk_before_it_appears_and_its_name_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "target", list[tuple[str, bool]]()

    def note(path: Path) -> None:
        synced.append((path.name, target.exists()))

    monkeypatch.setattr("embedlib.models.compiled.new_folder.sync", note)
    with new_folder(target) as part:
        (part / "file").touch()
    assert synced == [("file", False), (part.name, False), (tmp_path.name, True)]


def test_what_is_opened_is_closed(tmp_path: Path) -> None:
    lowest = os.dup(0)
    os.close(lowest)
    sync(tmp_path)
    with place_lock(tmp_path / "target"), try_place_lock(tmp_path / "target") as is_held:
        assert not is_held
    again = os.dup(0)
    os.close(again)
    assert again == lowest


@pytest.mark.parametrize("lock", [place_lock, try_place_lock])
def test_the_lock_of_a_place_makes_its_folder(lock: Any, tmp_path: Path) -> None:
    with lock(tmp_path / "deep" / "target") as is_held:
        assert is_held


def test_a_lock_that_somebody_removed_while_it_was_held_costs_nothing(tmp_path: Path) -> None:
    with place_lock(tmp_path / "target"):
        (tmp_path / ".target.embedlib-lock").unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_opened_is_not_one_that_another_process_holds(tmp_path: Path) -> None:
    (tmp_path / ".target.embedlib-lock").mkdir()
    with pytest.raises(IsADirectoryError), try_place_lock(tmp_path / "target"):
        pass


def test_an_error_leaves_the_old_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with suppress(KeyboardInterrupt), new_folder(target) as part:
        (part / "half").touch()
        raise KeyboardInterrupt
    assert list(target.iterdir()) == []
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("num_renamed", [0, 1, 2])
def test_ctrl_c_while_folders_change_places_leaves_one_of_them(
    num_renamed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()
    rename = Path.rename
    num_calls = 0

    def interrupted(path: Path, other: Path) -> Path:
        nonlocal num_calls
        num_calls += 1
        if num_calls <= num_renamed or num_calls > max(1, num_renamed):
            renamed = rename(path, other)
        if num_calls == max(1, num_renamed):
            raise KeyboardInterrupt
        return renamed

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folder(target) as part:
        (part / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new" if num_renamed == 2 else "old"]


def test_a_fork_does_not_keep_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    open_file = os.open

    def open_twice(*arguments: Any) -> int:
        file = open_file(*arguments)
        copies.append(os.dup(file))  # like the handle of a child process
        return file

    lock = tmp_path / ".target.embedlib-lock"
    monkeypatch.setattr(os, "open", open_twice)
    with place_lock(tmp_path / "target"), lock.open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waiting = os.dup(other.fileno())
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(copies) == 1
    for file in (waiting, *copies):
        os.close(file)


def test_a_lock_that_was_removed_while_one_waited_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / ".target.embedlib-lock"
    real_flock = fcntl.flock
    num_calls = 0

    def flock(file: int, operation: int) -> None:
        nonlocal num_calls
        num_calls += 1
        real_flock(file, operation)
        if num_calls == 1:
            lock.unlink()  # by the process that held it

    monkeypatch.setattr(fcntl, "flock", flock)
    with place_lock(tmp_path / "target"), lock.open() as other:
        assert num_calls == 2
        with pytest.raises(BlockingIOError):
            real_flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not lock.exists()


def test_a_lock_is_removed_before_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / ".target.embedlib-lock"
    real_flock = fcntl.flock
    had_file: list[bool] = []

    def flock(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:  # whoever waits takes it now, and it must be none then
            had_file.append(lock.exists())
        real_flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with place_lock(tmp_path / "target"):
        assert lock.exists()
    assert had_file == [False]
