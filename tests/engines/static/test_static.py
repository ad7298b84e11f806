"""Static models, against stored outputs of sentence-transformers and model2vec."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from embedlib import Embedder, Reranker
from embedlib.engines.static.engine import StaticEngine
from embedlib.errors import (
    ConfigError,
    EngineUnavailableError,
    InputError,
    ModelError,
    ModelUnsupportedError,
    ModelWeightsError,
    SequenceTooLongError,
)
from embedlib.models.folders import read_folder
from embedlib.models.static_model import NO_LIMIT
from embedlib.models.weights.load import load_weights
from embedlib.testing import check_engine
from tests.comparing import relative_errors
from tests.tiny_models.static import write_model2vec, write_static_model

GOLDENS = Path(__file__).parents[2] / "goldens" / "static"
TEXTS: list[str] = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))


def _stored(library: str, name: str) -> Any:
    with np.load(GOLDENS / f"{library}.npz") as arrays:
        return arrays[name]


@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_sentence_transformers(normalize: bool, tmp_path: Path) -> None:
    folder = write_static_model(tmp_path, normalize=normalize)
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        assert embedder.max_seq_length == 8  # the truncation of tokenizer.json
        vectors = embedder.encode(TEXTS)
        single = embedder.encode(TEXTS[0])
    expected = _stored("sentence-transformers", "normalized" if normalize else "plain")
    assert relative_errors(vectors, expected).max() <= 2e-6
    assert relative_errors(single[None], expected[:1]).max() <= 2e-6


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("float32", {"normalize": True}),
        ("float16", {"dtype": "float16"}),
        ("int8", {"dtype": "int8", "normalize": True}),
        ("mapped", {"is_mapped": True, "normalize": True, "max_length": None}),
    ],
)
def test_vectors_are_those_of_model2vec(
    name: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    expected = _stored("model2vec", name)
    known = np.flatnonzero(np.abs(expected).max(1))  # of unknown tokens alone there is no vector
    texts = [TEXTS[row] for row in known]
    assert len(texts) > 200
    folder = write_model2vec(tmp_path, **arguments)
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        vectors = embedder.encode(texts)
    # model2vec returns the mean of float16 in float16.
    limit = 2e-3 if name == "float16" else 2e-6
    assert relative_errors(vectors, expected[known]).max() <= limit


def test_a_text_of_unknown_tokens_alone_is_refused_with_its_row(tmp_path: Path) -> None:
    with Embedder(write_model2vec(tmp_path / "a"), threads=1) as embedder:
        with pytest.raises(InputError, match="text 1 has no tokens: '☃'"):
            embedder.encode(["the city", "☃"])
        with pytest.raises(InputError, match="text 0 has no tokens"):
            embedder.encode("")
    with Embedder(write_static_model(tmp_path / "b"), threads=1) as embedder:
        assert embedder.encode("☃").any()  # sentence-transformers keeps the unknown token


def test_the_limit_of_model2vec_counts_unknown_tokens(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path, max_length=3)
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        long, short = embedder.encode(["the ☃ city ☃ runs", "the city"])
        assert np.array_equal(long, short)
    with (
        Embedder(folder, threads=1, on_truncate="error") as embedder,
        pytest.raises(SequenceTooLongError, match="row 0: 5 tokens"),
    ):
        embedder.encode(["the ☃ city ☃ runs"])


@pytest.mark.parametrize("write", [write_static_model, write_model2vec])
def test_the_engine_keeps_its_promises(write: Callable[..., Path], tmp_path: Path) -> None:
    files = read_folder(write(tmp_path))
    check_engine(StaticEngine(files.spec, load_weights(files)), files.spec)


def test_the_table_of_float32_is_not_copied(tmp_path: Path) -> None:
    weights = load_weights(read_folder(write_static_model(tmp_path)))
    [file] = weights.mapped_files.values()
    assert np.shares_memory(weights["tokens"], file)


def test_token_vectors_are_the_rows(tmp_path: Path) -> None:
    folder = write_static_model(tmp_path)
    with Embedder(folder, threads=1) as embedder:
        rows = embedder.encode("the city", output_value="token_embeddings")
        table = load_weights(read_folder(folder))["tokens"]
        ids = [embedder.tokenizer.token_to_id(word) for word in ("the", "city")]
    assert np.array_equal(np.asarray(rows), table[ids])


def test_a_pickled_table_is_told_with_what_converts_it(tmp_path: Path) -> None:
    folder = write_static_model(tmp_path)
    [weights] = folder.rglob("model.safetensors")
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(ModelWeightsError, match=f"is a pickle, .*: embedlib convert {folder}$"):
        read_folder(folder)


def test_modules_json_decides_which_library_is_followed(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path, max_length=3)
    base = "sentence_transformers.models.StaticEmbedding"
    entries = [{"idx": 0, "name": "0", "path": ".", "type": base}]
    (folder / "modules.json").write_text(json.dumps(entries))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    spec = read_folder(folder).spec
    assert (spec.max_seq_tokens, spec.dropped_token_id) == (NO_LIMIT, None)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "openvino"}, ConfigError, "engine = 'openvino' runs transformers"),
        ({"precision": "int8"}, ConfigError, "precision = 'int8': the engine static has"),
        ({"template": "qwen3-reranker"}, ConfigError, "template = 'qwen3-reranker'"),
    ],
)
def test_options_of_transformers_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        Embedder(write_static_model(tmp_path), **options)


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    from embedlib.config import Config
    from embedlib.engines.select import plan_engine

    files = read_folder(write_static_model(tmp_path))
    with pytest.raises(EngineUnavailableError, match="computed on the CPU, not on cuda:0"):
        plan_engine(files, Config(device="cuda:0"))


def test_it_makes_no_scores(tmp_path: Path) -> None:
    for folder in (write_static_model(tmp_path / "a"), write_model2vec(tmp_path / "b")):
        with pytest.raises(ModelError):
            Reranker(folder)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path / "a", head_config={})
    with pytest.raises(ModelUnsupportedError, match=r"^config.json: head_config = .* not a known"):
        read_folder(folder)
    folder = write_static_model(tmp_path / "b")
    entries = json.loads((folder / "modules.json").read_text())
    entries[1]["type"] = "sentence_transformers.models.Pooling"
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelUnsupportedError, match=r"modules.json: \[1\]: type = .*Pooling"):
        read_folder(folder)


def test_a_text_that_would_lose_its_start_is_refused(tmp_path: Path) -> None:
    folder = write_static_model(tmp_path)
    place = str(folder / "0_StaticEmbedding" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(place)
    tokenizer.enable_truncation(8, direction="left")
    tokenizer.save(place)
    with pytest.raises(ModelUnsupportedError, match=r"truncation\.direction = 'left' is not"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"other": (4, 2)}, "tensor embedding.weight or embeddings is missing"),
        ({"embeddings": (4,)}, r"tensor embeddings has shape \[4\]; expected: \['any', 'any'\]"),
        (
            {"embeddings": (0, 2)},
            r"tensor embeddings has shape \[0, 2\]; expected: \['any', 'any'\]",
        ),
        ({"embeddings": (4, 2), "more": (1,)}, r"tensor more \[1\] is left over"),
        ({"embedding.weight": (4, 2), "weights": (4,)}, r"tensor weights \[4\] is left over"),
        ({"embeddings": (4, 2), "weights": (3,)}, r"tensor weights has shape \[3\]"),
        ({"embeddings": (4, 2), "mapping": (4,)}, "tensor mapping has type F32; accepted: I64"),
    ],
)
def test_a_damaged_table(tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = write_model2vec(tmp_path)
    arrays = {name: np.ones(shape, np.float32) for name, shape in tensors.items()}
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelWeightsError, match=f"^model.safetensors: {message}"):
        read_folder(folder)


@pytest.mark.parametrize(("row", "dtype"), [(40, np.int64), (-1, np.int64), (40, np.int32)])
def test_a_mapping_to_rows_that_are_not_there(row: int, dtype: type, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = write_model2vec(tmp_path, is_mapped=True)
    arrays = {name: array.copy() for name, array in load_file(folder / "model.safetensors").items()}
    arrays["mapping"] = arrays["mapping"].astype(dtype)
    arrays["mapping"][5] = row
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelWeightsError, match=f"mapping names row {row}; the table has 40,"):
        Embedder(folder)


def test_too_few_rows_for_the_tokenizer(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = write_model2vec(tmp_path)
    save_file({"embeddings": np.ones((9, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(
        ModelUnsupportedError, match=r"^tokenizer.json: .* less than the 9 rows of the table"
    ):
        Embedder(folder)


def test_the_fingerprint_follows_the_table(tmp_path: Path) -> None:
    prints = set()
    for name, arguments in (("a", {}), ("b", {}), ("c", {"dtype": "float16"})):
        with Embedder(write_model2vec(tmp_path / name, **arguments)) as embedder:
            prints.add(embedder.fingerprint)
    assert len(prints) == 2
