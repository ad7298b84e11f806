"""Models with an adapter for each task: refused as they are, plain models once one is merged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from embedlib.models.converting.merge import Merged, merge_adapter
from embedlib.models.folders import read_folder
from embedlib.models.reading.files import load_spec
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.testing.models.adapted import ADAPTED, write_adapted
from embedlib.testing.models.write import write_tiny_model
from tests.comparing import relative_errors

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
    kind: str, stored: dict[str, NDArray[np.float32]], tmp_path: Path
) -> None:
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
        merge(folder, task, tmp_path / task)
        files = read_folder(tmp_path / task)
        fingerprints.add(fingerprint(files, None, {}))
        assert files.spec.prompts == {"query": "Query: ", "document": "Document: "}
        assert files.spec.max_seq_tokens == 64
    assert len(fingerprints) == 2
    with pytest.raises(ConfigError, match="clustering: is none of the model's: retrieval, text-"):
        merge(folder, "clustering", tmp_path / "other")
    with pytest.raises(ConfigError, match="is there already"):
        merge(folder, "retrieval", tmp_path / "retrieval")


def test_instructions_of_v3_are_prompts(tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v3-hf")
    merge(folder, "retrieval.query", tmp_path / "out")
    spec = load_spec(tmp_path / "out")
    assert spec.prompts == {"query": "the query: "}
    assert spec.default_prompt_name == "query"


@pytest.mark.parametrize("names", [None, "retrieval", ["../retrieval"], [1]])
def test_tasks_are_names(names: object, tmp_path: Path) -> None:
    folder = write_adapted(tmp_path / "model", "v5-small")
    edit(folder / "config.json", task_names=names)
    with pytest.raises(ModelUnsupportedError, match=r"task_names = .* a list of names"):
        merge(folder, "../retrieval", tmp_path / "out")
    with pytest.raises(ModelUnsupportedError, match=r"task_names = .* a list of names"):
        load_spec(folder)


def test_a_model_without_adapters(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "qwen3")
    with pytest.raises(ModelNotFoundError, match="no model with an adapter for each task"):
        merge(folder, "retrieval", tmp_path / "out")


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


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
        (lambda arrays: arrays.pop(f"{FIRST}B.weight"), "q_proj lacks lora_A or lora_B"),
        (lambda arrays: narrow(arrays, f"{FIRST}B.weight"), r"q_proj.weight has shape \[48, 32\]"),
        (lambda arrays: narrow(arrays, f"{FIRST}A.weight"), "q_proj lacks lora_A or lora_B of"),
        (lambda arrays: arrays.update(odd=np.zeros(3, np.float32)), "odd is not one of LoRA's"),
        (
            lambda arrays: arrays.update(
                {
                    f"base_model.model.layers.9.x.lora_{letter}.weight": arrays[
                        f"{FIRST}{letter}.weight"
                    ]
                    for letter in "AB"
                }
            ),
            "changes layers.9.x, which the model does not have",
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
