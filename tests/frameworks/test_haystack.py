"""Haystack's four components for dense models and rerankers, with an Embedder or a Reranker."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from embedlib import Embedder, Reranker

haystack = pytest.importorskip("haystack")
PREFIX = "haystack_integrations.components"
embedders = pytest.importorskip(f"{PREFIX}.embedders.sentence_transformers")
rankers = pytest.importorskip(f"{PREFIX}.rankers.sentence_transformers")
backend = pytest.importorskip(f"{embedders.__name__}.embedding_backend.backend")
similarity = pytest.importorskip(f"{rankers.__name__}.sentence_transformers_similarity")
diversity = pytest.importorskip(f"{rankers.__name__}.sentence_transformers_diversity")

Close = Callable[[object, object], None]
Make = Callable[[], Any]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, Make], tuple[Any, Any]]:
    """Return a function that makes a component with the peer's class and with embedlib's."""

    def made(module: ModuleType, make: Make) -> tuple[Any, Any]:
        monkeypatch.setattr(backend._SentenceTransformersEmbeddingBackendFactory, "_instances", {})
        theirs = make()
        theirs.warm_up()
        for name, ours in (("SentenceTransformer", Embedder), ("CrossEncoder", Reranker)):
            monkeypatch.setattr(module, name, ours, raising=False)
        monkeypatch.setattr(backend._SentenceTransformersEmbeddingBackendFactory, "_instances", {})
        ours = make()
        ours.warm_up()
        return ours, theirs

    return made


def documents(texts: list[str]) -> list[Any]:
    return [haystack.Document(content=text) for text in texts]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": True, "truncate_dim": 64, "batch_size": 4},
        {"precision": "binary"},
        {"prefix": "query: ", "suffix": " ?"},
    ],
)
def test_text_embedder(
    folder: str, texts: list[str], both: Any, close: Close, options: dict[str, Any]
) -> None:
    ours, theirs = both(
        backend,
        lambda: embedders.SentenceTransformersTextEmbedder(
            model=folder, progress_bar=False, **options
        ),
    )
    assert type(ours.embedding_backend.model) is Embedder
    for text in texts[:5]:
        close(ours.run(text)["embedding"], theirs.run(text)["embedding"])


def test_document_embedder(folder: str, texts: list[str], both: Any, close: Close) -> None:
    ours, theirs = both(
        backend,
        lambda: embedders.SentenceTransformersDocumentEmbedder(model=folder, progress_bar=False),
    )
    results = [component.run(documents(texts))["documents"] for component in (ours, theirs)]
    close(*([document.embedding for document in result] for result in results))


@pytest.mark.parametrize("options", [{}, {"similarity": "dot_product", "top_k": 3}])
def test_diversity_ranker(
    folder: str, texts: list[str], both: Any, options: dict[str, Any]
) -> None:
    ours, theirs = both(
        diversity, lambda: rankers.SentenceTransformersDiversityRanker(model=folder, **options)
    )
    assert type(ours.model) is Embedder
    results = [
        component.run(query=texts[0], documents=documents(texts[1:]))["documents"]
        for component in (ours, theirs)
    ]
    assert [d.content for d in results[0]] == [d.content for d in results[1]]


@pytest.mark.parametrize("options", [{}, {"scale_score": False, "top_k": 3}])
def test_similarity_ranker(
    reranker_folder: str, texts: list[str], both: Any, close: Close, options: dict[str, Any]
) -> None:
    ours, theirs = both(
        similarity,
        lambda: rankers.SentenceTransformersSimilarityRanker(model=reranker_folder, **options),
    )
    assert type(ours._cross_encoder) is Reranker
    results = [
        component.run(query=texts[0], documents=documents(texts[1:]))["documents"]
        for component in (ours, theirs)
    ]
    assert [d.content for d in results[0]] == [d.content for d in results[1]]
    close(*([document.score for document in result] for result in results))
