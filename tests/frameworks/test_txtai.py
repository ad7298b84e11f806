"""txtai with an Embedder as its external vectors, and in place of the class it loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder

txtai = pytest.importorskip("txtai")
sbert = pytest.importorskip("txtai.vectors.dense.sbert")

Close = Callable[[object, object], None]


def hits(index: Any, texts: list[str]) -> list[tuple[int, float]]:
    index.index(texts)
    return [hit for text in texts[:5] for hit in index.search(text, 3)]


def same(ours: list[tuple[int, float]], theirs: list[tuple[int, float]], close: Close) -> None:
    assert [row for row, _ in ours] == [row for row, _ in theirs]
    close([score for _, score in ours], [score for _, score in theirs])


def theirs(folder: str) -> Any:
    return txtai.Embeddings(path=folder, method="sentence-transformers", backend="numpy", gpu=False)


def test_a_function_of_an_embedder(
    folder: str, texts: list[str], embedder: Embedder, close: Close
) -> None:
    def encode(texts: list[str]) -> np.ndarray[Any, Any]:
        return np.asarray(embedder.encode(texts))

    ours = txtai.Embeddings(method="external", transform=encode, backend="numpy")
    same(hits(ours, texts), hits(theirs(folder), texts), close)


def test_its_own_vectors_with_an_embedder(
    folder: str, texts: list[str], close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = hits(theirs(folder), texts)
    monkeypatch.setattr(sbert, "SentenceTransformer", Embedder)
    ours = theirs(folder)
    assert type(ours.model.model) is Embedder
    same(hits(ours, texts), expected, close)
