"""Weights that torch saves now: converted as safetensors' own library writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedlib.models.converting.convert import convert_folder

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


def test_a_checkpoint_of_today(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = torch.nn.TransformerEncoderLayer(8, 2, 16)
    extra: dict[str, Any] = {
        "tied": next(module.parameters()).detach(),
        "transposed": torch.randn(3, 5).t(),
        "half": torch.randn(4, 4).half()[1:, ::2],
        "bfloat": torch.randn(5).bfloat16(),
    }
    state = module.state_dict() | extra
    torch.save(state, tmp_path / "pytorch_model.bin")
    loaded = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    whole = {name: tensor.clone().contiguous() for name, tensor in loaded.items()}
    save_file(whole, tmp_path / "expected.safetensors", {"format": "pt"})
    convert_folder(tmp_path)
    made = (tmp_path / "model.safetensors").read_bytes()
    assert made == (tmp_path / "expected.safetensors").read_bytes()
