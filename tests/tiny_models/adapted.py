"""Writes tiny models with an adapter for each task, as jina-embeddings-v3 and -v5 are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from embedlib.testing.models.write import uniform, write_json, write_tiny_model

Arrays = dict[str, NDArray[np.float32]]

RANK: Final = 3
ALPHA: Final = 6
V5_TASKS: Final = ("retrieval", "text-matching")
V3_TASKS: Final = ("retrieval.query", "retrieval.passage", "text-matching")
INSTRUCTIONS: Final = {"retrieval.query": "the query: ", "retrieval.passage": "the passage: "}

ADAPTED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "v5-small": ("qwen3", "retrieval"),
        "v5-nano": ("eurobert", "text-matching"),
        "v3-hf": ("jina_embeddings_v3", "retrieval.passage"),
        "v3": ("jina_embeddings_v3", "text-matching"),
    }
)
"""The tiny model below each kind of folder, and one of its tasks."""

_PEFT: Final = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": ALPHA,
    "lora_dropout": 0.1,
    "bias": "none",
    "base_model_name_or_path": None,
    "fan_in_fan_out": False,
    "use_dora": False,
}
_LLAMA_MODULES: Final = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_V3_MODULES: Final = (*(f"self_attn.{name}_proj" for name in "qkvo"), "mlp.fc1", "mlp.fc2")
_V3_STORED: Final = ("mixer.Wqkv", "mixer.out_proj", "mlp.fc1", "mlp.fc2")
_TABLES: Final = ("embeddings.word_embeddings", "embeddings.token_type_embeddings")


def write_adapted(folder: Path, kind: str) -> Path:
    """Write a model folder and return it.

    Args:
        folder: where to write; created if missing.
        kind: a key of `ADAPTED`.
    """
    base, _ = ADAPTED[kind]
    write_tiny_model(folder, base)
    for name in ("config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    is_v5 = kind.startswith("v5")
    (_make_v5 if is_v5 else _make_v3)(folder, config, kind)
    write_json(folder / "config.json", config)
    entry = {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}
    write_json(folder / "modules.json", [entry | {"kwargs": ["task", "truncate_dim"]}])
    return folder


def _make_v5(folder: Path, config: dict[str, Any], kind: str) -> None:
    """Make a v5 of a decoder."""
    config |= {
        "model_type": "jina_embeddings_v5",
        "architectures": ["JinaEmbeddingsV5Model"],
        "auto_map": {"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
        "task_names": list(V5_TASKS),
    }
    if kind == "v5-nano":
        config |= {"is_decoder": False, "mask_token": "<|mask|>"}
    general = {
        "prompts": {"query": "Query: ", "document": "Document: "},
        "default_prompt_name": "document",
    }
    write_json(folder / "config_sentence_transformers.json", general)
    shapes = _shapes(load_file(folder / "model.safetensors"))
    modules = [f"layers.{layer}.{name}" for layer in range(2) for name in _LLAMA_MODULES]
    for task in V5_TASKS:
        _write_peft(folder / "adapters" / task, modules, shapes, f"{kind}/{task}")


def _make_v3(folder: Path, config: dict[str, Any], kind: str) -> None:
    """Make a v3 of its base: with folders of adapters as `-hf` has them, or all of them stacked."""
    config |= {
        "lora_adaptations": list(V3_TASKS),
        "lora_alpha": ALPHA,
        "lora_rank": RANK,
        "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False,
        "load_trained_adapters": True,
        "position_embedding_type": "rotary",
        "rotary_emb_base": config.pop("rope_parameters")["rope_theta"],
        "task_instructions": dict.fromkeys(V3_TASKS, "") | INSTRUCTIONS,
        "truncate_dim": None,
        "emb_pooler": None,
        "use_flash_attn": True,
    }
    arrays = load_file(folder / "model.safetensors")
    if kind == "v3":
        path = "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"
        config |= {"model_type": "xlm-roberta", "auto_map": {"AutoModel": path}}
        save_file(_stacked(arrays, kind), folder / "model.safetensors")
        return
    shapes = _shapes(arrays)
    for layer in range(2):
        rows, columns = shapes[f"encoder.layers.{layer}.mixer.Wqkv"]
        for name in "qkv":
            shapes[f"layers.{layer}.self_attn.{name}_proj"] = (rows // 3, columns)
        for name, stored in (
            ("self_attn.o_proj", "mixer.out_proj"),
            *((n, n) for n in _V3_MODULES[4:]),
        ):
            shapes[f"layers.{layer}.{name}"] = shapes[f"encoder.layers.{layer}.{stored}"]
    modules = [f"layers.{layer}.{name}" for layer in range(2) for name in _V3_MODULES]
    shapes["pooler.dense"] = (32, 32)
    for task in V3_TASKS:
        directory = folder / task.replace(".", "_").replace("-", "_")
        _write_peft(directory, [*modules, *_TABLES, "pooler.dense"], shapes, f"{kind}/{task}")


def _write_peft(
    directory: Path, modules: list[str], shapes: Mapping[str, tuple[int, int]], seed: str
) -> None:
    """Write an adapter as peft does: of an embedding for its transposed table."""
    arrays: Arrays = {}
    for module in modules:
        rows, columns = shapes[module]
        stem = f"base_model.model.{module}.lora_"
        is_table = module in _TABLES
        rows, columns = (columns, rows) if is_table else (rows, columns)
        down, up = _values(f"{seed}/{module}", rows, columns)
        leaf = "" if is_table else ".weight"
        stem += "embedding_" if is_table else ""
        arrays |= {f"{stem}A{leaf}": down, f"{stem}B{leaf}": up}
    directory.mkdir(parents=True)
    targets = sorted({module.rpartition(".")[2] for module in modules})
    write_json(directory / "adapter_config.json", {**_PEFT, "target_modules": targets})
    save_file(arrays, directory / "adapter_model.safetensors")


def _stacked(arrays: Arrays, seed: str) -> Arrays:
    """Return the tensors of a model whose adapters lie beside each matrix, those of all tasks."""
    made: Arrays = {}
    changed = (*_TABLES, *_V3_STORED)
    for name, values in arrays.items():
        stem, _, leaf = name.rpartition(".")
        if leaf != "weight" or not stem.endswith(changed):
            made[name] = values
            continue
        is_table = stem.endswith(_TABLES)
        rows, columns = values.shape
        pairs = [_values(f"{seed}/{task}/{name}", rows, columns) for task in V3_TASKS]
        down, up = (np.stack(parts) for parts in zip(*pairs, strict=True))
        first, second = (up, down) if is_table else (down, up)
        made[f"{stem}.parametrizations.weight.original"] = values
        made[f"{stem}.parametrizations.weight.0.lora_A"] = first
        made[f"{stem}.parametrizations.weight.0.lora_B"] = second
    return made


def _values(seed: str, rows: int, columns: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return float32[r, columns] and float32[rows, r]."""
    scale = np.float32(0.2)
    return (
        uniform(f"{seed}/A", (RANK, columns)) * scale,
        uniform(f"{seed}/B", (rows, RANK)) * scale,
    )


def _shapes(arrays: Arrays) -> dict[str, tuple[int, int]]:
    """Return the shapes of the matrices, by their names without prefix and leaf."""
    found = {}
    for name, values in arrays.items():
        if name.endswith(".weight") and values.ndim == 2:
            stem = name.removesuffix(".weight").removeprefix("model.").removeprefix("roberta.")
            found[stem] = (values.shape[0], values.shape[1])
    return found
