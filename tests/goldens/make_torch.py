"""Write a checkpoint with `torch.save`, and the same tensors with safetensors' own library.

Run by hand, in the environment of tests/frameworks (.ci/frameworks), from the repository's root:

    python tests/goldens/make_torch.py
"""

from __future__ import annotations

import importlib.metadata
import json
from datetime import datetime, timezone
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent / "torch"


def tensors() -> dict[str, torch.Tensor]:
    """Return tensors of every type: views, a transposed one, two that share, an empty one."""
    torch.manual_seed(0)
    base = torch.randn(6, 5)
    return {
        "layer.weight": base,
        "layer.tied": base,
        "layer.part": base[2:4, 1:3],
        "layer.transposed": base.t(),
        "half": torch.randn(7).half(),
        "bfloat": torch.randn(3, 3).bfloat16(),
        "double": torch.randn(2).double(),
        "ids": torch.arange(5),
        "int": torch.arange(4, dtype=torch.int32),
        "short": torch.arange(4, dtype=torch.int16),
        "byte": torch.arange(4, dtype=torch.uint8),
        "char": torch.arange(-2, 2, dtype=torch.int8),
        "mask": torch.tensor([True, False, True]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
    }


def main() -> None:
    """Write both files, and what made them."""
    HERE.mkdir(exist_ok=True)
    module = torch.nn.Linear(3, 2)
    torch.save(module.state_dict() | tensors(), HERE / "pytorch_model.bin")
    torch.save(tensors(), HERE / "legacy.bin", _use_new_zipfile_serialization=False)
    whole = {
        name: tensor.detach().clone().contiguous()
        for name, tensor in (module.state_dict() | tensors()).items()
    }
    save_file(whole, HERE / "model.safetensors", {"format": "pt"})
    names = ("torch", "safetensors")
    facts = {
        "command": "python tests/goldens/make_torch.py",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "packages": {name: importlib.metadata.version(name) for name in names},
    }
    (HERE / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
