"""The picture and the table of docs/scale.md are those that the simulation makes."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "simulate_scale.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate_scale", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate_scale"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    outcomes = {name: script.curve(scenario) for name, scenario in script.CURVES.items()}
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text, outcomes) == text, "run: python docs/simulate_scale.py"
    assert script.picture(outcomes) == script.PICTURE.read_text(encoding="utf-8")


def test_what_is_simulated_follows_its_bounds(script: ModuleType) -> None:
    small = script.Scenario(seconds=120.0, num_machines=4)
    assert script.simulate(small).limit == "workers"
    slow = script.simulate(replace(small, write_rate=500.0))
    assert (slow.limit, round(slow.rows_per_second, -2)) == ("database", 500)
    broken = script.simulate(replace(small, hours_between_failures=0.01))
    assert broken.rows_per_second < script.simulate(small).rows_per_second
    assert broken.num_failures > 0
