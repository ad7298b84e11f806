"""What is made of long lists is made by a thread: the event loop answers others meanwhile."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from embedlib.batching.tokenizing.token_ids import encode_one
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.serve import routes
from embedlib.serve.dialects import classify, cohere, cutting, openai, rerank, tei, tokens
from embedlib.serve.models import compute
from embedlib.serve.requests import exchange
from embedlib.serve.requests.exchange import MAX_BYTES_IN_LOOP
from embedlib.testing import write_tiny_model
from tests.serve.conftest import Client, MakeClient
from tests.tiny_models.sparse import write_sparse_model

MANY = ["a", "bc", "def"] * 10
write_bert = partial(write_tiny_model, variant="bert")


def note_threads(monkeypatch: pytest.MonkeyPatch, module: ModuleType | type, name: str) -> set[str]:
    """Return the names, without their numbers, of the threads that will have called a function."""
    threads: set[str] = set()
    make = getattr(module, name)

    def told(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return make(*arguments, **options)

    monkeypatch.setattr(module, name, told)
    return threads


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
        ("/predict", {"inputs": [[text] for text in MANY]}, tei, "label_scores"),
        ("/rerank", {"query": "q", "texts": MANY}, tei, "ranked"),
        ("/rerank", {"query": "q", "documents": MANY}, rerank, "ranked"),
        (
            "/score",
            {"text_1": "q", "text_2": MANY, "model": "embed"},
            rerank,
            "similarity_pairwise",
        ),
        ("/classify", {"input": MANY}, classify, "_described"),
        ("/classify", {"input": MANY, "raw_scores": True}, classify, "label_scores"),
        ("/v1/embeddings", {"input": "a" * MAX_BYTES_IN_LOOP}, exchange, "decode"),
        ("/openapi.json", None, routes, "describe_routes"),
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
    threads = note_threads(monkeypatch, module, name)
    routes._description.cache_clear()
    answer = client.send("GET" if body is None else "POST", path, body)
    assert answer.status_code == 200, answer.text
    assert threads == {"embedlib-serve-encode"}


@pytest.mark.parametrize(
    ("path", "body", "module", "name"),
    [
        ("/embed_all", {"inputs": MANY}, orjson, "dumps"),
        ("/embed_all", {"inputs": "a b c d e f g h " * 4}, orjson, "dumps"),
        ("/embed_sparse", {"inputs": "a b c d e f g h"}, exchange, "_written"),
        ("/tokenize", {"inputs": "a b c d e f g h " * 4}, exchange, "_written"),
        ("/pooling", {"input": "a b c d e f " * 4, "task": "token_embed"}, exchange, "_written"),
    ],
)
def test_a_thread_makes_what_each_token_has(
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    path: str,
    body: dict[str, Any],
    module: ModuleType,
    name: str,
) -> None:
    """A few texts may have many tokens, and many texts a few each."""
    write = write_sparse_model if path == "/embed_sparse" else write_bert
    client = make_client({"tiny": str(write(tmp_path / "model"))})
    threads = note_threads(monkeypatch, module, name)
    assert client.post(path, body)
    assert threads == {"embedlib-serve-encode"}


@pytest.mark.parametrize(
    ("given", "computes_alone", "is_fed"),
    [
        ("a" * compute.MAX_CHARS_IN_LOOP, False, False),
        ("a" * (compute.MAX_CHARS_IN_LOOP + 1), False, True),
        (["a"] * compute.MAX_TEXTS_IN_LOOP, False, False),
        (["a"] * (compute.MAX_TEXTS_IN_LOOP + 1), False, True),
        ("a", True, True),  # its engine computes it on that thread
        (["a", "b"], True, False),
    ],
)
def test_queries_that_take_long_to_tokenize_have_a_thread(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    given: Any,
    computes_alone: bool,
    is_fed: bool,
) -> None:
    threads = note_threads(monkeypatch, Tokenizer, "__call__")
    client.application.catalog.find("embed", "embed").computes_on_callers = computes_alone
    client.post("/v1/embeddings", {"input": given, "lane": "query"})
    assert threads == {"embedlib-serve-embed" if is_fed else ""}


@pytest.mark.parametrize("accept", ["application/json", openai.MSGPACK, openai.OCTETS])
def test_metrics_and_queries_wait_for_no_answer_that_is_written(
    client: Client, accept: str
) -> None:
    may_go_on = threading.Event()
    client.application._shared.encoder.submit(may_go_on.wait)
    try:
        assert client.send("GET", "/metrics").status_code == 200
        answer = client.send("POST", "/v1/embeddings", {"input": "a"}, headers={"accept": accept})
        assert answer.headers["content-type"] == accept
    finally:
        may_go_on.set()


def test_the_description_is_made_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask for it, without a key."""
    first = client.send("GET", "/openapi.json").content
    monkeypatch.setattr(routes, "describe_routes", None)
    assert client.send("GET", "/openapi.json").content == first


@pytest.mark.parametrize(
    ("path", "body", "module"),
    [
        ("/v2/embed", {"texts": MANY, "max_tokens": 1}, cutting),
        ("/tokenize", {"inputs": MANY}, tokens),
    ],
)
def test_a_tokenizer_that_takes_long_keeps_nobody_waiting(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    module: ModuleType,
) -> None:
    """And a client that leaves ends it."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def encode(tokenizer: Any, text: str, **options: Any) -> Any:
        seen.append(text)
        has_begun.set()
        may_go_on.wait()
        return encode_one(tokenizer, text, **options)

    monkeypatch.setattr(exchange, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(module, "encode_one", encode)

    async def work() -> None:
        async with client.http() as http:
            tokenizing = asyncio.ensure_future(http.post(path, json=body))
            try:
                await asyncio.to_thread(has_begun.wait)
                others = await http.post("/v1/embeddings", json={"input": MANY})
                assert len(others.json()["data"]) == len(MANY)
                tokenizing.cancel()
                with suppress(asyncio.CancelledError):
                    await tokenizing
            finally:
                may_go_on.set()

    client.run(work())
    assert seen == MANY[:1]
