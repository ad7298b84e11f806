"""Models with a head: their stored outputs, and what each part of a head changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.spec import Dense, LayerNorm, ModelSpec, Normalize, Pooling
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.models.weights.weight_files import weights_digest
from embedlib.testing import check_engine, make_batch
from embedlib.testing.models.table import SCORING_VARIANTS
from tests.waiting import WAIT_SECONDS

Array = NDArray[np.float32]
Stored = dict[str, NDArray[Any]]
GOLDENS = Path(__file__).parents[2] / "goldens" / "heads"
TOLERANCE = 1e-4
"""Relative to the norm of all numbers together."""


def _read(folder: Path, variant: str) -> ModelFiles:
    template = SCORING_VARIANTS[variant].template
    return read_model_files(folder, with_head=True, template=template)


def _stored(variant: str) -> Stored:
    with np.load(GOLDENS / f"{variant}.npz") as stored:
        return {name: stored[name] for name in stored.files}


@pytest.fixture(scope="module")
def run(
    compile_graph: Callable[[ModelSpec, ArraysByRole], Callable[[Batch], Array]],
) -> Callable[..., Array]:
    """Return a function that runs the stored ids of pairs as one padded batch."""

    def run(files: ModelFiles, stored: Stored) -> Array:
        lengths = stored["pairs.lengths"]
        batch = make_batch(
            np.split(stored["pairs.ids"], np.cumsum(lengths)[:-1]),
            num_type0_tokens=stored.get("pairs.num_first_tokens", lengths),
        )
        return compile_graph(files.spec, load_weights(files))(batch)

    return run


def _run_engine(spec: ModelSpec, weights: Mapping[str, Array], batch: Batch) -> Array:
    engine = OpenVINOEngine(spec, weights, Layout(threads=1))
    done = threading.Event()
    pending = engine.submit(batch, done.set)
    assert done.wait(WAIT_SECONDS)
    numbers = pending.result()
    engine.close()
    return numbers


def _distance(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("variant", SCORING_VARIANTS)
def test_the_stored_scores_differ_by_more_than_the_tolerance(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    # The tests of Reranker and Classifier compare what these compute with them.
    numbers = _stored(variant)["pairs.numbers"]
    files = _read(tiny_folder(variant), variant)
    assert numbers.shape == (len(numbers), files.spec.embedding_dim)
    assert (numbers.std(axis=0) > 100 * TOLERANCE * np.abs(numbers).max()).all()


def test_the_stored_scores_try_what_they_should() -> None:
    # Token types, pairs of many lengths, and a last token that is the padding token.
    bert = _stored("bert-reranker")
    assert (bert["pairs.num_first_tokens"] < bert["pairs.lengths"]).any()
    assert len(set(bert["pairs.lengths"].tolist())) > 4
    qwen2 = _stored("qwen2-classifier")
    assert (qwen2["texts.ids"][np.cumsum(qwen2["texts.lengths"]) - 1] == 0).all()


@pytest.mark.parametrize("variant", SCORING_VARIANTS)
def test_the_stored_scores_were_made_with_these_weights(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    # These digests are of weights whose names transformers has read.
    stored = json.loads((GOLDENS / "weights.json").read_text())
    assert weights_digest(_read(tiny_folder(variant), variant), FileHashes()) == stored[variant]


def test_every_variant_has_stored_scores() -> None:
    assert {path.stem for path in GOLDENS.glob("*.npz")} == set(SCORING_VARIANTS)


@pytest.mark.parametrize("variant", ["bert-reranker", "llama-reward"])
def test_the_engine_keeps_its_promises(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    files = _read(tiny_folder(variant), variant)
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1))
    # Unlike vectors of unit length, scores may be large.
    check_engine(engine, files.spec, tolerance=1e-4)


@pytest.mark.parametrize("variant", ["bert", "qwen3"])
def test_without_pooling_every_token_has_a_vector(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    files = read_model_files(tiny_folder(variant))
    weights = load_weights(files)
    dim = files.spec.encoder.hidden_size
    spec = replace(files.spec, modules=(Normalize(),), embedding_dim=dim)
    engine = OpenVINOEngine(spec, weights, Layout(threads=1))
    assert engine.limits.is_per_token
    check_engine(engine, spec)


def test_the_mean_of_the_tokens_is_what_mean_pooling_gives(
    tiny_folder: Callable[[str], Path], run: Callable[..., Array]
) -> None:
    files = read_model_files(tiny_folder("bert-bare"))
    assert files.spec.modules == (Pooling(modes=("mean",)),)
    ids = np.array([2, 30, 31, 3, 2, 40, 3], np.int32)
    lengths = np.array([4, 3], np.int32)
    stored = {"pairs.ids": ids, "pairs.lengths": lengths}
    bare = replace(files.spec, modules=())
    tokens = _run_engine(
        bare, load_weights(files), make_batch(np.split(ids, np.cumsum(lengths)[:-1]))
    )
    assert tokens.shape == (7, files.spec.encoder.hidden_size)
    means = np.stack([tokens[:4].mean(axis=0), tokens[4:].mean(axis=0)])
    np.testing.assert_allclose(means, run(files, stored), atol=1e-5)


def test_modules_behind_no_pooling_are_applied_to_every_token(
    tiny_folder: Callable[[str], Path], run: Callable[..., Array]
) -> None:
    # Dense, LayerNorm and Normalize, at the positions of their weights.
    files = read_model_files(tiny_folder("bert-cls-dense"))
    pooling, *others = files.spec.modules
    assert pooling == Pooling(modes=("cls",))
    assert [type(module) for module in others] == [Dense, LayerNorm, Normalize]
    weights = load_weights(files)
    moved = {role: weights[role] for role in weights if not role.startswith("modules.")}
    for position in range(1, 3):
        for role in weights:
            if role.startswith(f"modules.{position}."):
                moved[role.replace(str(position), str(position - 1), 1)] = weights[role]
    spec = replace(files.spec, modules=tuple(others))
    ids = np.array([2, 30, 31, 3], np.int32)
    tokens = _run_engine(spec, moved, make_batch([ids]))
    expected = run(files, {"pairs.ids": ids, "pairs.lengths": np.array([4], np.int32)})
    assert tokens.shape == (4, 20)
    np.testing.assert_allclose(tokens[:1], expected, atol=1e-5)


# Every field of a head's modules changes the numbers.


def _with_module(files: ModelFiles, position: int, **changes: Any) -> ModelFiles:
    modules = list(files.spec.modules)
    modules[position] = replace(modules[position], **changes)
    return replace(files, spec=replace(files.spec, modules=tuple(modules)))


CHANGES: dict[str, tuple[str, Callable[[ModelFiles], ModelFiles]]] = {
    "cls": ("bert-reranker", lambda files: _with_module(files, 0, modes=("mean",))),
    "mean": ("modernbert-reranker", lambda files: _with_module(files, 0, modes=("cls",))),
    "last_token": ("llama-reward", lambda files: _with_module(files, 0, modes=("cls",))),
    "skipped token": (
        "qwen2-classifier",
        lambda files: _with_module(files, 0, skipped_token_id=None),
    ),
    "tanh": ("bert-reranker", lambda files: _with_module(files, 1, activation="relu")),
    "relu": ("distilbert-classifier", lambda files: _with_module(files, 1, activation="tanh")),
    "silu": ("modernbert-classifier", lambda files: _with_module(files, 1, activation="gelu")),
    "eps": ("modernbert-reranker", lambda files: _with_module(files, 2, eps=0.5)),
    "true token": (
        "qwen3-logit-score",
        lambda files: replace(files, module_tensors={1: AnswerRows(None, 301, 17)}),
    ),
    "false token": (
        "qwen3-logit-score",
        lambda files: replace(files, module_tensors={1: AnswerRows(None, 300, None)}),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_head_makes_other_numbers(
    name: str, tiny_folder: Callable[[str], Path], run: Callable[..., Array]
) -> None:
    variant, change = CHANGES[name]
    files = _read(tiny_folder(variant), variant)
    stored = _stored(variant)
    changed = change(files)
    assert changed != files
    assert _distance(run(changed, stored), stored["pairs.numbers"]) > 10 * TOLERANCE


def test_the_type_of_a_token_makes_other_numbers(
    tiny_folder: Callable[[str], Path], run: Callable[..., Array]
) -> None:
    stored = _stored("bert-reranker")
    stored["pairs.num_first_tokens"] = stored["pairs.lengths"]
    numbers = run(_read(tiny_folder("bert-reranker"), "bert-reranker"), stored)
    assert _distance(numbers, stored["pairs.numbers"]) > 10 * TOLERANCE
