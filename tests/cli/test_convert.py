from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from tests.tiny_models.adapted import write_adapted

GOLDENS = Path(__file__).parent.parent / "goldens" / "torch"
Run = Callable[..., Result]


def test_it_says_what_it_did(run: Run, tmp_path: Path) -> None:
    shutil.copy(GOLDENS / "pytorch_model.bin", tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"?")
    (tmp_path / "config.json").write_text("{}")
    done = run("convert", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    first, second, last = done.stdout.splitlines()
    assert first == "model.safetensors: 17 tensors, 0.0 MB, from pytorch_model.bin"
    assert second == "training_args.bin: left out, no weights of the model"
    assert last.startswith(f"{tmp_path / 'out'}: written by a process to which ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "model.safetensors",
    ]  # fmt: skip
    facts = json.loads(run("convert", tmp_path, "--json").stdout)
    assert facts["written"][0]["num_tensors"] == 17
    (tmp_path / "model.safetensors").unlink()
    assert run("convert", tmp_path).stdout.endswith(" refused the network\n")
    again = run("convert", tmp_path)
    assert again.exit_code == 1
    assert "nothing to convert" in again.stderr


def test_the_adapter_of_a_task(run: Run, tmp_path: Path) -> None:
    folder, out = write_adapted(tmp_path / "model", "v5-small"), tmp_path / "out"
    done = run("convert", folder, "--adapter", "retrieval", "--out", out)
    assert done.exit_code == 0, done.output
    told = "24 tensors, 14 of them with the adapter retrieval, in float32\n"
    assert done.stdout == f"{out}: {told}"
    options = ["--adapter", "retrieval", "--out", tmp_path / "other", "--json"]
    assert json.loads(run("convert", folder, *options).stdout)["num_changed"] == 14
    refused = run("convert", folder, "--adapter", "retrieval")
    assert refused.exit_code == 2
    assert "--adapter needs --out" in refused.stderr
