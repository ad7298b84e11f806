from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from embedlib.config import Config
from embedlib.engines.compiled import compiled_versions
from embedlib.fidelity import FidelityReport
from embedlib.models.files import read_model_files

Run = Callable[..., Result]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("a cat\ntwo dogs ran\nthe cat sat on the mat\nwho ran\nno\n")
    return path


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("bert")


def test_it_passes_and_is_remembered(run: Run, folder: Path, texts: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = ["verify", folder, "--texts", texts, "--engine-cache-dir", cache]
    gate = ["--gate-mean", 0.9, "--gate-p1", 0.9]
    done = run(*arguments, *gate)
    assert done.exit_code == 0, done.output
    assert "measured       int8 on openvino, against float32\n" in done.stdout
    assert "kept           no layer\n" in done.stdout
    assert "gate           passed: mean 0.9, p1 0.9\n" in done.stdout
    assert "'two dogs ran'" in done.stdout
    [version] = compiled_versions(read_model_files(folder), Config(engine_cache_dir=cache))
    assert version.report is not None
    assert f"mean cosine    {version.report.mean:.5f}\n" in done.stdout

    failed = run(*arguments, "--gate-mean", 1, "--json")
    assert failed.exit_code == 1
    content = json.loads(failed.stdout)
    assert content.pop("passes") is False
    assert content.pop("gate") == {"mean": 1, "p1": 0.998}
    assert FidelityReport.from_json(content) == version.report
    assert failed.stderr == ""


def test_fp8_is_emulated_or_refused(run: Run, folder: Path, texts: Path, tmp_path: Path) -> None:
    arguments = ["verify", folder, "--texts", texts, "--precision", "fp8"]
    arguments += ["--engine-cache-dir", tmp_path / "cache"]
    done = run(*arguments, "--emulate", "--gate-mean", 0.9, "--gate-p1", 0.9)
    assert done.exit_code == 0, done.output
    assert "fp8 weights, activations not rounded, emulated in float32" in done.stdout
    assert not (tmp_path / "cache" / "compiled").exists()  # it says nothing of an engine
    refused = run(*arguments, "--engine", "openvino")
    assert refused.exit_code == 1
    assert "fp8" in refused.stderr
    assert refused.stderr.count("\n") == 1
    wrong = run("verify", folder, "--emulate")
    assert wrong.exit_code == 2
    assert "--emulate is for fp8, not int8" in wrong.stderr


def test_a_picture(run: Run, folder: Path, texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["verify", folder, "--texts", texts, "--precision", "fp8", "--emulate"]
    arguments += ["--gate-mean", 0.9, "--gate-p1", 0.9]
    path = tmp_path / "cosines.png"
    done = run(*arguments, "--plot", path)
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(b"\x89PNG")
    refused = run(*arguments, "--plot", tmp_path / "nowhere" / "cosines.png")
    assert refused.exit_code == 1
    assert "give a file .png in a folder that is there" in refused.stderr


def test_without_matplotlib(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("verify", folder, "--plot", tmp_path / "cosines.png")
    assert done.exit_code == 1
    message = (
        "Error: plot needs matplotlib, which is not installed; pip install 'embedlib[bench]'\n"
    )
    assert done.stderr == message


def test_compile_to_a_fidelity(run: Run, folder: Path, texts: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = ["compile", folder, "--engine-cache-dir", cache, "--texts", texts]
    done = run(*arguments, "--precision", "int8", "--fidelity", 0.9)
    assert done.exit_code == 0, done.output
    assert "precision      int8\n" in done.stdout
    assert "mean cosine    0.9" in done.stdout
    [version] = compiled_versions(read_model_files(folder), Config(engine_cache_dir=cache))
    assert version.report is not None
    assert version.report.num_texts == 5

    wrong = run("compile", folder, "--fidelity", 0.9)
    assert wrong.exit_code == 2
    assert "--fidelity needs --precision int8; nothing here computes in fp8" in wrong.stderr
    wrong = run(*arguments, "--precision", "int8")
    assert wrong.exit_code == 2
    assert "--texts is what --fidelity measures on; give both" in wrong.stderr
