"""The console script."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from embedlib.__main__ import run


class Interrupting(ModuleType):
    """A module whose import Ctrl-C ends."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


AT_THE_END = """
import sys
from embedlib.__main__ import run

class Late:
    def __del__(self):
        raise KeyboardInterrupt

late, sys.argv = Late(), ["embedlib", "--version"]
run()
"""


def test_ctrl_c_while_the_interpreter_ends_is_quiet() -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_the_imports_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "embedlib.cli", Interrupting("embedlib.cli"))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted.\n"
