"""Popular models: their configuration files, and the specs read from them.

`named/*.json` contains the retyped files and their public sources. Values that a source does not
show come from the model's card.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.errors import ModelUnsupportedError
from embedlib.models.catalog import catalog
from embedlib.models.encoder_parts import Rope
from embedlib.models.known_models import known_model
from embedlib.models.prompts import Prompts
from embedlib.models.reading.config_file import family_of
from embedlib.models.reading.config_keys import HARMLESS_KEYS
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.testing import fake_spec

MODELS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "named").glob("*.json"))
}
UNDERSTOOD = [name for name, model in MODELS.items() if "expected" in model]

NEEDED = {  # names of models that must be supported
    *("bge-small-en-v1.5", "bge-base-en-v1.5", "bge-large-en-v1.5", "bge-m3", "bge-en-icl"),
    *("SFR-Embedding-Mistral", "e5-mistral-7b-instruct", "mxbai-embed-large-v1"),
    *("snowflake-arctic-embed-l", "snowflake-arctic-embed-l-v2.0", "snowflake-arctic-embed-m-v2.0"),
    *("gte-base-en-v1.5", "gte-large-en-v1.5", "gte-multilingual-base"),
    *("Qwen3-Embedding-0.6B", "Qwen3-Embedding-4B", "Qwen3-Embedding-8B"),
    *("bge-multilingual-gemma2", "embeddinggemma-300m"),
    *("gte-modernbert-base", "nomic-embed-text-v1.5", "jina-embeddings-v2-base-en"),
}

# Select the layers with a window; without effect while `sliding_window` is null.
IDLE_KEYS = {"max_window_layers", "use_sliding_window"}
# Contains nothing that another file does not contain too.
IDLE_FILES = {"tokenizer_config.json"}


def load(folder: Path, files: dict[str, Any]) -> ModelSpec:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return read_model_files(folder).spec


def test_all_of_them_are_here() -> None:
    assert set(UNDERSTOOD) == NEEDED
    for model in MODELS.values():
        assert model["source"]


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_what_the_files_promise(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    expected = model["expected"]
    spec = load(tmp_path, model["files"])
    encoder = spec.encoder
    assert spec.pooling.modes == (expected["pooling"],)
    assert spec.pooling.include_prompt
    assert spec.max_seq_tokens == expected["max_seq_tokens"]
    assert spec.embedding_dim == expected["dim"]
    for listed in catalog():
        if listed.name == model["name"]:
            assert (listed.dim, listed.tokens) == (spec.embedding_dim, spec.max_seq_tokens)
    assert spec.is_normalized is expected["is_normalized"]
    assert encoder.is_causal is expected["is_causal"]
    window = expected["window"]  # a list if layers alternate
    assert set(encoder.windows) == set(window if isinstance(window, list) else [window])
    theta, factor = expected["rope_theta"], expected.get("ntk_factor")
    rope = None if theta is None else Rope(theta=theta)
    if factor is not None:
        rope = Rope(
            kind="linear",
            theta=factor * theta,
            factor=factor ** (2 / encoder.head_dim),
            original_max_positions=encoder.num_positions,
        )
    assert encoder.rope == rope
    config = model["files"]["config.json"]
    assert encoder_shapes(encoder)["tokens"] == (
        config["vocab_size"],
        config["hidden_size"],
    )


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_which_prompts_they_get(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    expected = model["expected"]
    spec = load(tmp_path, model["files"])
    prompts = Prompts(spec, Config(), known_model(model["name"]))
    query = prompts.resolve(role="query")
    assert query.prefix == expected["query"]
    assert query.suffix == ("\n<response>" if name == "bge-en-icl" else "")
    assert prompts.resolve(role="document").prefix == expected["document"]
    assert prompts.resolve().prefix == ""  # plain encode, as in sentence-transformers
    prompt_name = prompts.role_name("query")
    origin = None if prompt_name is None else prompts.origin(prompt_name)
    assert origin == expected["query_origin"]


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("intfloat/multilingual-e5-large", "query: ", "passage: "),
        ("nomic-ai/nomic-embed-text-v1.5", "search_query: ", "search_document: "),
        ("google/embeddinggemma-300m", "task: search result | query: ", "title: none | text: "),
        (
            "BAAI/bge-multilingual-gemma2",
            "<instruct>Given a web search query, retrieve relevant passages that answer the "
            "query.\n<query>",
            "",
        ),
        ("nomic-ai/modernbert-embed-base", "search_query: ", "search_document: "),
        (
            "WhereIsAI/UAE-Large-V1",
            "Represent this sentence for searching relevant passages: ",
            "",
        ),
        ("MongoDB/mdbr-leaf-ir", "Represent this sentence for searching relevant passages: ", ""),
        ("cl-nagoya/ruri-v3-310m", "検索クエリ: ", "検索文書: "),
        (
            "dmis-lab/UltraBERT-Embed-150M",
            "Instruct: Given a question, retrieve passages that answer the question\nQuery: ",
            "",
        ),
        ("google/embeddinggemma-2", "task: search result | query: ", "title: none | text: "),
        ("Alibaba-NLP/gte-modernbert-base", "", ""),
        ("BAAI/bge-m3", "", ""),
    ],
)
def test_prompts_of_models_whose_folder_says_nothing(name: str, query: str, document: str) -> None:
    prompts = Prompts(fake_spec(), Config(), known_model(name))
    assert prompts.resolve(role="query").prefix == query
    assert prompts.resolve(role="document").prefix == document


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("deepvk/USER2-small", "search_query", "search_document"),
        ("deepvk/USER2-base", "search_query", "search_document"),
        ("ai-forever/ru-en-RoSBERTa", "search_query", "search_document"),
        ("ai-forever/FRIDA", "search_query", "search_document"),
        ("retrieva-jp/amber-large", "Retrieval-query", "Retrieval-passage"),
    ],
)
def test_folders_that_call_their_prompts_otherwise(name: str, query: str, document: str) -> None:
    folder = {key: f"{key}: " for key in (query, document, "paraphrase")}
    prompts = Prompts(fake_spec(prompts=folder), Config(), known_model(name))
    assert prompts.resolve(role="query").prefix == f"{query}: "
    assert prompts.resolve(role="document").prefix == f"{document}: "
    assert prompts.resolve().prefix == ""
    # What was loaded without that prompt must not be gone on with.
    assert prompts.settings() != Prompts(fake_spec(prompts=folder), Config()).settings()


def changes(files: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a description of the change, and the files with one key changed or one file missing."""
    for file, content in files.items():
        if file in IDLE_FILES or not content:
            continue
        without = {name: files[name] for name in files if name != file}
        if file not in ("config.json", "config_sentence_transformers.json"):
            yield f"without {file}", without
        if not isinstance(content, dict):
            for index in range(2, len(content)):
                yield f"{file} without [{index}]", {**files, file: content[:index]}
            continue
        for key, value in content.items():
            if key in IDLE_KEYS | {"__version__", "default_prompt_name", "similarity_fn_name"}:
                continue
            if key == "max_position_embeddings" and "n_positions" in content:  # which wins
                continue
            family = family_of(JsonObject("config.json", files["config.json"]))
            harmless = HARMLESS_KEYS | family.harmless
            if file == "config.json" and (key in harmless - {"model_type"} or value is None):
                continue
            if value == _changed(value) or (key == "sliding_window" and value is None):
                continue
            changed = copy.deepcopy(content)
            changed[key] = _changed(value)
            yield f"{file}: {key} = {changed[key]!r}", {**files, file: changed}


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2
    if isinstance(value, str):
        return "relu" if value in ("gelu", "silu") else "another"
    return {**value, "query": "another: "} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_wrong_guess_is_impossible(name: str, tmp_path: Path) -> None:
    files = MODELS[name]["files"]
    right = load(tmp_path / "right", files)
    tried = 0
    for number, (what, changed) in enumerate(changes(files)):
        tried += 1
        try:
            spec = load(tmp_path / str(number), changed)
        except ModelUnsupportedError:
            continue
        assert spec != right, f"nothing noticed that {what}"
    assert tried > 10
