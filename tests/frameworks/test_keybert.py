"""KeyBERT with an Embedder in a backend of four lines, as docs/frameworks.md shows."""

from __future__ import annotations

from typing import Any

import pytest

from embedlib import Embedder

keybert = pytest.importorskip("keybert")
backend = pytest.importorskip("keybert.backend")

TEXT = """Embedding models turn a text into a vector, so that texts of similar meaning lie close to
each other. A vector database stores the vectors of many documents and finds the nearest ones."""


class EmbedlibBackend(backend.BaseEmbedder):  # type: ignore[misc, name-defined]
    def embed(self, documents: Any, verbose: bool = False) -> Any:
        return self.embedding_model.encode(list(documents), show_progress_bar=verbose)


@pytest.mark.parametrize(
    "options", [{}, {"use_mmr": True, "diversity": 0.6, "keyphrase_ngram_range": (1, 2)}]
)
def test_keywords_are_the_same(embedder: Embedder, peer: Any, options: dict[str, Any]) -> None:
    ours, theirs = (
        keybert.KeyBERT(model).extract_keywords(TEXT, **options)
        for model in (EmbedlibBackend(embedder), peer)
    )
    assert [word for word, _ in ours] == [word for word, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([s for _, s in theirs], abs=2e-4)
