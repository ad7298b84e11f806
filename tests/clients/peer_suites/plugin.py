"""pytest plugin of a run: servers of ours for the suite, and the outcomes of its tests.

It is imported by its own name, as are the modules beside it: the folder is on the path.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import serving


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that __main__ passes."""
    parser.addoption("--suite", required=True)
    for name in ("--checkout", "--models", "--results"):
        parser.addoption(name, type=Path, required=True)


class Outcomes:
    """What became of each test."""

    def __init__(self) -> None:
        """Start with none."""
        self.results: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test: that of its call, unless its fixtures fail."""
        if report.when == "call" or not report.passed:
            message = str(report.longrepr).splitlines()[-1:] if report.failed else []
            entry = {"outcome": report.outcome, "message": "".join(message)[:300]}
            self.results[report.nodeid] = entry


def pytest_configure(config: pytest.Config) -> None:
    """Make what the tests import, from a server of ours."""
    config.pluginmanager.register(Outcomes(), "outcomes")
    serving.models_folder = config.getoption("--models")
    made = import_module(f"for_{config.getoption('--suite')}")
    made.install(config.getoption("--checkout"))
    config.pluginmanager.register(made, "for-suite")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the last server, and write the outcomes."""
    serving.end()
    outcomes: Any = session.config.pluginmanager.get_plugin("outcomes")
    session.config.getoption("--results").write_text(json.dumps(outcomes.results, indent=1))
