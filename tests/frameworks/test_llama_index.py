"""LlamaIndex with an Embedder in HuggingFaceEmbedding, a Reranker in SentenceTransformerRerank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embedlib import Embedder, Reranker
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


def test_reranked_nodes_are_the_same(
    reranker_folder: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    rerank = pytest.importorskip("llama_index.core.postprocessor").SentenceTransformerRerank
    schema = pytest.importorskip("llama_index.core.schema")

    def cross_encoder(model_name_or_path: str, max_length: int, **options: Any) -> Reranker:
        return Reranker(model_name_or_path, max_seq_tokens=max_length, **options)

    def ranked() -> tuple[Any, list[tuple[str, float]]]:
        given = [schema.NodeWithScore(node=schema.TextNode(text=text)) for text in texts[:9]]
        compute = rerank(model=reranker_folder, top_n=4, device="cpu")
        found = compute.postprocess_nodes(given, query_str=texts[0])
        return compute._model, [(node.text, float(node.score)) for node in found]

    _, theirs = ranked()
    monkeypatch.setattr(sentence_transformers, "CrossEncoder", cross_encoder)
    with pytest.warns(UserWarning, match="trust_remote_code is ignored"):
        model, ours = ranked()
    assert type(model) is Reranker
    assert [text for text, _ in ours] == [text for text, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([s for _, s in theirs], abs=1e-5)
