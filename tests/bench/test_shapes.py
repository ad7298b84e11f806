from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedlib.bench import shape_tokenizer, shape_weights
from embedlib.bench.shapes import SHAPES, write_shape
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.models.weights.safetensors_files import list_tensors, map_file
from embedlib.reranker import Reranker

# Of the transformers without their embeddings: the published sizes of the models.
MILLIONS_OF_WEIGHTS = {
    "minilm": 10.65,
    "bert-base": 85.1,
    "bert-large": 302.3,
    "qwen3-0.6b": 440.5,
    "mistral-7b": 6979.6,
    "minilm-reranker": 10.65,
    "bge-reranker-v2-m3": 302.3,
}


def layer_weights(config: dict[str, int]) -> int:
    """Count the weights of the layers as the papers of the models describe them."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    if config["model_type"] in ("bert", "xlm-roberta"):
        a_layer = 4 * (hidden + 1) * hidden + (hidden + 1) * inner + (inner + 1) * hidden
        return config["num_hidden_layers"] * (a_layer + 4 * hidden)
    rows = config["head_dim"] * (2 * heads + 2 * config["num_key_value_heads"])
    return config["num_hidden_layers"] * (rows * hidden + 3 * hidden * inner)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_as_many_weights_as_the_model_it_is_named_after(name: str) -> None:
    counted = layer_weights(SHAPES[name].config) / 1e6
    assert counted == pytest.approx(MILLIONS_OF_WEIGHTS[name], rel=1e-3)


@pytest.fixture(scope="module", autouse=True)
def _few_training_texts() -> Iterator[None]:
    """Reading all the training texts takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape_tokenizer, "TRAINING_TEXTS", 50)
        yield


@pytest.fixture(scope="module")
def cut_minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shape("shape:minilm/1", tmp_path_factory.mktemp("shapes") / "minilm")


def test_embedlib_reads_it(cut_minilm: Path, engine_cache: Path) -> None:
    with Embedder(cut_minilm, threads=1, engine_cache_dir=engine_cache) as embedder:
        vectors = embedder.encode(["copy a file to another folder", "Ünïcode ✓"])
    assert vectors.shape == (2, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)


def test_the_same_seed_gives_the_same_files(cut_minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "model.safetensors").write_bytes(b"of a writer that was killed")
    again = write_shape("shape:minilm/1", tmp_path / "again")
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (again / file).read_bytes() == (cut_minilm / file).read_bytes()


def test_matrices_keep_the_size_of_their_input(cut_minilm: Path) -> None:
    path = cut_minilm / "model.safetensors"
    tensors, data = list_tensors(path, cut_minilm), map_file(path)
    up = tensors["encoder.layer.0.intermediate.dense.weight"].read(data)
    assert up.shape == (1536, 384)
    assert up.std() == pytest.approx(1 / math.sqrt(384), rel=1e-2)
    assert len(np.unique(up)) > 60_000
    down = tensors["encoder.layer.0.output.dense.weight"].read(data)
    assert not np.array_equal(up.ravel(), down.ravel())
    assert tensors["embeddings.word_embeddings.weight"].shape == (30522, 384)


@pytest.mark.parametrize(
    "name", ["qwen3-0.6b", "mistral-7b", "minilm-reranker", "bge-reranker-v2-m3"]
)
def test_a_small_copy_of_each_other_kind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "vocab_size": 9000,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
    }
    layers = "/2"
    if name == "mistral-7b":  # one whose layers are all there
        layers, small["num_hidden_layers"] = "", 2
    if SHAPES[name].pooling is not None:
        small |= {"head_dim": 16, "num_key_value_heads": 2}
    config = SHAPES[name].config
    for key, value in small.items():
        monkeypatch.setitem(config, key, value)
    # A piece of a tensor is smaller than the tensor, so that the pieces have to join.
    monkeypatch.setattr(shape_weights, "_PIECE_VALUES", 1000)
    folder = write_shape(f"shape:{name}{layers}", tmp_path / "model")
    texts = ["copy a file", "what is a weak reference good for"]
    if SHAPES[name].pooling is None:
        with Reranker(folder, threads=1, engine_cache_dir=tmp_path) as reranker:
            assert np.isfinite(reranker.predict([("copy", text) for text in texts])).all()
        return
    with Embedder(folder, threads=1, engine_cache_dir=tmp_path) as embedder:
        vectors = embedder.encode(texts)
    assert vectors.shape == (2, 64)
    assert vectors[0] @ vectors[1] < 0.999
    header = json.loads(map_header(folder / "model.safetensors"))
    assert {entry["dtype"] for key, entry in header.items() if key != "__metadata__"} == {"BF16"}


def map_header(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shape:bert", "model = 'shape:bert'; it must be one of shape:minilm, shape:bert-base"),
        ("shape:bert-base/0", "bert-base has 1 to 12 layers to keep"),
        ("shape:bert-base/13", "bert-base has 1 to 12 layers to keep"),
        ("shape:bert-base/", "bert-base has 1 to 12 layers to keep"),
    ],
)
def test_no_such_shape(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        write_shape(name, tmp_path)
    assert message in str(raised.value)
    assert not list(tmp_path.iterdir())
