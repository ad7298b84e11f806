from __future__ import annotations

import importlib
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from embedlib.cli.fidelity_rows import fidelity_rows
from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.errors import OTHER_CACHE
from embedlib.fidelity import FidelityReport
from embedlib.models.compiled.cache import compiled_versions
from embedlib.models.reading.files import read_model_files
from embedlib.packages.installing import install_line
from tests.fidelity_reports import make_report

Run = Callable[..., Result]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("a cat\ntwo dogs ran\nthe cat sat on the mat\nwho ran\nno\n")
    return path


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """As many as a report needs to count; short ones, which are quick."""
    path = tmp_path / "hundred.txt"
    path.write_text("".join(f"a cat {'a' * number}\n" for number in range(100)))
    return path


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("bert")


def test_it_passes_and_is_remembered(
    run: Run, folder: Path, texts: Path, hundred: Path, new_cache: Path
) -> None:
    arguments = ["verify", folder, "--texts", hundred, "--engine-cache-dir", new_cache]
    arguments += ["--max-seq-tokens", 20, "--precision", "int8"]
    gate = ["--gate-mean", 0.9, "--gate-p1", 0.9]
    done = run(*arguments, *gate)
    assert done.exit_code == 0, done.output
    assert "measured       int8 on openvino, against float32\n" in done.stdout
    assert "kept           no layer\n" in done.stdout
    assert "texts          100, truncated to 20 tokens\n" in done.stdout
    assert "gate           passed: mean 0.9, p1 0.9\n" in done.stdout
    assert "'a cat " in done.stdout
    [version] = compiled_versions(read_model_files(folder), Config(engine_cache_dir=new_cache))
    assert version.report is not None
    assert (version.report.num_texts, version.report.max_seq_tokens) == (100, 20)
    assert f"mean cosine    {version.report.mean:.5f}\n" in done.stdout

    few_texts = ["--texts", texts, "--precision", "int8"]
    few = run("verify", folder, *few_texts, "--engine-cache-dir", new_cache, *gate)
    assert "texts          5, truncated to 24 tokens; fewer than 100: not stored\n" in few.stdout
    [again] = compiled_versions(read_model_files(folder), Config(engine_cache_dir=new_cache))
    assert again.report == version.report

    failed = run(*arguments, "--gate-mean", 1, "--json")
    assert failed.exit_code == 1
    content = json.loads(failed.stdout)
    assert content.pop("passes") is False
    assert content.pop("gate") == {"mean": 1, "p1": 0.998}
    assert FidelityReport.from_json(content) == version.report
    assert failed.stderr == ""


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU that FP8 could be measured on."""
    pytest.importorskip("torch", reason="FP8 is emulated with torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("emulation")
def test_fp8_is_emulated_or_refused(run: Run, folder: Path, hundred: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = ["verify", folder, "--texts", hundred, "--precision", "fp8"]
    arguments += ["--engine-cache-dir", cache]
    done = run(*arguments, "--gate-mean", 0.9, "--gate-p1", 0.9)
    assert done.exit_code == 0, done.output
    assert "measured       fp8 on cuda, against float32\n" in done.stdout
    told = f"emulated on {platform.machine()}; not measured on a GPU, so auto ignores it\n"
    assert f"hardware       {told}" in done.stdout
    [version] = compiled_versions(read_model_files(folder), Config(engine_cache_dir=cache))
    assert version.report is not None
    assert version.report.hardware == f"emulated on {platform.machine()}"
    refused = run(*arguments, "--engine", "openvino")
    assert refused.exit_code == 1
    assert "fp8" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "tensorrt_llm"], "engine = 'tensorrt_llm' cannot be used here: "),
        (["--engine", "openvino", "--precision", "bf16"], "this CPU does not compute in bf16"),
        (["--engine", "openvino", "--against", "bf16"], "this CPU does not compute in bf16"),
        (["--precision", "bf16", "--against", "bf16"], "would be compared with itself"),
    ],
)
def test_what_cannot_be_measured(
    run: Run,
    folder: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Machine, "cpu_features", lambda machine: frozenset())
    done = run("verify", folder, "--engine-cache-dir", tmp_path / "cache", *arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["verify"], ["compile", "--precision", "int8"]])
def test_an_engine_directory_is_not_what_is_measured_or_compiled(
    run: Run, folder: Path, tmp_path: Path, arguments: list[str]
) -> None:
    out = tmp_path / "out"
    options = ["--engine-cache-dir", tmp_path / "cache"]
    assert run("compile", folder, "--precision", "int8", "--out", out, *options).exit_code == 0
    done = run(*arguments, out, *options)
    assert done.exit_code == 1
    told = f"Error: {out} was compiled to int8; give the model it was made from\n"
    assert done.stderr == told


def test_a_picture(run: Run, folder: Path, texts: Path, new_cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    arguments = ["verify", folder, "--texts", texts, "--engine-cache-dir", new_cache]
    arguments += ["--gate-mean", 0.9, "--gate-p1", 0.9]
    path = tmp_path / "cosines.png"
    done = run(*arguments, "--plot", path)
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(b"\x89PNG")
    unwritable = run(*arguments, "--plot", tmp_path / ("x" * 300 + ".png"))
    assert unwritable.exit_code == 1
    assert "mean cosine" in unwritable.stdout
    assert "cannot be written" in unwritable.stderr
    refused = run(*arguments, "--plot", tmp_path / "nowhere" / "cosines.png")
    assert refused.exit_code == 1
    assert "give a .png file in an existing folder" in refused.stderr


def test_without_matplotlib(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("verify", folder, "--plot", tmp_path / "cosines.png")
    assert done.exit_code == 1
    message = f"Error: plot needs matplotlib, which is not installed; {install_line('bench')}\n"
    assert done.stderr == message


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["verify"], "cannot write the engine directory {0}/cache/compiled"),
        (["compile", "--fidelity", "0.9"], "cannot write the engine directory {0}/cache/compiled"),
        (["compile", "--fidelity", "0.9", "--out", "{0}/own"], "out = '{0}/own' holds files"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_computed(
    command: list[str],
    message: str,
    run: Run,
    folder: Path,
    hundred: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compute(*_: object) -> None:
        pytest.fail("the reference is computed")

    for name in ("verify", "to_gate"):
        module = importlib.import_module(f"embedlib.fidelity.{name}")
        monkeypatch.setattr(module, "reference_vectors", compute)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").touch()
    if "--out" not in command:
        (tmp_path / "cache").touch()  # not a folder, so root cannot write into it either
    arguments = [part.format(tmp_path) for part in command]
    arguments += ["--precision", "int8", "--engine-cache-dir", str(tmp_path / "cache")]
    refused = run(*arguments, folder, "--texts", hundred)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"Error: {message.format(tmp_path)}")
    remedy = "give a new folder" if "--out" in command else OTHER_CACHE
    assert refused.stderr.endswith(f"; {remedy}\n")


def test_it_says_what_auto_does_not_go_by() -> None:
    rows = dict(fidelity_rows(make_report(reference="bf16")))
    told = "int8 on openvino, against bf16; auto goes by float32 there: not stored"
    assert rows["measured"] == told
    rows = dict(fidelity_rows(make_report(engine="cuda", precision="fp8", reference="bf16")))
    assert rows["measured"] == "fp8 on cuda, against bf16"


def test_compile_to_a_fidelity(
    run: Run, folder: Path, texts: Path, hundred: Path, new_cache: Path
) -> None:
    arguments = ["compile", folder, "--engine-cache-dir", new_cache, "--texts"]
    few = run(*arguments, texts, "--precision", "int8", "--fidelity", 0.9)
    assert few.exit_code == 1
    assert few.stderr == "Error: texts has 5 texts; choosing layers needs 100 or more\n"
    arguments += [hundred]
    done = run(*arguments, "--precision", "int8", "--fidelity", 0.9)
    assert done.exit_code == 0, done.output
    assert "precision      int8\n" in done.stdout
    assert "mean cosine    0.9" in done.stdout
    [version] = compiled_versions(read_model_files(folder), Config(engine_cache_dir=new_cache))
    assert version.report is not None
    assert version.report.num_texts == 100
    assert version.report.max_seq_tokens == 24

    wrong = run("compile", folder, "--precision", "bf16", "--fidelity", 0.9)
    assert wrong.exit_code == 2
    assert "--fidelity is for fp8 and int8; bf16 has no layers to choose" in wrong.stderr
    for option in (["--texts", hundred], ["--against", "bf16"]):
        wrong = run("compile", folder, "--precision", "int8", *option)
        assert wrong.exit_code == 2
        assert f"{option[0]} is for measuring; give --fidelity too" in wrong.stderr


@pytest.mark.usefixtures("emulation")
def test_compile_fp8_to_a_fidelity(run: Run, folder: Path, hundred: Path, tmp_path: Path) -> None:
    arguments = ["compile", folder, "--engine-cache-dir", tmp_path / "cache", "--texts", hundred]
    out = tmp_path / "out"
    done = run(*arguments, "--fidelity", 0.9, "--out", out)
    assert done.exit_code == 0, done.output
    assert "precision      fp8\n" in done.stdout
    assert "not measured on a GPU, so auto ignores it\n" in done.stdout
    assert (out / "fidelity.json").is_file()
    missed = run(*arguments, "--fidelity", 1)
    assert missed.exit_code == 1
    assert missed.stderr.startswith("Error: fp8 does not reach a mean cosine of 1.0 and 1.0 for 99")
    assert missed.stderr.count("\n") == 1
