"""From a name to an opened model: what its name says of it, and which files are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.errors import (
    ConfigError,
    EngineBuildError,
    ModelNotFoundError,
    ModelUnsupportedError,
)
from embedlib.models.compiled.compile import compile_model
from embedlib.models.opening import OpenedModel, longest_sequence
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.testing.models.write import write_tiny_model
from embedlib.tuning import tune
from tests.tiny_models.sparse import write_sparse_model, write_token_weights
from tests.tiny_models.static import write_static_model

Folder = Callable[[str], Path]
PutOnHub = Callable[[str, Path], dict[str, Any]]

PROMPTED = "BAAI/bge-small-en-v1.5"
RERANKER = "Qwen/Qwen3-Reranker-0.6B"


def test_of_a_folder_nothing_is_known_but_its_files(tiny_folder: Folder) -> None:
    opened = OpenedModel.find(tiny_folder("bert"), Config())
    assert (opened.hub_name, opened.revision, opened.manifest) == (None, None, None)
    assert (opened.known.prompts, opened.template, opened.has_head) == ({}, None, False)
    opened.check_bytes()
    files = opened.read_files(with_head=False)
    assert files == read_model_files(tiny_folder("bert"))


def test_by_its_hub_name_a_models_prompts_are_known(
    tiny_folder: Folder, put_on_hub: PutOnHub
) -> None:
    config = Config(**put_on_hub(PROMPTED, tiny_folder("bert")))
    opened = OpenedModel.find(PROMPTED, config)
    assert opened.hub_name == PROMPTED
    assert opened.known.prompts != {}
    files = opened.read_files(with_head=False)
    assert (files.hub_name, files.hub_revision) == (PROMPTED, opened.revision)


def test_by_its_hub_name_a_reranker_has_a_template_and_is_no_embedding_model(
    tiny_folder: Folder, put_on_hub: PutOnHub
) -> None:
    folder = tiny_folder("qwen3-answers")  # its files are those of any language model
    config = Config(**put_on_hub(RERANKER, folder))
    opened = OpenedModel.find(RERANKER, config)
    assert opened.template == "qwen3-reranker"
    assert opened.has_head
    with pytest.raises(ModelUnsupportedError, match=f"^{RERANKER} is a reranker; use Reranker$"):
        opened.read_files(with_head=False)
    assert opened.read_files(with_head=True).spec.head is not None
    assert opened.read_source().spec == opened.read_files(with_head=True).spec


def test_the_template_of_the_options_comes_first(tiny_folder: Folder, put_on_hub: PutOnHub) -> None:
    options = put_on_hub(RERANKER, tiny_folder("qwen3-answers"))
    opened = OpenedModel.find(RERANKER, Config(**options, template="mxbai-rerank-v2"))
    assert opened.template == "mxbai-rerank-v2"


def test_an_engine_directory_has_the_name_of_its_model(
    tiny_folder: Folder, put_on_hub: PutOnHub, tmp_path: Path
) -> None:
    config = Config(**put_on_hub(PROMPTED, tiny_folder("bert")))
    source = OpenedModel.find(PROMPTED, config)
    out = compile_model(source.read_source(), "int8", (), config, out=tmp_path / "out")
    opened = OpenedModel.find(out, Config())
    assert opened.manifest is not None
    assert (opened.name, opened.revision) == (PROMPTED, source.revision)
    assert opened.known == source.known
    opened.check_bytes()
    with pytest.raises(ConfigError, match="compiled to int8; give the model it was made from"):
        opened.read_source()
    [weights] = out.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(EngineBuildError, match="is damaged"):
        opened.check_bytes()


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (partial(write_tiny_model, variant="late-bert"), "late-interaction"),
        (write_sparse_model, "sparse"),
        (write_token_weights, "sparse"),
        (write_static_model, "static"),
    ],
)
def test_a_model_of_one_precision_is_not_measured(
    write: Callable[[Path], Path], kind: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model")
    message = f"^{folder} is a {kind} model, which is computed in float32 alone: .* to verify or"
    for measure in (OpenedModel.find(folder, Config()).read_source, partial(tune, folder)):
        with pytest.raises(ModelUnsupportedError, match=message):
            measure()


def test_a_length_limit_of_the_options(tiny_folder: Folder) -> None:
    folder = tiny_folder("bert")
    config = Config(max_seq_tokens=9)
    opened = OpenedModel.find(folder, config)
    files = opened.read_files(with_head=False)
    assert files.spec.max_seq_tokens > 9
    limited = opened.limit_length(files, load_tokenizer(files))
    assert limited.spec.max_seq_tokens == 9
    assert limited.spec.max_seq_tokens_source == "option max_seq_tokens"
    assert opened.read_source() == limited
    too_long = OpenedModel.find(folder, Config(max_seq_tokens=100_000))
    with pytest.raises(ConfigError, match=r"^max_seq_tokens = 100000; this model allows 3 to \d+$"):
        too_long.read_source()


def test_a_length_limit_of_the_options_is_that_of_documents(tiny_folder: Folder) -> None:
    opened = OpenedModel.find(tiny_folder("late-bert"), Config(max_seq_tokens=9))
    files = opened.read_files(with_head=False)
    before, spec = files.spec, opened.limit_length(files, load_tokenizer(files)).spec
    assert before.late_interaction is not None
    assert spec.late_interaction == replace(before.late_interaction, document_tokens=9)
    assert spec.max_seq_tokens == max(9, before.late_interaction.query_tokens)


def test_a_length_limit_of_the_files_leaves_room_for_text(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_seq_length": 2}))
    opened = OpenedModel.find(folder, Config())
    files = opened.read_files(with_head=False)
    message = r"^sentence_bert_config.json: max_seq_length = 2 leaves no room .* at least 3$"
    with pytest.raises(ModelUnsupportedError, match=message):
        opened.limit_length(files, load_tokenizer(files))


def test_positions_that_are_rotated_end_where_the_engine_was_built_for(tiny_folder: Folder) -> None:
    config = Config(max_seq_tokens=9)
    learned, rotated = (
        OpenedModel.find(tiny_folder(variant), config).read_source().spec
        for variant in ("bert", "qwen3")
    )
    assert longest_sequence(learned) > 9
    assert longest_sequence(rotated) == 9


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        OpenedModel.find(tmp_path / "nowhere", Config())
