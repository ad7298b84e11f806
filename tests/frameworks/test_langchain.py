"""LangChain's HuggingFaceEmbeddings with an Embedder, and beside EmbedlibEmbeddings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from embedlib import Embedder

huggingface = pytest.importorskip("langchain_huggingface")
langchain_embedlib = pytest.importorskip("langchain_embedlib")

Close = Callable[[object, object], None]


def test_huggingface_embeddings_take_an_embedder(
    folder: str, texts: list[str], close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = huggingface.HuggingFaceEmbeddings(model_name=folder)
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Embedder)
    ours = huggingface.HuggingFaceEmbeddings(model_name=folder)
    assert type(ours._client) is Embedder
    close(ours.embed_documents(texts), theirs.embed_documents(texts))
    close(ours.embed_query(texts[0]), theirs.embed_query(texts[0]))


def test_embedlib_embeddings_are_huggingface_embeddings(
    folder: str, texts: list[str], close: Close
) -> None:
    options = {"model_name": folder, "encode_kwargs": {"normalize_embeddings": True}}
    theirs = huggingface.HuggingFaceEmbeddings(**options)
    with langchain_embedlib.EmbedlibEmbeddings(**options) as ours:
        close(ours.embed_documents(texts), theirs.embed_documents(texts))
        close(ours.embed_query(texts[0]), theirs.embed_query(texts[0]))
