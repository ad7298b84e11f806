"""The lock of a place, and what killed processes leave beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from embedlib.models.compiled.new_folder import place_lock, try_place_lock

KILLED = """
import os, signal, subprocess, sys
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
    (tmp_path / ".killed.embedlib-lock").touch()
    (tmp_path / ".folder.embedlib-part").mkdir()
    (tmp_path / ".folder.embedlib-part" / "file").touch()
    with try_place_lock(tmp_path / "running") as is_held, place_lock(tmp_path / "target"):
        assert is_held
        left = {path.name for path in tmp_path.glob(".*part")}
    # That of a writer without a lock may be written right now.
    assert left == {".running.embedlib-part", ".other.embedlib-part"}


def test_what_another_user_writes_beside_a_target_is_not_in_its_way(tmp_path: Path) -> None:
    (tmp_path / ".theirs.embedlib-part").touch()
    (tmp_path / ".theirs.embedlib-lock").mkdir()  # cannot be opened, by root neither
    with place_lock(tmp_path / "target"):
        assert (tmp_path / ".target.embedlib-lock").exists()
    assert (tmp_path / ".theirs.embedlib-part").exists()
