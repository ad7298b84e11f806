"""Write the FP8 checkpoints that nvidia-modelopt exports for tiny models.

Run by hand on a CPU, from the repository's root, in an environment with torch, transformers and
nvidia-modelopt (versions in fp8/provenance.json; modelopt also needs requests, which it does not
declare):

    python tests/goldens/make_fp8.py

The scales are per channel and per token. The model is loaded in bfloat16, as a server would.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import modelopt.torch.quantization as mtq
import numpy as np
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint
from safetensors.torch import load_file

from embedlib.testing.models.write import write_tiny_model

HERE = Path(__file__).parent / "fp8"
VARIANTS = ("bert", "llama", "mistral", "qwen2")
PACKAGES = ("nvidia-modelopt", "transformers", "torch", "safetensors", "numpy")


def main() -> None:
    """Write names, types, JSON files, codes and scales of every variant."""
    HERE.mkdir(exist_ok=True)
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as temporary:
            source = write_tiny_model(Path(temporary) / "source", variant)
            architecture = json.loads((source / "config.json").read_text())["architectures"][0]
            # The tiny BERT has no pooler; transformers would create one with random weights.
            options = {"add_pooling_layer": False} if architecture == "BertModel" else {}
            model = getattr(transformers, architecture).from_pretrained(
                source, dtype=torch.bfloat16, **options
            )
            # Only weights matter here, so the calibration pass can use any ids.
            model = mtq.quantize(
                model, mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG, lambda model: model(torch.arange(8)[None])
            )
            exported = Path(temporary) / "exported"
            export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=exported)
            write_golden(variant, exported)
    provenance = {
        "command": "python tests/goldens/make_fp8.py",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "settings": "mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG, export_hf_checkpoint(dtype=bfloat16), "
        "models loaded in bfloat16",
    }
    write_json(HERE / "provenance.json", provenance)


def write_golden(variant: str, exported: Path) -> None:
    """Write VARIANT.json with the metadata, and VARIANT.npz with FP8 codes and scales."""
    tensors = load_file(exported / "model.safetensors")
    config = json.loads((exported / "config.json").read_text())
    content = {
        "hf_quant_config": json.loads((exported / "hf_quant_config.json").read_text()),
        "quantization_config": config["quantization_config"],
        "dtype": config["dtype"],
        "tensors": {
            name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in sorted(tensors.items())
        },
    }
    write_json(HERE / f"{variant}.json", content)
    arrays = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            arrays[name] = tensor.view(torch.uint8).numpy()
        elif name.endswith("_scale"):
            arrays[name] = tensor.numpy()
    np.savez_compressed(HERE / f"{variant}.npz", **arrays)


def write_json(path: Path, content: object) -> None:
    """Write a readable JSON file."""
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
