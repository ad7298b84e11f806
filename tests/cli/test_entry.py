"""The console script."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from embedlib.__main__ import run


class Interrupting(ModuleType):
    """A module whose import Ctrl-C ends."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_ends_the_imports_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "embedlib.cli", Interrupting("embedlib.cli"))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted.\n"
