"""LlamaIndex's HuggingFaceEmbedding with an Embedder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embedlib import Embedder
from embedlib.errors import ConfigError

pytest.importorskip("llama_index.core")
base = pytest.importorskip("llama_index.embeddings.huggingface.base")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 8},
        {"query_instruction": "question: ", "text_instruction": "text: "},
        {"device": "cpu", "normalize": False, "embed_batch_size": 3},
    ],
)
def test_vectors_are_the_same(
    folder: str,
    texts: list[str],
    close: Callable[[object, object], None],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    theirs = base.HuggingFaceEmbedding(model_name=folder, **options)
    monkeypatch.setattr(base, "SentenceTransformer", Embedder)
    ours = base.HuggingFaceEmbedding(model_name=folder, **options)
    assert type(ours._model) is Embedder
    close(ours.get_text_embedding_batch(texts), theirs.get_text_embedding_batch(texts))
    close(ours.get_query_embedding(texts[0]), theirs.get_query_embedding(texts[0]))


def test_a_pool_of_processes_is_refused_with_the_way_to_go(
    folder: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SentenceTransformer", Embedder)
    ours = base.HuggingFaceEmbedding(model_name=folder, parallel_process=True)
    monkeypatch.setattr(base.HuggingFaceEmbedding._embed_with_retry.retry, "sleep", lambda _: None)
    with pytest.raises((ConfigError, AttributeError), match="device="):
        ours.get_text_embedding_batch(texts)
