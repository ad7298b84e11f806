"""Processes of contestants: which modules they import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from embedlib.measuring.process import module_command


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
