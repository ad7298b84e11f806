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
    assert lines[0].split()[:6] == ["model", "kind", "family", "D", "tokens", "licence"]
    line = next(line.split() for line in lines if line.startswith("BAAI/bge-m3 "))
    assert line[:8] == ["BAAI/bge-m3", "embedder", "xlm-roberta", "1024", "8192", "mit", "568", "M"]
    assert len(run("models").stdout.splitlines()) > 200


def test_json_has_memory_and_prompts(run: Run) -> None:
    (facts,) = json.loads(run("models", "e5-mistral", "--json").stdout)
    assert facts["name"] == "intfloat/e5-mistral-7b-instruct"
    assert facts["prompts"]["query"].startswith("Instruct: {task}")
    memory = facts["memory_bytes"]
    assert memory["float32"] > 4 * facts["parameters"] + LIBRARY_BYTES
    assert facts["parameters"] < memory["int8"] < memory["float32"]
    (facts,) = json.loads(run("models", "zerank-1-small", "--json").stdout)
    assert (facts["template"], facts["dim"]) == ("zerank", None)


def test_memory_is_told_of_what_an_engine_takes(run: Run) -> None:
    def memory(name: str) -> tuple[int | None, int | None]:
        (facts,) = json.loads(run("models", name, "--json").stdout)
        return facts["memory_bytes"]["float32"], facts["memory_bytes"]["int8"]

    assert memory("potion-base-8M") == (None, None)
    for name in ("colbertv2.0", "neural-sparse-encoding-v2-distill"):
        float32, int8 = memory(name)
        assert (float32 or 0) > LIBRARY_BYTES
        assert int8 is None


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_found_is_told(run: Run, options: tuple[str, ...]) -> None:
    done = run("models", "no-such-word", *options)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no listed model has 'no-such-word'" in done.stderr
