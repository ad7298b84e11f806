"""Chroma's function of sentence-transformers with an Embedder, as docs/frameworks.md shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib import Embedder

chromadb = pytest.importorskip("chromadb")
functions = pytest.importorskip("chromadb.utils.embedding_functions")
sentence_transformers = pytest.importorskip("sentence_transformers")


def make(folder: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the function with a model that it makes now."""
    kind = functions.SentenceTransformerEmbeddingFunction
    monkeypatch.setattr(kind, "models", {})
    return kind(folder)


def test_a_filled_collection_stays_as_it_is(
    folder: str,
    texts: list[str],
    tmp_path: Path,
    close: Callable[[object, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path), settings=settings)
    theirs = client.create_collection("docs", embedding_function=make(folder, monkeypatch))
    theirs.add(ids=[str(row) for row, _ in enumerate(texts)], documents=texts)
    expected = theirs.query(query_texts=texts[:3], n_results=2)

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", Embedder)
    function = make(folder, monkeypatch)
    assert type(function._model) is Embedder
    ours = client.get_or_create_collection("docs", embedding_function=function)
    found = ours.query(query_texts=texts[:3], n_results=2)
    assert found["ids"] == expected["ids"]
    close(found["distances"], expected["distances"])
    close(function(texts), theirs.get(include=["embeddings"])["embeddings"])


def test_vectors_are_taken_and_asked_for(
    embedder: Embedder, texts: list[str], tmp_path: Path
) -> None:
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path), settings=settings)
    collection = client.create_collection("docs")
    ids = [str(row) for row, _ in enumerate(texts)]
    collection.add(ids, embeddings=embedder.encode_document(texts))
    found = collection.query(query_embeddings=embedder.encode_query([texts[1]]), n_results=1)
    assert found["ids"] == [["1"]]
