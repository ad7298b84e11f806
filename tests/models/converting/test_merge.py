"""Models with an adapter for each task: refused as they are, plain models once one is merged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from embedlib import Embedder
from embedlib.errors import (
    ConfigError,
    ModelNotFoundError,
    ModelUnsupportedError,
    ModelWeightsError,
)
from embedlib.models.converting import merge as merge_module
from embedlib.models.converting.merge import Merged, merge_adapter
from embedlib.models.folders import read_folder
from embedlib.models.reading.adapted import find_adapted
from embedlib.models.reading.config_file import read_encoder
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.models.weights.weight_files import WEIGHTS_NAME
from embedlib.testing.models.write import write_tiny_model
from tests.comparing import relative_errors
from tests.tiny_models.adapted import ADAPTED, write_adapted

GOLDENS = Path(__file__).parents[2] / "goldens"
TEXTS: list[str] = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))


def merge(folder: Path, adapter: str, out: Path) -> Merged:
    return merge_adapter(folder, adapter, out, lambda done, total: None)


@pytest.fixture(scope="module")
def stored() -> dict[str, NDArray[np.float32]]:
    with np.load(GOLDENS / "adapters.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("kind", ADAPTED)
def test_vectors_of_a_merged_model(
    kind: str,
    stored: dict[str, NDArray[np.float32]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_module, "BLOCK_ROWS", 5)
    _, task = ADAPTED[kind]
    folder = write_adapted(tmp_path / "model", kind)
    with pytest.raises(ModelUnsupportedError, match=rf"retrieval.*convert {folder} --adapter TASK"):
        Embedder(folder)
    out = tmp_path / "out"
    done = merge(folder, task, out)
    assert done.num_changed < done.num_tensors
    with Embedder(out, threads=1, max_seq_tokens=40, on_truncate="ignore") as embedder:
        assert embedder.default_prompt_name == {"v3": None}.get(kind, "document")
        vectors = embedder.encode(TEXTS)
    assert relative_errors(vectors, stored[kind]).max() < 1e-4


def test_every_task_is_a_model_of_its_own(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    fingerprints = set()
    for task in ("retrieval", "text-matching"):
        report = Mock()
        merge_adapter(folder, task, tmp_path / task, report)
        num_done, num_bytes = report.call_args.args
        assert num_done == num_bytes < (tmp_path / task / WEIGHTS_NAME).stat().st_size
        files = read_folder(tmp_path / task)
        fingerprints.add(fingerprint(files, None, {}))
        assert files.spec.prompts == {"query": "Query: ", "document": "Document: "}
        assert files.spec.max_seq_tokens == 64
    assert len(fingerprints) == 2
    with pytest.raises(ConfigError, match="clustering: is none of the model's: retrieval, text-"):
        merge(folder, "clustering", tmp_path / "other")
    with pytest.raises(ConfigError, match="is there already"):
        merge(folder, "retrieval", tmp_path / "retrieval")


def test_settings_come_along_and_the_index_of_other_weights_does_not(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    for name in ("model.safetensors.index.json", "more.json", "notes.txt"):
        (folder / name).write_text("{}")
    (folder / "folder.json").mkdir()
    merge(folder, "retrieval", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"more.json", "tokenizer.json", "config.json"} < names
    assert not names & {"model.safetensors.index.json", "notes.txt", "folder.json"}


def test_instructions_of_v3_are_prompts(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v3-hf")
    merge(folder, "retrieval.query", tmp_path / "out")
    spec = read_model_files(tmp_path / "out").spec
    assert spec.prompts == {"query": "the query: "}
    assert spec.default_prompt_name == "query"


@pytest.mark.parametrize("names", [None, "retrieval", ["../retrieval"], [1]])
def test_tasks_are_names(names: object, tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    edit(folder / "config.json", task_names=names)
    with pytest.raises(ModelUnsupportedError, match=r"task_names = .* a list of names"):
        merge(folder, "../retrieval", tmp_path / "out")
    with pytest.raises(ModelUnsupportedError, match=r"task_names = .* a list of names"):
        read_model_files(folder)


def test_a_model_without_adapters(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "qwen3")
    with pytest.raises(ModelNotFoundError, match="no model with an adapter for each task"):
        merge(folder, "retrieval", tmp_path / "out")


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_another(arrays: dict[str, Any], module: str) -> None:
    for letter in "AB":
        name = f"base_model.model.{module}.lora_{letter}.weight"
        arrays[name] = arrays[f"{FIRST}{letter}.weight"]


def narrow(arrays: dict[str, Any], name: str) -> None:
    arrays[name] = arrays[name][:-1].copy()


FIRST = "base_model.model.layers.0.self_attn.q_proj.lora_"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_dora": True}, "adapter_config.json: use_dora = true"),
        ({"peft_type": "IA3"}, 'peft_type = "IA3"'),
        ({"modules_to_save": ["norm"]}, r'modules_to_save = \["norm"\]'),
        ({"new_key": 1}, "new_key = 1 is not a known key"),
        ({"r": 2}, "lacks lora_A or lora_B of rank 2"),
    ],
)
def test_other_adapters_are_refused(
    values: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    edit(folder / "adapters" / "retrieval" / "adapter_config.json", **values)
    with pytest.raises((ModelUnsupportedError, ModelWeightsError), match=message):
        merge(folder, "retrieval", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop(f"{FIRST}A.weight"), "q_proj lacks lora_A or lora_B"),
        (lambda arrays: arrays.pop(f"{FIRST}B.weight"), "q_proj lacks lora_A or lora_B"),
        (lambda arrays: narrow(arrays, f"{FIRST}B.weight"), r"q_proj.weight has shape \[48, 32\]"),
        (lambda arrays: narrow(arrays, f"{FIRST}A.weight"), "q_proj lacks lora_A or lora_B of"),
        (
            lambda arrays: arrays.update({f"{FIRST}B.weight": np.zeros(4, np.float32)}),
            r"q_proj are \[4\] and \[3, 32\], which cannot be multiplied",
        ),
        (lambda arrays: arrays.update(odd=np.zeros(3, np.float32)), "odd is not one of LoRA's"),
        (
            lambda arrays: change_another(arrays, "layers.9.x"),
            "changes layers.9.x, which the model",
        ),
        (
            lambda arrays: change_another(arrays, "a\x1bb"),
            r'changes "a\\u001bb", which the model does not',
        ),
    ],
)
def test_damaged_adapters(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    path = folder / "adapters" / "retrieval" / "adapter_model.safetensors"
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)
    with pytest.raises(ModelWeightsError, match=message):
        merge(folder, "retrieval", tmp_path / "out")


STACKED = "roberta.encoder.layers.1.mixer.Wqkv.parametrizations.weight."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop(f"{STACKED}0.lora_A"), "Wqkv lacks lora_A or lora_B of the"),
        (lambda arrays: arrays.pop(f"{STACKED}0.lora_B"), "Wqkv lacks lora_A or lora_B of the"),
        (lambda arrays: narrow(arrays, f"{STACKED}0.lora_A"), "Wqkv lacks lora_A or lora_B of the"),
        (lambda arrays: narrow(arrays, f"{STACKED}0.lora_B"), "Wqkv lacks lora_A or lora_B of the"),
        (lambda arrays: arrays.pop(f"{STACKED}original"), "Wqkv, which the model does not have"),
    ],
)
def test_damaged_stacks_of_adapters(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    folder = write_adapted(tmp_path / "model", "v3")
    path = folder / "model.safetensors"
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)
    last = json.loads((folder / "config.json").read_text())["lora_adaptations"][-1]
    with pytest.raises(ModelWeightsError, match=message):
        merge(folder, last, tmp_path / "out")


def test_a_whole_layer_is_no_module(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v3-hf")
    path = folder / "retrieval_query" / "adapter_model.safetensors"
    arrays = load_file(path)
    change_another(arrays, "layers.0")
    save_file(arrays, path)
    with pytest.raises(
        ModelWeightsError, match=r"changes layers\.0, which the model does not have"
    ):
        merge(folder, "retrieval.query", tmp_path / "out")


def test_a_tensor_that_is_left_over(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    path = folder / "model.safetensors"
    save_file({**load_file(path), "left.over": np.zeros(2, np.float32)}, path)
    with pytest.raises(ModelWeightsError, match=r"left\.over"):
        merge(folder, "retrieval", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_matrix_of_another_type(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    path = folder / "model.safetensors"
    arrays: dict[str, Any] = load_file(path)
    name = next(name for name in arrays if name.endswith("layers.0.self_attn.q_proj.weight"))
    save_file({**arrays, name: arrays[name].astype(np.float64)}, path)
    with pytest.raises(ModelWeightsError, match=f"model.safetensors: {name} has type F64"):
        merge(folder, "retrieval", tmp_path / "out")


def test_an_adapter_without_weights(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    weights = folder / "adapters" / "retrieval" / "adapter_model.safetensors"
    weights.unlink()
    with pytest.raises(ModelWeightsError, match=r"adapter_model\.safetensors: the file is missing"):
        merge(folder, "retrieval", tmp_path / "out")
    os.mkfifo(weights)  # whose reader would wait for ever
    with pytest.raises(ModelUnsupportedError, match="is a pipe; it must be a regular file"):
        merge(folder, "retrieval", tmp_path / "out")


# Source: config.json of huggingface.co/jinaai/jina-embeddings-v5-text-nano.
V5_NANO: dict[str, Any] = {
    "architectures": ["JinaEmbeddingsV5Model"],
    "task_names": ["retrieval", "text-matching", "clustering", "classification"],
    "auto_map": {
        "AutoConfig": "configuration_jina_embeddings_v5.JinaEmbeddingsV5Config",
        "AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model",
    },
    "attention_bias": False,
    "bos_token": "<|begin_of_text|>",
    "eos_token": "<|end_of_text|>",
    "pad_token": "<|end_of_text|>",
    "pad_token_id": 128001,
    "mask_token": "<|mask|>",
    "mask_token_id": 128002,
    "hidden_act": "silu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "max_position_embeddings": 8192,
    "model_type": "jina_embeddings_v5",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_key_value_heads": 12,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "is_decoder": False,
}
# Source: config.json of huggingface.co/jinaai/jina-embeddings-v3-hf at d18862d.
V3_HF: dict[str, Any] = {
    "_name_or_path": "jinaai/jina-embeddings-v3",
    "architectures": ["JinaEmbeddingsV3Model"],
    "model_type": "jina_embeddings_v3",
    "classifier_dropout": None,
    "emb_pooler": None,
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "layer_norm_eps": 1e-05,
    "load_trained_adapters": True,
    "lora_adaptations": ["retrieval.query", "retrieval.passage", "separation"],
    "lora_alpha": 1,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": 4,
    "matryoshka_dimensions": [32, 64],
    "max_position_embeddings": 8194,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "truncate_dim": None,
    "type_vocab_size": 1,
    "use_flash_attn": True,
    "vocab_size": 250002,
    "task_instructions": {"retrieval.query": "Represent the query: ", "separation": ""},
}


@pytest.mark.parametrize(
    ("values", "family", "theta"),
    [(V5_NANO, "eurobert", 1_000_000.0), (V3_HF, "jina_embeddings_v3", 20_000.0)],
)
def test_published_configurations(values: dict[str, Any], family: str, theta: float) -> None:
    config = JsonObject("config.json", values)
    model = find_adapted(config)
    assert model is not None
    encoder = read_encoder(JsonObject("config.json", model.base(config, ())))
    assert encoder.rope is not None
    assert (encoder.family, encoder.rope.theta, encoder.is_causal) == (family, theta, False)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "out", tmp_path / ("x" * 300)):
        with pytest.raises(ModelWeightsError, match=f"^cannot write {out}: "):
            merge(folder, "retrieval", out)
