"""Write the stored vectors of tiny models with an adapter for each task.

Run by hand, in the environment of tests/frameworks (.ci/frameworks) with peft, from the
repository's root:

    pip install peft==0.19.1 accelerate
    python -m tests.goldens.make_adapters

Of folders that peft reads, its vectors: base model of transformers, adapter not merged. Of stacked
adapters, which only the authors' code reads, those of transformers' class with weights merged here
by the formula of that code (`LoRAParametrization.lora_forward`).
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from embedlib.testing.models.write import write_tiny_model
from tests.tiny_models.adapted import (
    ADAPTED,
    ALPHA,
    INSTRUCTIONS,
    RANK,
    V3_TASKS,
    write_adapted,
)

HERE = Path(__file__).parent
PACKAGES = ("peft", "transformers", "torch", "tokenizers")


def base_model(folder: Path, base: str, place: Path) -> Any:
    """Return the base of an adapted model, from a plain folder of its own."""
    plain = write_tiny_model(place, base)
    stored = load_file(folder / "model.safetensors")
    if any("parametrizations" in name for name in stored):
        save_file(merged(stored, V3_TASKS.index(ADAPTED["v3"][1])), plain / "model.safetensors")
    return AutoModel.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager")


def merged(stored: dict[str, torch.Tensor], task: int) -> dict[str, torch.Tensor]:
    """Return plain tensors: X + (B A, or A B of an embedding) alpha / rank."""
    made = {}
    for name, values in stored.items():
        stem, mark, leaf = name.partition(".parametrizations.weight.")
        if not mark:
            made[name] = values
        elif leaf == "original":
            down, up = (stored[f"{stem}{mark}0.lora_{letter}"][task] for letter in "AB")
            pair = (down, up) if "embeddings" in stem else (up, down)
            made[f"{stem}.weight"] = values + torch.matmul(*pair) * (ALPHA / RANK)
    return made


def main() -> None:
    """Write a file of arrays, and the provenance."""
    torch.set_num_threads(1)
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    arrays = {}
    with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
        for kind, (base, task) in ADAPTED.items():
            folder = write_adapted(Path(temporary) / kind, kind)
            model = base_model(folder, base, Path(temporary) / f"{kind}-base")
            directory = folder / "adapters" / task
            if kind == "v3-hf":
                directory = folder / task.replace(".", "_").replace("-", "_")
            if kind != "v3":
                model = PeftModel.from_pretrained(model, directory)
            model.eval()
            tokenizer = AutoTokenizer.from_pretrained(Path(temporary) / f"{kind}-base")
            prompt = INSTRUCTIONS.get(task, "") if kind.startswith("v3") else "Document: "
            rows = []
            for text in texts:
                ids = tokenizer(prompt + text, truncation=True, max_length=40, return_tensors="pt")
                hidden = model(ids["input_ids"]).last_hidden_state[0]
                pooled = hidden[-1] if kind.startswith("v5") else hidden.mean(0)
                rows.append(torch.nn.functional.normalize(pooled, dim=0).numpy())
            arrays[kind] = np.stack(rows)
    np.savez_compressed(HERE / "adapters.npz", **arrays)
    facts = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    (HERE / "adapters.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
