"""Late-interaction models (ColBERT): vectors, tokens and scores as the libraries that made them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.tokenizing.token_rows import TokenRows
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError, ModelUnsupportedError, TruncationWarning
from embedlib.models.encoder_parts import Convolutions
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.late_fields import checked
from embedlib.models.spec import LateInteraction, Normalize, QueryExpansion
from embedlib.testing import fake_spec
from embedlib.testing.models.late import LATE
from embedlib.testing.models.write import write_tiny_model

GOLDENS = Path(__file__).parent.parent / "goldens" / "late"
TEXTS: list[str] = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))
RELATIVE_ERROR = 1e-4
ST, PYLATE = "sentence-transformers", "pylate"
CASES = [
    *((ST, name) for name in LATE),
    *((PYLATE, name) for name in ("late-modernbert", "late-pylate", "late-stanford")),
]

pytestmark = pytest.mark.filterwarnings("ignore::embedlib.errors.TruncationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a tiny model once."""
    root = tmp_path_factory.mktemp("late")

    def write(name: str) -> Path:
        return root / name if (root / name).exists() else write_tiny_model(root / name, name)

    return write


@pytest.fixture(scope="module")
def load(folder: Callable[[str], Path]) -> Iterator[Callable[[str], Embedder]]:
    """Return a function that loads a tiny model once."""
    loaded: dict[str, Embedder] = {}

    def of(name: str) -> Embedder:
        if name not in loaded:
            loaded[name] = Embedder(folder(name), threads=1)
        return loaded[name]

    yield of
    for embedder in loaded.values():
        embedder.close()


@pytest.mark.parametrize(("library", "name"), CASES)
def test_vectors_are_those_of_the_library(
    load: Callable[[str], Embedder], library: str, name: str
) -> None:
    embedder = load(name)
    with np.load(GOLDENS / f"{library}.npz") as arrays:
        for role, encode in (
            ("query", embedder.encode_query),
            ("document", embedder.encode_document),
        ):
            rows = encode(TEXTS)
            counts = arrays[f"{name} {role} counts"].tolist()
            assert [len(row) for row in rows] == counts
            expected = arrays[f"{name} {role}"]
            error = np.linalg.norm(np.concatenate(rows) - expected) / np.linalg.norm(expected)
            assert error <= RELATIVE_ERROR


def test_all_methods_return_the_same(load: Callable[[str], Embedder]) -> None:
    embedder = load("late-bert")
    expected = embedder.encode_document(TEXTS)
    assert [row.shape[1] for row in expected] == [embedder.get_embedding_dimension()] * len(TEXTS)
    others = (
        list(embedder.encode_stream(TEXTS, role="document")),
        embedder.submit_batch(TEXTS).result(),
        asyncio.run(embedder.aencode_document(TEXTS)),
        embedder.encode(TEXTS, task="document", output_value="multi_vector"),
        [embedder.encode_document(text) for text in TEXTS],
    )
    for rows in others:
        for row, wanted in zip(rows, expected, strict=True):
            np.testing.assert_allclose(row, wanted, atol=1e-5)


def test_equal_texts_in_both_roles_are_no_twins(load: Callable[[str], Embedder]) -> None:
    embedder = load("late-roberta")
    alone = embedder.encode_query("hello world")
    many = embedder.encode_query(["hello world", "hello world<mask><mask>", "hello world"])
    np.testing.assert_allclose(many[0], alone, atol=1e-5)
    np.testing.assert_allclose(many[2], alone, atol=1e-5)


def test_a_sequence_is_filled_up_and_keeps_what_it_was() -> None:
    ids = [1, 7, 2]
    given = TokenizedText(Job(1, None, Lane.QUERY), 0, ids)
    rows = TokenRows(skipped_ids=frozenset({7}), fill_id=9, min_tokens=5, is_fill_attended=False)
    rows.apply(given)
    assert given.token_ids == [1, 7, 2, 9, 9]
    assert given.num_attended == 3
    assert given.returned_rows == [0, 2, 3, 4]
    assert ids == [1, 7, 2]


def test_a_role_is_needed(load: Callable[[str], Embedder]) -> None:
    with pytest.raises(ConfigError, match="call encode_query or encode_document"):
        load("late-bert").encode(TEXTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncate_dim": 8}, "truncate_dim = 8 is for models with one vector"),
        ({"precision": "int8"}, "precision = 'int8' is for models with one vector"),
        ({"precision": "binary"}, "precision = 'binary' is for models with one vector"),
        ({"max_active_dims": 5}, "max_active_dims = 5 is for weights of tokens"),
        ({"output_value": "sparse"}, "'sparse': a late-interaction model has multi_vector"),
        ({"chunks": [(0, 2)]}, "chunks get one vector each"),
    ],
)
def test_what_a_call_cannot_have(
    load: Callable[[str], Embedder], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load("late-bert").encode_document("a text", **options)


def test_there_are_no_ranges_to_calibrate(load: Callable[[str], Embedder]) -> None:
    with pytest.raises(ConfigError, match=r"^calibrate is for models with one vector per text"):
        load("late-bert").calibrate(TEXTS)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "int8"},
        {"truncate_dim": 8},
        {"max_active_dims": 5},
        {"similarity_fn_name": "dot"},
        {"on_truncate": "chunk"},
    ],
)
def test_options_without_effect(folder: Callable[[str], Path], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"late-interaction model|vector per token"):
        Embedder(folder("late-bert"), **options)


@pytest.mark.parametrize(
    ("name", "general", "prompts"),
    [
        (
            "late-bert",
            {"prompts": {"query": "query: "}, "default_prompt_name": "document"},
            {"query": "query: "},
        ),
        (
            "late-pylate",
            {"prompts": {}, "default_prompt_name": "query"},
            {"query": "[unused0]", "document": "[unused1]"},
        ),
    ],
)
def test_a_role_that_names_no_prompt_may_be_the_default(
    name: str, general: dict[str, Any], prompts: dict[str, str], tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path, name) / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | general))
    assert read_model_files(tmp_path).spec.prompts == prompts


def test_lengths(folder: Callable[[str], Path]) -> None:
    with Embedder(folder("late-bert"), max_seq_tokens=10, threads=1) as embedder:
        long = "hello world " * 20
        assert embedder.max_seq_length == 10
        assert len(embedder.encode_document(long)) == 10
        with pytest.warns(TruncationWarning, match="truncated to 16 tokens"):
            assert len(embedder.encode_query(long)) == 16
        assert embedder.count_room("query") > embedder.count_room("document")
        assert embedder.count_room(task="query") == embedder.count_room("query")


def test_similarity_is_maxsim(load: Callable[[str], Embedder]) -> None:
    for name, is_mean in (("late-bert", False), ("late-roberta", True)):
        embedder = load(name)
        queries, documents = embedder.encode_query(TEXTS[:4]), embedder.encode_document(TEXTS[4:9])
        scores = np.asarray(embedder.similarity(queries, documents))
        share = len(queries[1]) if is_mean else 1
        expected = (queries[1] @ documents[2].T).max(axis=1).sum() / share
        assert scores.shape == (4, 5)
        assert scores[1, 2] == pytest.approx(expected, rel=1e-5)
        pairs = np.asarray(embedder.similarity_pairwise(queries, documents[:4]))
        np.testing.assert_allclose(pairs, scores.diagonal(), rtol=1e-5)


def change(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


GENERAL, SETTINGS = "config_sentence_transformers.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("name", "file", "changes", "message"),
    [
        ("late-bert", GENERAL, {"pooling": 1}, "pooling = 1 is not a known key"),
        ("late-bert", GENERAL, {"similarity_fn_name": "cosine"}, "accepted: maxsim, meanmaxsim"),
        ("late-bert", SETTINGS, {"query_expansion": {"length": 8}}, "strategy is missing"),
        (
            "late-bert",
            SETTINGS,
            {"query_expansion": {"strategy": "fixed", "length": 8, "new": 1}},
            "query_expansion: new = 1 is not a known key",
        ),
        (
            "late-bert",
            SETTINGS,
            {"query_expansion": {"strategy": "fixed", "length": 99}},
            "expansion to 99 tokens is longer than the 48 positions$",
        ),
        ("late-roberta", SETTINGS, {"query_length": 5}, "query_length = 5 .* at least 12"),
        (
            "late-roberta",
            "config.json",
            {"max_position_embeddings": 12},
            "expansion to 12 tokens is longer than the 10 positions$",
        ),
        (
            "late-modernbert",
            GENERAL,
            {"attend_to_expansion_tokens": False},
            "16 tokens is longer than the 4 tokens that a token sees",
        ),
        ("late-bert", "4_Mask/config.json", {"keep_only_token_ids": [4]}, "keep_only_token_ids"),
        ("late-bert", "4_Mask/config.json", {"skiplist_tasks": ["image"]}, "of query and document"),
        ("late-bert", "4_Mask/config.json", {"skiplist_words": "the"}, '"the" .* a list of words'),
        ("late-modernbert", "tokenizer_config.json", {"mask_token": None}, "has no mask_token$"),
        ("late-bert", "3_Dense/config.json", {"module_input_name": "sentence_embedding"}, "module"),
        ("late-bert", "5_Normalize/config.json", {"module_input_name": None}, "token_embeddings"),
        ("late-pylate", GENERAL, {"model_type": "SparseEncoder"}, "model_type|pylate|known key"),
        ("late-stanford", "artifact.metadata", {"similarity": "l2"}, 'similarity = "l2"'),
        ("late-stanford", "artifact.metadata", {"new": 1}, "new = 1 is not a known key"),
        (
            "late-stanford",
            "artifact.metadata",
            {"pool_factor": 2},
            "pool_factor = 2 .* accepted: 1",
        ),
    ],
)
def test_files_that_differ_are_refused(
    folder: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    file: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    copy = shutil.copytree(folder(name), tmp_path / name)
    change(copy, file, **changes)
    with pytest.raises(ModelUnsupportedError, match=message):
        Embedder(copy)


MASK, METADATA = "4_Mask/config.json", "artifact.metadata"


@pytest.mark.parametrize(
    ("name", "file", "changes", "fields"),
    [
        ("late-bert", MASK, {"skiplist_tasks": "query"}, {"skips_in_queries": True}),
        ("late-bert", MASK, {"skiplist_tasks": "query"}, {"skips_in_documents": False}),
        ("late-bert", SETTINGS, {"document_length": 10**6}, {"document_tokens": 48}),
        ("late-pylate", GENERAL, {"query_length": 10**6}, {"query_tokens": 48}),
        ("late-pylate", GENERAL, {"query_length": None}, {"query_tokens": 19}),
        ("late-pylate", GENERAL, {"query_prefix": " "}, {"markers": ("[unused1]",)}),
        (
            "late-pylate",
            GENERAL,
            {"do_query_expansion": True, "query_length": None},
            {"expansion": QueryExpansion(min_tokens=32, token="[MASK]")},
        ),
        ("late-stanford", METADATA, {"query_maxlen": None}, {"query_tokens": 32}),
        (  # As release 0.2.22 of colbert-ai writes it.
            "late-stanford",
            METADATA,
            {"pool_factor": 1, "clustering_mode": "hierarchical", "protected_tokens": 0},
            {"query_tokens": 16},
        ),
        (
            "late-stanford",
            METADATA,
            {"query_token_id": None, "doc_token_id": None},
            {"markers": ("[unused0] ", "[unused1] ")},
        ),
        (
            "late-stanford",
            "tokenizer_config.json",
            {"mask_token": None, "tokenizer_class": "BertTokenizer"},
            {"expansion": QueryExpansion(min_tokens=16, token="[MASK]")},
        ),
    ],
)
def test_other_values(
    folder: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    file: str,
    changes: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    copy = shutil.copytree(folder(name), tmp_path / name)
    change(copy, file, **changes)
    late = read_model_files(copy).spec.late_interaction
    assert {field: getattr(late, field) for field in fields} == fields


def test_a_prompt_has_its_prefix_once(folder: Callable[[str], Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folder("late-pylate"), tmp_path / "copy")
    change(copy, GENERAL, prompts={"query": "[unused0]search: ", "document": "text: "})
    assert read_model_files(copy).spec.prompts == {
        "query": "[unused0]search: ", "document": "[unused1]text: ",
    }  # fmt: skip


def test_an_expansion_that_a_transformer_cannot_have() -> None:
    file = JsonObject("a.json", {})
    encoder = replace(fake_spec().encoder, windows=(None, 4), num_positions=9)
    conv = Convolutions(layers=(0,), width=3, has_bias=False)
    for changed, length, is_attended, told in (
        (encoder, 5, False, ""),
        (encoder, 6, False, "is longer than the 4 tokens that a token sees"),
        (encoder, 9, True, ""),
        (encoder, 10, True, "is longer than the 9 positions"),
        (replace(encoder, convolutions=conv), 5, True, ""),
        (replace(encoder, convolutions=conv), 5, False, "a convolution of this transformer mixes"),
        (replace(encoder, is_causal=True), 5, True, "this transformer reads from left to right"),
    ):
        expansion = QueryExpansion(min_tokens=length, token="x", is_attended=is_attended)
        late = LateInteraction(query_tokens=length, document_tokens=9, expansion=expansion)
        if told:
            with pytest.raises(
                ModelUnsupportedError, match=f"^a.json: .*to {length} tokens.*{told}"
            ):
                checked(late, changed, file)
        else:
            assert checked(late, changed, file) == late


@pytest.mark.parametrize(
    ("name", "masks", "message"),
    [
        ("late-bert", [], "has 0 modules MultiVectorMask; accepted: one"),
        ("late-bert", ["", "2"], "has 2 modules MultiVectorMask; accepted: one"),
        ("late-pylate", [""], "is of PyLate, which has no MultiVectorMask"),
    ],
)
def test_a_mask_is_where_the_library_puts_it(
    folder: Callable[[str], Path], tmp_path: Path, name: str, masks: list[str], message: str
) -> None:
    copy = shutil.copytree(folder(name), tmp_path / name)
    kind = "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask"
    entries = json.loads((copy / "modules.json").read_text())
    entries = [entry for entry in entries if not entry["type"].endswith("MultiVectorMask")]
    entries += [{"name": f"mask{mask}", "path": f"9_Mask{mask}", "type": kind} for mask in masks]
    (copy / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelUnsupportedError, match=message):
        Embedder(copy)


def test_the_fingerprint_holds_what_no_json_file_does(
    folder: Callable[[str], Path], load: Callable[[str], Embedder], tmp_path: Path
) -> None:
    copy = shutil.copytree(folder("late-stanford"), tmp_path / "copy")
    change(copy, "artifact.metadata", mask_punctuation=False)
    with Embedder(copy, threads=1) as other:
        assert other.fingerprint != load("late-stanford").fingerprint
        fingerprint = other.fingerprint
    # As Stanford's own class reads it: the key is set, and to nothing.
    change(copy, "artifact.metadata", mask_punctuation=None)
    with Embedder(copy, threads=1) as other:
        assert other.fingerprint == fingerprint


def test_older_releases_of_pylate_name_the_module_of_a_dense(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # As in answerai-colbert-small-v1.
    copy = shutil.copytree(folder("late-pylate"), tmp_path / "copy")
    before = read_model_files(copy).spec
    modules = copy / "modules.json"
    changed = modules.read_text().replace("pylate.models.Dense.Dense", "pylate.models.Dense")
    assert changed != modules.read_text()
    modules.write_text(changed)
    assert read_model_files(copy).spec == before


@pytest.mark.parametrize("is_listed", [False, True])
def test_vectors_of_pylate_have_unit_length_once(is_listed: bool, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "late-pylate")
    place = folder / "modules.json"
    entries = [each for each in json.loads(place.read_text()) if "Normalize" not in each["type"]]
    entry = {"name": "9", "path": "9", "type": "sentence_transformers.models.Normalize"}
    place.write_text(json.dumps([*entries, *([entry] if is_listed else [])]))
    (folder / "9").mkdir()
    (folder / "9" / "config.json").write_text('{"module_input_name": "token_embeddings"}')
    modules = read_model_files(folder).spec.modules
    assert [module for module in modules if isinstance(module, Normalize)] == [modules[-1]]


def test_no_sequence_is_longer_than_a_query_or_a_document(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "late-bert")
    place = folder / SETTINGS
    place.write_text(json.dumps(json.loads(place.read_text()) | {"document_length": 17}))
    spec = read_model_files(folder).spec
    assert spec.late_interaction is not None
    assert spec.max_seq_tokens == max(17, spec.late_interaction.query_tokens)
