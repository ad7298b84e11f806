from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedlib.cli import main as embedlib_main
from embedlib.packages.installing import install_line
from tests.acceptance.gpu.__main__ import main
from tests.acceptance.gpu.run import run_gpu_bench


def test_without_a_gpu_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(main, ["--json", str(tmp_path / "gpu.jsonl")])
    assert done.exit_code == 1
    assert done.stderr == "Error: no NVIDIA GPU was found (there is no nvidia-smi)\n"
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_without_torch_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    done = CliRunner().invoke(main, ["--device", "cpu"])
    assert done.exit_code == 1
    assert done.stderr == f"Error: the package torch is missing; {install_line('cuda')}\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model"], "unexpected extra argument (model)"),
        (["--blocks", "bulk,gate"], "Error: blocks = 'gate'; it must be one of ceilings, bulk"),
        (["--models", "gpt"], "Error: models = 'gpt'"),
        (["--json", "no-such-folder/gpu.jsonl"], "no such folder"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code != 0
    assert message in done.stderr


def test_the_help_names_the_defaults() -> None:
    done = CliRunner().invoke(main, ["-h"], terminal_width=1000)
    assert done.exit_code == 0
    for text in ("bge-en-icl,bge-large,", "ceilings,bulk,", "8.0", "--vllm-path", "--device cpu"):
        assert text in done.stdout


def test_embedlib_bench_does_not_have_its_options() -> None:
    done = CliRunner().invoke(embedlib_main, ["bench", "--engine", "cuda"])
    assert done.exit_code == 2
    assert "No such option" in done.stderr


@pytest.fixture
def invoke(course: Any) -> Callable[..., Any]:
    """Return a function that runs the command on the course."""
    on_course = partial(run_gpu_bench, start=course.start, clock=course.clock)
    return lambda *arguments: CliRunner().invoke(main, arguments, obj=on_course)


def test_lines_come_first_and_the_table_last(invoke: Any, tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    done = invoke("--models", "bge-large, bge-en-icl", "--blocks", "bulk", "--json", str(path))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    table = next(number for number, line in enumerate(lines) if line.startswith("| begin"))
    told = [json.loads(line) for line in lines[:table] if line]
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == told
    assert told[0]["cpu"]
    assert "embedlib " in told[0]["versions"]
    models = [line["model"] for line in told if line["block"] == "gate"]
    assert (models[0], models[-1]) == ("bge-large", "bge-en-icl")
    assert "bulk, bge-large: " in done.stderr


def test_json_on_standard_output_is_nothing_else(invoke: Any) -> None:
    done = invoke("--models", "bge-large", "--blocks", "bulk", "--json", "-")
    assert all(json.loads(line) for line in done.stdout.splitlines())
    assert "| asked for" in done.stderr


def test_a_file_that_cannot_be_written_is_one_clear_line(invoke: Any, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    done = invoke("--models", "bge-large", "--blocks", "bulk", "--json", str(path))
    assert done.exit_code == 1
    assert f"Error: Could not open file {str(path)!r}: File name too long\n" in done.stderr


def test_a_gate_that_fails_fails_the_command(invoke: Any, course: Any) -> None:
    course.wrong.add("close to bf16")
    done = invoke("--models", "bge-large", "--blocks", "bulk")
    assert done.exit_code == 1
    assert "| asked for" in done.stdout
