from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from embedlib.cli import main


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test here ask a hub for a model before it is looked for."""
    monkeypatch.setattr("embedlib.models.opening.is_downloaded", lambda *_: False)


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine say no more than a quick one: after ten seconds a log says how far it is.

    Tests read what else is there, and `tests/progress/test_progress.py` has those lines.
    """
    monkeypatch.setattr("embedlib.progress.screens.LOG_SECONDS", math.inf)


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run `embedlib` with these arguments and this standard input."""

    def invoke(*arguments: object, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)

    return invoke
