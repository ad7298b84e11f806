"""Rerankers and classifiers in 8 bits: compiled, opened again, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from embedlib import Classifier, Embedder, Reranker
from embedlib.cli import main
from embedlib.config import Config
from embedlib.engines.select import plan_engine
from embedlib.errors import ConfigError, ModelUnsupportedError
from embedlib.fidelity import (
    FidelityTexts,
    Gate,
    built_in_texts,
    compile_to_gate,
    to_gate,
    verify,
)
from embedlib.fidelity.model import open_model
from embedlib.fidelity.outputs import NUM_CANDIDATES, NUM_ROWS_PER_QUERY, _pairs
from embedlib.models.compiled.cache import compiled_versions
from embedlib.models.compiled.engine_folder import verify_engine_folder
from embedlib.models.compiled.fidelity_report import write_report
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing.models.write import write_tiny_model
from tests.machines import CUDA, fake_machine, with_cpu
from tests.reference_engine import reference_engine

PAIRS = [("who ran", "two dogs ran"), ("who ran", "the cat sat on the mat")]
WORDS = ("the", "a", "two", "my", "no", "our", "this", "that", "one", "it")
DOCUMENTS = tuple(f"{word} sat on the mat" for word in WORDS)
TEXTS = FidelityTexts(("a cat", "who ran", "two"), DOCUMENTS)


@pytest.fixture
def config(new_cache: Path) -> Config:
    return Config(engine_cache_dir=new_cache, threads=2)


def compile(*arguments: object) -> None:
    done = CliRunner().invoke(main, ["compile", *map(str, arguments)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("variant", ["bert-cross-encoder", "modernbert-reranker"])
def test_a_reranker_in_int8(
    variant: str, tiny_folder: Callable[[str], Path], config: Config, tmp_path: Path
) -> None:
    folder, out = tiny_folder(variant), tmp_path / "out"
    compile(folder, "--precision", "int8", "--out", out)
    assert verify_engine_folder(out).precision == "int8"
    scores = {}
    for name, precision in ((folder, "float32"), (folder, "int8"), (out, "auto")):
        with Reranker(name, config=replace(config, precision=precision)) as model:
            scores[name, precision] = model.predict(PAIRS, raw_scores=True)
    right, fresh, stored = scores.values()
    np.testing.assert_array_equal(fresh, stored)
    assert 1e-5 < np.abs(stored - right).max() < 0.2
    with pytest.raises(ModelUnsupportedError, match="is a reranker or classifier; use Reranker"):
        Embedder(out, config=config)


@pytest.mark.parametrize("variant", ["qwen2-classifier", "bert-classifier"])
def test_a_classifier_in_int8(
    variant: str, tiny_folder: Callable[[str], Path], config: Config, tmp_path: Path
) -> None:
    folder, out = tiny_folder(variant), tmp_path / "out"
    compile(folder, "--precision", "int8", "--out", out)
    scores = {}
    for name, precision in ((folder, "float32"), (folder, "int8"), (out, "auto")):
        with Classifier(name, config=replace(config, precision=precision)) as model:
            scores[name, precision] = model.predict_scores(DOCUMENTS, raw_scores=True)
    right, fresh, stored = scores.values()
    np.testing.assert_array_equal(fresh, stored)
    assert 1e-5 < np.abs(stored - right).max() < 0.2


def test_a_reranker_asked_with_a_template(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, out = tiny_folder("qwen3-asked"), tmp_path / "out"
    compile(folder, "--precision", "int8", "--out", out, "--template", "qwen3-reranker")
    with Reranker(out, config=Config(template="qwen3-reranker")) as model:
        assert model.predict(PAIRS).shape == (2,)


def test_what_asks_in_words_is_known_by_template_or_hub_name(
    tiny_folder: Callable[[str], Path],
    config: Config,
    put_on_hub: Callable[[str, Path], dict[str, Any]],
) -> None:
    folder = tiny_folder("qwen3-answers")  # its files are those of any language model
    assert open_model(folder, config).kind is Embedder
    given = open_model(folder, replace(config, template="qwen3-reranker"))
    assert given.kind is Reranker
    name = "Qwen/Qwen3-Reranker-0.6B"
    known = open_model(name, replace(config, **put_on_hub(name, folder)))
    assert known.kind is Reranker
    assert known.files.spec == given.files.spec


def test_a_row_of_a_reranker_is_a_query_and_candidates_of_all_lengths() -> None:
    texts = built_in_texts(512)
    pairs = _pairs(texts)
    num_rows = len(texts.queries) * NUM_ROWS_PER_QUERY
    assert num_rows >= 100
    assert len(pairs) == num_rows * NUM_CANDIDATES
    for row in range(num_rows):
        queries, documents = zip(*pairs[row * NUM_CANDIDATES :][:NUM_CANDIDATES], strict=True)
        assert set(queries) == {texts.queries[row // NUM_ROWS_PER_QUERY]}
        places = sorted(texts.documents.index(document) for document in documents)
        assert len(set(places)) == NUM_CANDIDATES
        assert np.diff(places).max() <= len(texts.documents) / NUM_CANDIDATES
    assert len(set(pairs)) == len(pairs)


def test_the_rows_of_a_reranker(tiny_folder: Callable[[str], Path], config: Config) -> None:
    model = open_model(tiny_folder("bert-reranker"), config)
    found = model.embed(reference_engine(model, load_weights(model.files)), TEXTS).all
    assert found.shape == (6, NUM_CANDIDATES)
    assert model.row_texts(TEXTS) == ("a cat", "a cat", "who ran", "who ran", "two", "two")
    with Reranker(tiny_folder("bert-reranker"), config=config) as reranker:
        pairs = _pairs(TEXTS)[2 * NUM_CANDIDATES : 3 * NUM_CANDIDATES]
        scores = reranker.predict(pairs, raw_scores=True)
    np.testing.assert_allclose(found[2], scores - scores.mean(), atol=1e-5)
    assert scores.std() > 1e-3
    few = FidelityTexts(TEXTS.queries, DOCUMENTS[:1])
    engine = reference_engine(model, load_weights(model.files))
    with pytest.raises(ConfigError, match=r"^texts has 3 queries and 1 documents; a reranker is"):
        model.embed(engine, few)


def test_the_rows_of_a_classifier(tiny_folder: Callable[[str], Path], config: Config) -> None:
    model = open_model(tiny_folder("qwen2-classifier"), config)
    found = model.embed(reference_engine(model, load_weights(model.files)), TEXTS).all
    assert model.row_texts(TEXTS) == TEXTS.all
    with Classifier(tiny_folder("qwen2-classifier"), config=config) as classifier:
        numbers = classifier.predict_scores(TEXTS.all, raw_scores=True)
    np.testing.assert_allclose(found, numbers, atol=1e-5)


def test_the_rows_of_a_reward_model(config: Config, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "llama-reward")
    assert open_model(folder, config).kind is Reranker  # nothing says that it is not
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    model = open_model(folder, config)
    assert model.kind is Classifier
    found = model.embed(reference_engine(model, load_weights(model.files)), TEXTS).all
    with Classifier(folder, config=config) as classifier:
        numbers = classifier.predict_scores(TEXTS.all, raw_scores=True)[:, 0]
    assert found.shape == (13, NUM_CANDIDATES)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(found[0, 1] - found[0, 0], numbers[1] - numbers[0], atol=1e-4)
    np.testing.assert_allclose(found[12, 1] - found[12, 0], numbers[0] - numbers[12], atol=1e-4)


@pytest.mark.parametrize("variant", ["bert-reranker", "bert-classifier"])
def test_verify_measures_scores(
    variant: str, tiny_folder: Callable[[str], Path], new_cache: Path
) -> None:
    config = Config(engine_cache_dir=new_cache, threads=2, precision="int8")
    texts = FidelityTexts(("a cat", "who ran") * 25, DOCUMENTS * 5)
    report = verify(tiny_folder(variant), texts=texts, config=config).report
    assert report.num_texts == 100
    assert 0.99 < report.mean < 0.999999
    assert report.top10_overlap is None
    assert report.worst[0].text in texts.all
    files = read_model_files(tiny_folder(variant), with_head=True)
    [version] = compiled_versions(files, config)
    assert version.report == report


def test_scores_that_were_measured_say_nothing_of_the_vectors_of_the_same_files(
    tiny_folder: Callable[[str], Path], config: Config
) -> None:
    folder = tiny_folder("qwen3-answers")
    asked = replace(config, precision="int8", template="qwen3-reranker")
    texts = FidelityTexts(("a cat", "who ran") * 25, DOCUMENTS)
    # int8 is faster there, so that `auto` takes it where it was measured.
    machine = with_cpu(fake_machine(), "avx512_vnni")
    report = verify(folder, texts=texts, config=asked, machine=machine).report
    assert report.template is not None
    [version] = compiled_versions(read_model_files(folder), config)
    assert version.report == report, "pairs count, and not texts"
    write_report(version.folder, replace(report, mean=1.0, p1=1.0))
    files = read_model_files(folder, with_head=True, template="qwen3-reranker")
    assert plan_engine(files, config, machine=machine).precision.name == "int8"
    plan = plan_engine(read_model_files(folder), config, machine=machine)
    assert plan.precision.name == "float32"


@pytest.mark.parametrize(
    ("variant", "texts", "message"),
    [
        ("bert", FidelityTexts((), ()), "texts is empty; give one text or more"),
        ("llama-reward", FidelityTexts((), ("a cat",)), "is measured on 2 or more"),
        (
            "bert-reranker",
            FidelityTexts(("a cat",), ("a",)),
            "is measured on at least 1 query and 2",
        ),
    ],
)
def test_too_few_texts_to_measure_on(
    variant: str, texts: FidelityTexts, message: str, config: Config, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "model", variant)
    if variant == "llama-reward":
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ConfigError, match=message):
        verify(folder, texts=texts, config=replace(config, precision="int8"))


def test_layers_of_a_reranker_are_searched(
    tiny_folder: Callable[[str], Path], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="FP8 is emulated with torch")
    monkeypatch.setattr(to_gate, "MIN_TEXTS", 1)
    folder, comparison = compile_to_gate(
        tiny_folder("bert-reranker"),
        "fp8",
        gate=Gate(mean=0.9, p1=0),
        texts=TEXTS,
        config=config,
        machine=fake_machine(packages=CUDA),
    )
    assert comparison.report.num_texts == 6
    assert 0.9 < comparison.report.mean < 0.999999
    assert verify_engine_folder(folder).precision == "fp8"


@pytest.mark.parametrize(
    ("variant", "template"), [("bert-reranker", None), ("qwen3-answers", "qwen3-reranker")]
)
def test_layers_of_a_reranker_are_searched_on_two_documents(
    variant: str,
    template: Any,
    tiny_folder: Callable[[str], Path],
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(to_gate, "MIN_TEXTS", 1)
    texts = FidelityTexts(TEXTS.queries, ("a cat", "two dogs ran"))
    anything, config = Gate(mean=0, p1=0), replace(config, template=template)
    _, comparison = compile_to_gate(
        tiny_folder(variant), "int8", gate=anything, texts=texts, config=config
    )
    assert comparison.report.num_texts == 6
