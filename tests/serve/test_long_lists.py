"""What is made of long lists is made by a thread: the event loop answers others meanwhile."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest

from embedlib.serve import routes
from embedlib.serve.dialects import classify, cohere, openai, rerank, tei
from embedlib.serve.metrics import Metrics
from tests.serve.conftest import Client

MANY = ["a", "bc", "def"] * 10


@pytest.mark.parametrize(
    ("path", "body", "module", "name"),
    [
        ("/v1/embeddings", {"input": MANY, "encoding_format": "bytes"}, openai, "_respond_bytes"),
        ("/v2/embed", {"texts": MANY, "embedding_types": ["binary"]}, cohere, "as_type"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": MANY}},
            tei,
            "similarity",
        ),
        ("/predict", {"inputs": [[text] for text in MANY]}, tei, "labelled"),
        ("/rerank", {"query": "q", "texts": MANY}, tei, "ranked"),
        ("/rerank", {"query": "q", "documents": MANY}, rerank, "ranked"),
        (
            "/score",
            {"text_1": "q", "text_2": MANY, "model": "embed"},
            rerank,
            "similarity_pairwise",
        ),
        ("/classify", {"input": MANY}, classify, "_described"),
        ("/classify", {"input": MANY, "raw_scores": True}, classify, "labelled"),
        ("/openapi.json", None, routes, "describe_routes"),
        ("/metrics", None, Metrics, "render"),
    ],
)
def test_a_thread_makes_them(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: Any,
    module: ModuleType | type,
    name: str,
) -> None:
    threads: list[str] = []
    make = getattr(module, name)

    def told(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return make(*arguments, **options)

    monkeypatch.setattr(module, name, told)
    answer = client.send("GET" if body is None else "POST", path, body)
    assert answer.status_code == 200, answer.text
    assert {thread.rpartition("_")[0] for thread in threads} == {"embedlib-serve-encode"}
