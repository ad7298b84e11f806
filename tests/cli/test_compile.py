from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from embedlib.cli import main
from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.compiled.engine_folder import compiled_folder, verify_engine_folder
from embedlib.models.reading.files import read_model_files
from embedlib.testing.models.write import write_tiny_model
from tests.waiting import WAIT_SECONDS

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", "llama")


def test_into_the_cache(run: Run, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = run("compile", folder, "--engine-cache-dir", cache)
    assert done.exit_code == 0, done.output
    files = read_model_files(folder)
    compiled = compiled_folder(files, "fp8", (), Config(engine_cache_dir=cache))
    assert compiled is not None
    assert f"folder         {compiled}\n" in done.stdout
    assert "precision      fp8\n" in done.stdout
    assert re.search(r"^size           0\.\d MB, from 0\.\d MB$", done.stdout, re.M)
    assert f"made from      {verify_engine_folder(compiled).fingerprint}\n" in done.stdout
    assert done.stderr == ""
    again = run("compile", folder, "--engine-cache-dir", cache)
    assert again.stdout == done.stdout


def test_out_and_precision(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("compile", folder, "--precision", "bf16", "--out", out)
    assert done.exit_code == 0, done.output
    assert verify_engine_folder(out).precision == "bf16"
    assert f"folder         {out}\n" in done.stdout


def test_json(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("compile", folder, "--precision", "int8", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    manifest = verify_engine_folder(out)
    assert json.loads(done.stdout) == {
        "folder": str(out),
        "precision": "int8",
        "excluded": [],
        "bytes": sum(digest.num_bytes for digest in manifest.outputs.values()),
        "source_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "made_from": manifest.fingerprint,
    }


def test_layers_are_chosen_with_the_texts_of_a_file(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Mock(side_effect=ConfigError("stop"))
    monkeypatch.setattr("embedlib.fidelity.compile_to_gate", chosen)
    (tmp_path / "texts.txt").write_text("a\nb\n")
    texts = ("--texts", tmp_path / "texts.txt")
    for options in ((), texts, (*texts, "--against", "bf16")):
        run("compile", folder, "--precision", "int8", "--fidelity", "0.5", *options)
    asked = [call.kwargs for call in chosen.mock_calls]
    assert [each["texts"] and set(each["texts"].all) for each in asked] == [None, *[{"a", "b"}] * 2]
    assert [each["reference"] for each in asked] == ["float32", "float32", "bf16"]
    assert {each["gate"].mean for each in asked} == {0.5}


def test_the_current_folder_is_not_replaced(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    refused = run("compile", folder, "--precision", "int8", "--out", ".")
    assert refused.exit_code == 1
    told = f"Error: out = '{tmp_path}/here' is the current folder, which cannot be replaced; give"
    assert refused.stderr.startswith(told)


def test_errors_are_one_line(run: Run, folder: Path, tmp_path: Path) -> None:
    refused = run("compile", folder, "--out", tmp_path)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: out = ")
    assert "holds files that embedlib did not write" in refused.stderr
    assert refused.stderr.count("\n") == 1
    missing = run("compile", tmp_path / "nowhere")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("Error: no model folder")
    (folder / "model.safetensors").unlink()
    broken = run("compile", folder, "--out", tmp_path / "out")
    assert broken.exit_code == 1
    assert "there is no model.safetensors" in broken.stderr
    assert run("compile", folder, "--precision", "int4").exit_code == 2


def test_a_bar_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "embedlib", "compile", str(folder)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=WAIT_SECONDS,
    )
    os.close(theirs)
    shown = b""
    while chunk := read(ours):
        shown += chunk
    os.close(ours)
    assert done.returncode == 0
    assert b"Compiling" in shown
    assert b"MB/s" in shown or b"kB/s" in shown


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def test_a_device_is_for_measuring(run: Run, folder: Path, tmp_path: Path) -> None:
    refused = run("compile", folder, "--precision", "int8", "--device", "cpu")
    assert refused.exit_code == 2
    assert "Error: --device is for measuring; give --fidelity too" in refused.stderr
    done = CliRunner().invoke(
        main,
        ["compile", str(folder), "--precision", "int8", "--out", str(tmp_path / "out")],
        env={"EMBEDLIB_DEVICE": "cpu"},
    )
    assert done.exit_code == 0, "what is set for all commands is nobody's question here"
