"""The GGUF file that the bench writes for llama.cpp; llama.cpp itself is not installed here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedlib.bench.contestants.gguf_file import _add_tokenizer, _interleaved, write_gguf
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.safetensors_files import list_tensors


class Arch(IntEnum):
    BERT = 1
    QWEN3 = 2
    LLAMA = 3


class Writer:
    """Keeps what is added, as gguf.GGUFWriter does before it writes."""

    last: Writer

    def __init__(self, path: Path, architecture: str) -> None:
        self.architecture = architecture
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, tuple[np.ndarray[Any, Any], object]] = {}
        Writer.last = self

    def add_tensor(self, name: str, values: np.ndarray[Any, Any], raw_dtype: object) -> None:
        self.tensors[name] = (values, raw_dtype)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith(("write_", "close")):
            return lambda: None
        assert name.startswith("add_"), name
        return lambda value: self.values.update({name.removeprefix("add_"): value})


class Names:
    """Names of a few tensors; every other keeps its own behind "other."."""

    def get_name(self, name: str, suffixes: tuple[str, ...]) -> str | None:
        if name.startswith("model."):
            return None
        for ours, theirs in (("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k")):
            if ours in name:
                return f"blk.{name.split('.')[1]}.{theirs}.weight"
        return f"other.{name}"


@pytest.fixture(autouse=True)
def _fake_gguf(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("gguf")
    module.MODEL_ARCH = Arch
    module.MODEL_ARCH_NAMES = {arch: arch.name.lower() for arch in Arch}
    module.GGUFWriter = Writer
    module.PoolingType = int
    module.GGMLQuantizationType = SimpleNamespace(BF16="bf16")
    module.get_tensor_name_map = lambda architecture, num_layers: Names()
    monkeypatch.setitem(sys.modules, "gguf", module)


def written(folder: Path) -> Writer:
    write_gguf(folder, folder / "model.gguf")
    return Writer.last


def test_bert_with_wordpiece(tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder("bert")
    writer = written(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert writer.architecture == "bert"
    assert writer.values["pooling_type"] == 1
    assert writer.values["embedding_length"] == config["hidden_size"]
    assert not writer.values["causal_attention"]
    tokens, kinds = writer.values["token_list"], writer.values["token_types"]
    assert len(tokens) == len(kinds) == config["vocab_size"]
    for token, kind in zip(tokens, kinds, strict=True):
        is_special = token.startswith("[")
        assert kind in ((3, 5) if is_special else (1,)), token
        assert not token.startswith("##"), "the start of a word is marked, not its rest"
    stored = list_tensors(folder / "model.safetensors", folder)
    left_out = [name for name in stored if f"other.{name}" not in writer.tensors]
    assert all("pooler." in name or "position_ids" in name for name in left_out)


def test_q_and_k_of_a_llama_are_interleaved(tiny_folder: Callable[[str], Path]) -> None:
    encoder = read_model_files(tiny_folder("mistral")).spec.encoder
    for name, heads in (("attn_q", encoder.num_heads), ("attn_k", encoder.num_kv_heads)):
        rows = np.arange(heads * encoder.head_dim)
        stored = np.repeat(rows[:, np.newaxis], 3, axis=1)
        found = _interleaved(f"blk.0.{name}.weight", stored, encoder)[:, 0]
        # The two rows that rotate together are neighbors there, and half a head apart here.
        assert found[:3].tolist() == [0, encoder.head_dim // 2, 1]
        assert sorted(found) == rows.tolist()
        other = _interleaved("blk.0.attn_v.weight", stored, encoder)
        assert other is stored


def test_byte_level_bpe(tmp_path: Path) -> None:
    content = {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]},
        "pre_tokenizer": {"type": "ByteLevel"},
        "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}],
        "post_processor": {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}]},
    }
    for name, values in (
        ("tokenizer.json", content),
        ("tokenizer_config.json", {"pad_token": "</s>"}),
    ):
        (tmp_path / name).write_text(json.dumps(values), encoding="utf-8")
    writer = Writer(tmp_path, "llama")
    _add_tokenizer(writer, tmp_path, 4)
    assert writer.values["token_list"] == ["a", "<s>", "</s>", "[unused3]"]
    assert writer.values["token_types"] == [1, 3, 3, 5]
    assert writer.values["token_merges"] == ["a b"]
    around = [writer.values[f"add_{name}_token"] for name in ("bos", "eos")]
    assert around == [True, False]
    assert (writer.values["bos_token_id"], writer.values["pad_token_id"]) == (1, 2)


def test_another_kind_of_model_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="no GGUF of model_type 'gemma2'"):
        written(tiny_folder("gemma2"))
