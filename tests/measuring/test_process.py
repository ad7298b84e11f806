"""Processes of contestants: which modules they import, how they die, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from embedlib.measuring.process import ContestantFailedError, JsonProcess, module_command


@pytest.mark.parametrize("python", [None, sys.executable])
def test_nothing_of_the_current_folder_is_run(
    python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runpy.py", "json.py", "this.py"):
        (tmp_path / name).write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    command = module_command("this", python=python)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Zen of Python" in done.stdout


def test_a_module_gets_its_arguments_and_the_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told.py").write_text("import sys; print(__name__, sys.argv[1:])")
    monkeypatch.syspath_prepend(tmp_path)
    command = module_command("told", "a", "--b")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "__main__ ['a', '--b']\n"


def dying(program: str) -> JsonProcess:
    """Start a program that is to die when it is called."""
    command = [sys.executable, "-c", f"import os, subprocess, sys; sys.stdin.readline(); {program}"]
    return JsonProcess("peer", command, os.environ, limit_s=60)


def test_a_process_that_dies_in_its_answer_is_told() -> None:
    program = "print('[1, 2', end='', flush=True); os._exit(3)"
    told = r"^peer failed: its process ended unexpectedly: exit status 3$"
    with dying(program) as process, pytest.raises(ContestantFailedError, match=told):
        process.call("bulk")


def test_what_a_dead_process_has_started_is_ended() -> None:
    read, write = os.pipe()
    late = "import time; time.sleep(300); print('it lived on')"
    program = (
        f"subprocess.Popen([sys.executable, '-c', {late!r}], stdout={write}); "
        "os.kill(os.getpid(), 9)"
    )
    with open(read, "rb") as left, pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", partial(subprocess.Popen, pass_fds=[write]))
        process = dying(program)
        os.close(write)
        with process, pytest.raises(ContestantFailedError, match="exit status -9"):
            process.call("bulk")
        assert left.read() == b""


def test_a_call_does_not_outlive_who_asked() -> None:
    program = """
import threading
from embedlib.measuring import child

class Calls:
    def hang(self):
        print("at work", flush=True)
        threading.Event().wait(300)

child.end_with_input.__defaults__ = (0,)
child.serve_standard_streams(Calls())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b'{"call": "hang", "arguments": {}}\n')
        process.stdin.flush()
        assert process.stderr.readline() == b"at work\n"
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
