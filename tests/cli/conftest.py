from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from embedlib.cli import main


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run `embedlib` with these arguments and this standard input."""

    def invoke(*arguments: object, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)

    return invoke
