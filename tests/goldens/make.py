"""Write the stored outputs of sentence-transformers for every tiny model.

Run by hand, in an environment with the `goldens` dependency group, from the repository's root:

    python tests/goldens/make.py NEW_IMPL

NEW_IMPL is a folder with the code of models that transformers does not have; see own_code.py.
The tests read the results through `tests/conftest.py` and need neither torch nor transformers.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import sys
import tempfile
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import own_code
import own_models
import torch
from sentence_transformers import SentenceTransformer
from transformers import CONFIG_MAPPING, AutoModel, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from embedlib.models.families.table import FAMILIES
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.weight_files import weights_digest
from embedlib.testing.models.write import VARIANTS, write_tiny_model

HERE = Path(__file__).parent
PACKAGES = ("sentence-transformers", "transformers", "torch", "tokenizers", "numpy")


def load(folder: Path) -> SentenceTransformer:
    """Load a folder in float32, with the attention that applies the mask exactly."""
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    transformer = folder / "0_Transformer"
    _, report = AutoModel.from_pretrained(
        transformer if transformer.is_dir() else folder, output_loading_info=True, **options
    )
    # Of T5, sentence-transformers loads the encoder alone.
    missing = {name for name in report["missing_keys"] if not name.startswith("decoder.")}
    unused = {name for name in missing if "pooler" not in name}
    unused |= set(report["unexpected_keys"]) | set(report["mismatched_keys"])
    assert not unused, f"{folder.name}: {sorted(unused)}"
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs=options)
    own_code.make_buffers(model[0].model)
    return model


def outputs(model: SentenceTransformer, texts: list[str], prompt_name: str | None) -> dict:
    """Return ids, lengths, prompt length and vectors, one text per call: without padding."""
    name = prompt_name or model.default_prompt_name
    prompt = model.prompts.get(name) if name else None
    ids, num_prompt_tokens = [], 0
    for text in texts:
        features = model.preprocess([text], prompt=prompt)
        assert features["attention_mask"].all()
        ids.append(features["input_ids"][0].numpy())
        num_prompt_tokens = features.get("prompt_length", 0)
    vectors = [model.encode([text], prompt_name=prompt_name)[0] for text in texts]
    return {
        "ids": np.concatenate(ids).astype(np.int32),
        "lengths": np.array([len(row) for row in ids], dtype=np.int32),
        "num_prompt_tokens": np.int32(num_prompt_tokens),
        "vectors": np.stack(vectors).astype(np.float32),
    }


def rope_outputs() -> dict[str, np.ndarray]:
    """Return frequencies and attention factor of every case in rope.json, by name."""
    arrays = {}
    for name, case in json.loads((HERE / "rope.json").read_text()).items():
        config = LlamaConfig(
            head_dim=case["head_dim"],
            max_position_embeddings=case["positions"],
            rope_parameters={**case["parameters"], "rope_theta": case["theta"]},
        )
        rotary = LlamaRotaryEmbedding(config)
        arrays[name] = rotary.inv_freq.numpy()
        arrays[f"{name}.attention_factor"] = np.float64(rotary.attention_scaling)
    return arrays


def bucket_outputs() -> np.ndarray:
    """Return MPNet's bucket of every distance from -600 to 600."""
    distances = torch.arange(-600, 601)
    return MPNetEncoder.relative_position_bucket(distances).numpy().astype(np.int16)


def default_values() -> dict[str, dict]:
    """Return the defaults of every family's configuration class."""
    defaults = {}
    for model_type in FAMILIES:
        kind = CONFIG_MAPPING[model_type]
        if model_type in own_code.MODEL_TYPES:
            values = own_code.default_values(model_type)
            defaults[model_type] = values | {"default_theta": values["rope_theta"]}
            continue
        defaults[model_type] = {
            field.name: field.default
            for field in fields(kind)
            if isinstance(field.default, (str, int, float, bool, type(None)))
        }
        # Not a field: one number, or one for global and one for local layers.
        defaults[model_type]["default_theta"] = kind.default_theta
    return defaults


def write_golden(variant: str, texts: list[str]) -> str:
    """Write the file of one variant and return the digest of the weights it was made with."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_tiny_model(Path(temporary) / variant, variant)
        reference = VARIANTS[variant].reference_config
        is_own = VARIANTS[variant].has_own_reference
        if reference is not None and not is_own:
            path = folder / "config.json"
            given = {"vocab_size": json.loads(path.read_text())["vocab_size"]}
            path.write_text(json.dumps(reference | given))
        files = read_model_files(folder)
        digest, limit, prompts = weights_digest(files, FileHashes()), None, files.spec.prompts
        model = None
        if not is_own:
            model = load(folder)
            limit, prompts = model.max_seq_length, model.prompts
        arrays = {}
        for name in [None, *sorted(name for name, text in prompts.items() if text)]:
            if model is None:
                limit = files.spec.max_seq_tokens
                found = own_models.outputs(
                    folder, texts, prompts[name] if name else "", limit, reference
                )
            else:
                found = outputs(model, texts, name)
            for key, array in found.items():
                arrays[f"{key}.{name}" if name else key] = array
    assert all(np.isfinite(array).all() for array in arrays.values()), variant
    np.savez_compressed(HERE / f"{variant}.npz", **arrays)
    print(f"{variant}: {arrays['vectors'].shape}, limit {limit}")  # noqa: T201
    return digest


def main() -> None:
    """Write one file per variant, the outputs of single functions, and the provenance."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    code = own_code.register(Path(sys.argv[1]))
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    for stale in HERE.glob("*.npz"):
        stale.unlink()
    digests = {variant: write_golden(variant, texts) for variant in VARIANTS}
    (HERE / "weights.json").write_text(json.dumps(digests, indent=1) + "\n")
    np.savez_compressed(HERE / "rope.npz", **rope_outputs())
    np.savez_compressed(HERE / "buckets.npz", mpnet=bucket_outputs())
    (HERE / "defaults.json").write_text(json.dumps(default_values(), indent=1) + "\n")
    provenance = {
        "command": "python tests/goldens/make.py NEW_IMPL",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "code of new": code,
        "settings": "float32, attn_implementation=eager, each text on its own",
    }
    (HERE / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
