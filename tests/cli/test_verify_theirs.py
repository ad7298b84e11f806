from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from huggingface_hub import constants

from embedlib.matching.server import Server

Run = Callable[..., Result]


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("bert")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("a cat\ntwo dogs ran\n\nthe cat sat on the mat\nwho ran\nno\n")
    return path


def test_a_file_that_embedlib_wrote(run: Run, folder: Path, texts: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    options = ["--prompt", "query: ", "--precision", "float32", "-o", made]
    assert run("encode", folder, texts, *options).exit_code == 0
    same = run("verify", folder, "--against", made, "--prompt", "query: ")
    assert same.exit_code == 0, same.output
    assert "compared       6 texts, 32 numbers, of " in same.stdout
    assert "result         the same\n" in same.stdout
    longer = run("verify", folder, "--against", made, "--prompt", "query: ", "--truncate-dim", 8)
    assert longer.exit_code == 1
    assert "result         DIFFERENT: the same with no truncate_dim\n" in longer.stdout
    other = run("verify", folder, "--against", made, "--json")
    assert other.exit_code == 1
    facts = json.loads(other.stdout)
    assert facts["differences"] == ["prompt 'query: '"]
    assert (facts["same"], facts["texts"], facts["dim"]) == (False, 6, 32)


def test_a_server(run: Run, folder: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Server] = []

    def embed(server: Server, given: tuple[str, ...]) -> np.ndarray:
        asked.append(server)
        return np.full((len(given), 32), 0.5, np.float32)

    monkeypatch.setattr(Server, "embed", embed)
    monkeypatch.setenv("EMBEDLIB_VERIFY_API_KEY", "secret")
    arguments = ["verify", folder, "--against", "https://host/v1?key=2", "--texts", texts]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: --against https://host/v1 is not asked, since offline")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert run(*arguments, "--local-files-only").exit_code == 1
    assert not asked
    done = run(*arguments, "--served-model", "theirs", "--truncate-dim", 32)
    assert done.exit_code == 1
    assert "DIFFERENT: no setting that was tried gives them" in done.stdout
    assert "secret" not in done.output
    [server] = asked
    assert (server.model, server.key, server.dim) == ("theirs", "secret", 32)
    assert "secret" not in repr(server)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "nowhere.jsonl"], "neither float32, bf16 nor a URL, and no such file"),
        (["--query"], "--query is for --against a file or a URL"),
        (["--prompt", ""], "--prompt is for --against a file or a URL"),
        (["--against", "http://h", "--query", "--prompt", "x"], "give one of --query"),
        (["--against", "http://h", "--field", "x"], "--field is for a file"),
        (["--against", "http://h", "--plot", "x.png"], "--plot is for a precision"),
    ],
)
def test_options_that_do_not_fit(run: Run, folder: Path, options: list[str], message: str) -> None:
    done = run("verify", folder, *options)
    assert done.exit_code == 2
    assert message in done.stderr
