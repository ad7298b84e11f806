"""Writes tiny static models, in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from embedlib.testing.models.tokenizers import build_tokenizer
from embedlib.testing.models.write import uniform, write_json

DIM: Final = 24
NUM_ROWS: Final = 40
"""Of a table with fewer rows than tokens."""
TYPES: Final = {"float32": np.float32, "float16": np.float16, "int8": np.int8}


def write_static_model(folder: Path, *, normalize: bool = True) -> Path:
    """Write a folder as sentence-transformers saves a StaticEmbedding, and return it."""
    table_dir = folder / "0_StaticEmbedding"
    num_tokens = _write_tokenizer(table_dir)
    save_file(
        {"embedding.weight": uniform("static/table", (num_tokens, DIM))},
        table_dir / "model.safetensors",
    )
    base = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
    kinds = [("0_StaticEmbedding", base)]
    if normalize:
        kinds.append(("1_Normalize", "sentence_transformers.base.modules.normalize.Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    general = {"model_type": "SentenceTransformer", "prompts": {"query": "", "document": ""}}
    write_json(folder / "config_sentence_transformers.json", general)
    return folder


def write_model2vec(
    folder: Path, *, dtype: str = "float32", is_mapped: bool = False, **config: Any
) -> Path:
    """Write a folder as model2vec saves it, but without modules.json, and return it.

    Args:
        folder: where to write; created if missing.
        dtype: the type of the table.
        is_mapped: several tokens share a row, and have weights.
        config: more keys of config.json.
    """
    num_tokens = _write_tokenizer(folder)
    num_rows = NUM_ROWS if is_mapped else num_tokens
    table: NDArray[Any] = uniform("static/rows", (num_rows, DIM))
    table = (table * (100 if dtype == "int8" else 1)).astype(TYPES[dtype])
    tensors: dict[str, NDArray[Any]] = {"embeddings": table}
    if is_mapped:
        tensors["mapping"] = np.arange(num_tokens, dtype=np.int64) * 7 % NUM_ROWS
        tensors["weights"] = (1.5 + uniform("static/weights", (num_tokens,))).astype(np.float64)
    save_file(tensors, folder / "model.safetensors")
    about = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": DIM}
    write_json(folder / "config.json", about | config)
    return folder


def _write_tokenizer(folder: Path) -> int:
    """Write tokenizer.json and return the number of its tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, _ = build_tokenizer("bert")
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()
