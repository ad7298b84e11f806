from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

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
    again = run("convert", tmp_path)
    assert again.exit_code == 1
    assert "nothing to convert" in again.stderr
