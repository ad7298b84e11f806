"""`embedlib models`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from embedlib.engines.openvino.plans.memory import LIBRARY_BYTES

Run = Callable[..., Any]


def test_a_search_lists_what_it_finds(run: Run) -> None:
    lines = run("models", "bge-m3").stdout.splitlines()
    assert lines[0].split()[:5] == ["model", "family", "D", "tokens", "licence"]
    (line,) = lines[1:]
    assert line.split()[:7] == ["BAAI/bge-m3", "xlm-roberta", "1024", "8192", "mit", "568", "M"]
    assert len(run("models").stdout.splitlines()) > 100


def test_json_has_memory_and_prompts(run: Run) -> None:
    (facts,) = json.loads(run("models", "e5-mistral", "--json").stdout)
    assert facts["name"] == "intfloat/e5-mistral-7b-instruct"
    assert facts["prompts"]["query"].startswith("Instruct: {task}")
    memory = facts["memory_bytes"]
    assert memory["float32"] > 4 * facts["parameters"] + LIBRARY_BYTES
    assert facts["parameters"] < memory["int8"] < memory["float32"]
    (facts,) = json.loads(run("models", "zerank-1-small", "--json").stdout)
    assert (facts["template"], facts["dim"]) == ("zerank", None)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_found_is_told(run: Run, options: tuple[str, ...]) -> None:
    done = run("models", "no-such-word", *options)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no listed model has 'no-such-word'" in done.stderr
