"""Sparse models, against stored weights of sentence-transformers' SparseEncoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import splade
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.registry import OWN_KINDS, find_kind
from embedlib.engines.select import check_model
from embedlib.errors import (
    ClosedError,
    ConfigError,
    EmbedlibError,
    EngineUnsupportedError,
    ModelUnsupportedError,
    ModelWeightsError,
    SequenceTooLongError,
)
from embedlib.models.folders import read_folder
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.static_model import NO_LIMIT
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch
from embedlib.testing.models.table import VARIANTS
from tests.tiny_models.sparse import (
    SPARSE_VARIANTS,
    TABLE,
    write_router,
    write_sparse_model,
    write_token_weights,
)

GOLDENS = Path(__file__).parents[1] / "goldens"
ALL_TEXTS: list[str] = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))
TEXTS = [text for text in ALL_TEXTS if text.strip()]
NOISE = 1e-5
"""Of a logit in float32: weights below it may be there or not."""


def _stored(name: str) -> Any:
    with np.load(GOLDENS / "sparse" / "sentence-transformers.npz") as arrays:
        return arrays[name]


def _encode(embedder: Embedder, role: str = "document", **options: Any) -> Any:
    encode = getattr(embedder, f"encode_{role}")
    return encode(TEXTS, output_value="sparse", **options)


def _assert_same(found: list[dict[int, float]], expected: Any) -> None:
    assert len(found) == len(expected)
    for weights, row in zip(found, expected, strict=True):
        for token in set(weights) ^ set(np.flatnonzero(row).tolist()):
            assert max(weights.get(token, 0.0), row[token]) < NOISE
        for token, weight in weights.items():
            assert weight == pytest.approx(row[token], rel=1e-4, abs=NOISE)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    folder = write_router(tmp_path_factory.mktemp("router"))
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        yield embedder


@pytest.mark.parametrize("variant", SPARSE_VARIANTS)
def test_weights_are_those_of_sentence_transformers(variant: str, tmp_path: Path) -> None:
    folder = write_sparse_model(tmp_path, variant)
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        _assert_same(_encode(embedder), _stored(f"{variant}/document"))


def test_queries_of_a_router_are_looked_up_in_a_table(router: Embedder) -> None:
    _assert_same(_encode(router, "query"), _stored("router/query"))
    _assert_same(_encode(router), _stored("router/document"))
    assert router.encode(TEXTS, output_value="sparse") == _encode(router)  # its default route
    assert router.submit_batch(TEXTS[:3], output_value="sparse").result() == _encode(router)[:3]
    task = router.encode(TEXTS[1], task="query", output_value="sparse")
    assert task == _encode(router, "query")[1]
    assert router.count_room("query") == 16 < router.count_room() == router.count_room("document")


def test_a_table_of_weights_is_a_model(tmp_path: Path) -> None:
    folder = write_token_weights(tmp_path)
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        _assert_same(_encode(embedder), _stored("table/document"))
        with pytest.raises(EmbedlibError, match="text 0 has no tokens"):
            embedder.encode_query("", output_value="sparse")


def test_blocks_of_the_vocabulary_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_folder(write_sparse_model(tmp_path))
    batch = make_batch([[2, 30, 31, 3], [2, 40, 3], [2, 3]])
    rows = []
    for size in (64, 2048):
        monkeypatch.setattr(splade, "BLOCK_TOKENS", size)
        engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1))
        rows.append(engine.compute(batch))
        engine.close()
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    assert (rows[0] == 0).any()


def test_the_greatest_weights_are_kept(router: Embedder, tmp_path: Path) -> None:
    whole = _encode(router)
    few = _encode(router, max_active_dims=3)
    for weights, all_weights in zip(few, whole, strict=True):
        assert len(weights) == 3
        assert sorted(weights.values()) == sorted(all_weights.values())[-3:]
    folder = write_sparse_model(tmp_path)
    with Embedder(folder, threads=1, max_active_dims=5, on_truncate="ignore") as embedder:
        assert {len(weights) for weights in _encode(embedder)} == {5}
        assert len(embedder.encode("a", output_value="sparse", max_active_dims=2)) == 2
        fingerprint = embedder.fingerprint
    with Embedder(folder, threads=1) as embedder:
        assert embedder.fingerprint != fingerprint


def test_similarity_is_that_of_the_whole_vectors(router: Embedder) -> None:
    queries, documents = _encode(router, "query")[:3], _encode(router)[:4]
    rows = [_stored(f"router/{role}") for role in ("query", "document")]
    size = min(each.shape[1] for each in rows)
    dense = rows[0][:3, :size] @ rows[1][:4, :size].T
    np.testing.assert_allclose(np.asarray(router.similarity(queries, documents)), dense, rtol=1e-4)
    pairs = np.asarray(router.similarity_pairwise(queries, documents[:3]))
    np.testing.assert_allclose(pairs, np.diag(dense), rtol=1e-4)
    assert np.asarray(router.similarity(queries[0], documents[0])).shape == (1, 1)
    assert np.asarray(router.similarity([], documents)).shape == (0, 4)
    assert np.asarray(router.similarity(queries, [])).shape == (3, 0)


def test_the_table_decides_the_fingerprint(tmp_path: Path) -> None:
    folder = write_router(tmp_path)
    with Embedder(folder, threads=1) as embedder:
        before = embedder.fingerprint
    table = folder / "query_0_SparseStaticEmbedding" / "model.safetensors"
    save_file({"weight": load_file(table)["weight"] * 2}, table)
    with Embedder(folder, threads=1) as embedder:
        assert embedder.fingerprint != before


def test_what_a_sparse_model_does_not_do(router: Embedder, tmp_path: Path) -> None:
    for call in (router.encode, router.encode_query, lambda text: router.submit(text).result()):
        with pytest.raises(ConfigError, match=r"this model is sparse.*output_value='sparse'"):
            call("a")
    with pytest.raises(ConfigError, match="this model is sparse"):
        router.encode("a", output_value="token_embeddings")
    for option in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
        with pytest.raises(ConfigError, match=r"^convert_to_tensor=True and .* a dict of token id"):
            router.encode_query("a", output_value="sparse", **option)
    for option in ({"precision": "binary"}, {"truncate_dim": 3}, {"normalize_embeddings": True}):
        for encode in (router.encode_query, router.encode_document):
            with pytest.raises(
                ConfigError,
                match=r"(precision|truncate_dim|normalize_embeddings) = .* is for dense",
            ):
                encode("a", output_value="sparse", **option)
    with pytest.raises(ConfigError, match="max_active_dims = 0"):
        router.encode("a", output_value="sparse", max_active_dims=0)
    with pytest.raises(ConfigError, match="chunks get sentence embeddings"):
        router.encode("a", output_value="sparse", chunks=[(0, 1)])
    folder = write_sparse_model(tmp_path)
    for options, message in (
        ({"on_truncate": "chunk"}, "on_truncate = 'chunk' makes means"),
        ({"truncate_dim": 8}, "truncate_dim = 8; this model is sparse"),
        ({"precision": "int8"}, "precision = 'int8': a sparse model is computed in float32"),
    ):
        with pytest.raises(ConfigError, match=message):
            Embedder(folder, threads=1, **options)  # type: ignore[arg-type]


def test_long_queries_follow_the_options(tmp_path: Path) -> None:
    folder = write_router(tmp_path)
    with (
        Embedder(folder, threads=1, on_truncate="error") as embedder,
        pytest.raises(SequenceTooLongError, match="row 0: 17 tokens"),
    ):
        embedder.encode_query("a " * 17, output_value="sparse")
    with pytest.raises(ClosedError):
        embedder.encode_query("a", output_value="sparse")


def _change(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


def _no_task(folder: Path) -> None:
    content = json.loads((folder / "sentence_bert_config.json").read_text())
    del content["transformer_task"]
    (folder / "sentence_bert_config.json").write_text(json.dumps(content))


def _drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["cls.predictions.transform.dense.weight"]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: _change(f / "1_SpladePooling" / "config.json", pooling_strategy="mean"),
            'pooling_strategy = "mean" is not supported; accepted: max, sum',
        ),
        (
            lambda f: _change(f / "1_SpladePooling" / "config.json", embedding_dimension=7),
            "embedding_dimension = 7",
        ),
        (
            lambda f: _change(f / "1_SpladePooling" / "config.json", new=1),
            "new = 1 is not a known key",
        ),
        (
            lambda f: _change(
                f / "config.json", auto_map={"AutoModelForMaskedLM": "modeling.MyMaskedLM"}
            ),
            "a model without custom code, which embedlib never runs",
        ),
        (_no_task, 'transformer_task is missing; accepted: "fill-mask"'),
        (
            lambda f: _change(
                f / "config_sentence_transformers.json", model_type="SentenceTransformer"
            ),
            'model_type = "SentenceTransformer" is not supported; accepted: "SparseEncoder"',
        ),
        (
            lambda f: _change(f / "config.json", tie_word_embeddings=False),
            "tensor cls.predictions.decoder.weight",
        ),
        (_drop_tensor, "tensor cls.predictions.transform.dense.weight"),
    ],
)
def test_a_folder_that_says_something_else_is_refused(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = write_sparse_model(tmp_path)
    damage(folder)
    with pytest.raises((ModelUnsupportedError, ModelWeightsError)) as error:
        load_weights(read_folder(folder))
    assert message in str(error.value)


QUERIES = ["query_0_SparseStaticEmbedding"]
DOCUMENTS = ["document_0_Transformer", "document_1_SpladePooling"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"structure": {"query": [], "document": []}}, "query = []"),
        ({"structure": {"query": QUERIES, "document": []}}, "document = [] is not"),
        ({"structure": {"query": [1], "document": DOCUMENTS}}, "query = [1] is not"),
        ({"structure": {"query": DOCUMENTS, "document": DOCUMENTS}}, "one module, a SparseStatic"),
        ({"structure": {"query": QUERIES, "document": QUERIES}}, "a Transformer and a SpladePool"),
        ({"structure": {"query": QUERIES, "document": ["x"]}}, "names of types, each a folder"),
        ({"structure": {"query": 5, "document": DOCUMENTS}}, "query = 5 is not"),
        (
            {"structure": {"query": ["../x"], "document": DOCUMENTS}, "types": {"../x": TABLE}},
            'query = ["../x"] is not',
        ),
        ({"structure": {"query": ["document_1_SpladePooling"]}}, "the routes query and document"),
        ({"parameters": {"route_mappings": {"a": "query"}}}, "route_mappings"),
        ({"parameters": {"default_route": "image"}}, 'default_route = "image"'),
        ({"parameters": {"allow_empty_key": False}}, "allow_empty_key = false"),
        ({"parameters": {"allow_empty_key": None}}, "allow_empty_key = null"),
        ({"parameters": {"extra": 1}}, "parameters: extra = 1 is not a known key"),
        ({"extra": 1}, "extra = 1 is not a known key"),
    ],
)
def test_routes_that_are_not_known_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_router(tmp_path)
    _change(folder / "router_config.json", **changes)
    with pytest.raises(ModelUnsupportedError) as error:
        read_folder(folder)
    assert message in str(error.value)


@pytest.mark.parametrize("write", [write_router, write_token_weights])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "own_code.SparseStaticEmbedding"}, 'type = "own_code.SparseStaticEmbedding"'),
        ({"type": "own_code.Router"}, 'type = "own_code.Router" has one model for queries'),
        ({"kwargs": ["task"]}, 'kwargs = ["task"]'),
        ({"path": "../elsewhere"}, 'path = "../elsewhere"'),
        ({"extra": 1}, "extra = 1 is not a known key"),
    ],
)
def test_an_entry_of_a_table_is_checked_as_others(
    write: Callable[[Path], Path], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    place = write(tmp_path) / "modules.json"
    [entry] = json.loads(place.read_text())
    place.write_text(json.dumps([entry | changes]))
    with pytest.raises(ModelUnsupportedError) as error:
        read_folder(tmp_path)
    assert str(error.value).startswith(f"modules.json: [0]: {message}")


def test_a_family_without_the_head_is_refused(tmp_path: Path) -> None:
    folder = write_sparse_model(tmp_path)
    _change(folder / "config.json", **(VARIANTS["deberta-v2"].config | {"vocab_size": 200}))
    config = json.loads((folder / "config.json").read_text())
    del config["position_embedding_type"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnsupportedError, match=r'"deberta-v2" .* model bert, rob'):
        read_folder(folder)


def test_a_head_without_a_bias_reads_none(tmp_path: Path) -> None:
    folder = write_sparse_model(tmp_path, "modernbert-splade")
    assert [role for role in load_weights(read_folder(folder)) if "modules.2" in role] == [
        *("modules.2.weight", "modules.2.bias")
    ]
    _change(folder / "config.json", decoder_bias=False)
    assert "modules.2.bias" not in load_weights(read_folder(folder))


def test_a_router_stands_alone(tmp_path: Path) -> None:
    place = write_router(tmp_path) / "modules.json"
    [entry] = json.loads(place.read_text())
    place.write_text(json.dumps([entry, entry | {"name": "1"}]))
    with pytest.raises(ModelUnsupportedError, match="has 2 modules; accepted: a Router alone"):
        read_folder(tmp_path)


def test_without_a_default_route_the_first_one_is_taken(tmp_path: Path) -> None:
    place = write_router(tmp_path) / "router_config.json"
    assert read_folder(tmp_path).default_role == "document"
    _change(place, parameters={"allow_empty_key": True})
    assert read_folder(tmp_path).default_role == "query"


def test_a_table_cuts_where_its_tokenizer_says(tmp_path: Path) -> None:
    folder = write_token_weights(tmp_path)
    assert read_folder(folder).spec.max_seq_tokens == 16
    _change(folder / "tokenizer_config.json", model_max_length=None)
    assert read_folder(folder).spec.max_seq_tokens == NO_LIMIT
    _change(folder / "tokenizer_config.json", max_len=12)  # as older releases call it
    assert read_folder(folder).spec.max_seq_tokens == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer_class": "BertTokenizer"}, None),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, None),
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": False}, "normalizer.lowercase = tr"),
        ({"tokenizer_class": "OwnTokenizer"}, 'tokenizer_class = "OwnTokenizer" is not supported'),
        ({"truncation_side": "left"}, 'truncation_side = "left" is not supported'),
        ({"split_special_tokens": True}, "split_special_tokens = true is not supported"),
    ],
)
def test_the_class_of_a_table_s_tokenizer_gives_the_ids_of_its_file(
    changes: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    files = read_folder(write_token_weights(tmp_path))
    _change(tmp_path / "tokenizer_config.json", **changes)
    if message is None:
        assert load_tokenizer(files).encode("fox").tokens == ["fox"]
        return
    with pytest.raises(ModelUnsupportedError, match=message):
        load_tokenizer(files)


@pytest.mark.parametrize("kind", ["SparseStaticEmbedding", "Transformer"])
def test_a_route_of_other_code_is_refused(kind: str, tmp_path: Path) -> None:
    place = write_router(tmp_path) / "router_config.json"
    content = json.loads(place.read_text())
    [name] = [name for name in content["types"] if name.endswith(kind)]
    content["types"][name] = f"own_code.{kind}"
    place.write_text(json.dumps(content))
    with pytest.raises(ModelUnsupportedError, match=rf'{name} = "own_code\.{kind}"'):
        read_folder(tmp_path)


def test_a_router_of_other_models_is_told_what_it_is(tmp_path: Path) -> None:
    folder = write_router(tmp_path)
    (folder / "router_config.json").unlink()
    with pytest.raises(ModelUnsupportedError, match="one model for queries and another for doc"):
        read_folder(folder)


def test_a_table_without_weights_is_refused(tmp_path: Path) -> None:
    folder = write_token_weights(tmp_path)
    for weight in (-1.0, np.inf, np.nan):
        save_file({"weight": np.array([weight], np.float32)}, folder / "model.safetensors")
        with pytest.raises(ModelWeightsError, match="no weight of a token"):
            load_weights(read_folder(folder))["tokens"]
    save_file({"weights": np.ones(3, np.float32)}, folder / "model.safetensors")
    with pytest.raises(ModelWeightsError, match="holds weights; expected: weight"):
        read_folder(folder)
    save_file({"weight": np.ones((3, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(ModelWeightsError, match=r"weight has shape \[3, 2\]; expected: \['any'\]"):
        read_folder(folder)


def test_other_engines_refuse_a_sparse_model(tmp_path: Path) -> None:
    files = read_folder(write_sparse_model(tmp_path))
    assert [kind.name for kind in OWN_KINDS if kind.can_splade] == ["openvino"]
    unable = replace(find_kind("openvino", Machine()), can_splade=False)
    with pytest.raises(EngineUnsupportedError, match="engine openvino has no sparse models"):
        check_model(unable, files, Config())
