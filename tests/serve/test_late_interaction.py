"""Late-interaction models on the server: Jina's `/v1/multi-vector`, and ranking by MaxSim."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import embedlib
from embedlib import Embedder
from embedlib.indexing import Document
from embedlib.serve import create_app
from embedlib.serve.background import Background
from embedlib.serve.models import compute as compute_module
from embedlib.serve.routes import COMPUTING
from embedlib.testing import fake_embedder
from embedlib.testing.models.write import write_tiny_model
from tests.serve.conftest import Client

QUESTIONS = ["river through the city", "a fox"]
TEXTS = ["the quick brown fox", "a small city, a large river.", "data base", "hello world"]
LETTERS = "q w e r t y"
LONG = "the quick brown fox " * 40
MakeServer = Callable[..., Client]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("late") / "model", "late-stanford")


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Embedder]:
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        yield embedder


@pytest.fixture
def serve() -> Iterator[MakeServer]:
    made: list[Client] = []

    def start(models: dict[str, Any], **options: Any) -> Client:
        made.append(Client(create_app(models, **options)))
        made[-1].start()
        return made[-1]

    yield start
    for client in made:
        client.close()


@pytest.fixture
def client(serve: MakeServer, folder: Path) -> Client:
    return serve({"late": str(folder)})


def maxsim(embedder: Embedder, question: str, texts: list[str]) -> NDArray[np.float32]:
    vectors = embedder.encode_document(texts)
    return np.asarray(embedder.similarity(embedder.encode_query(question), vectors))[0]


def test_vectors_are_those_of_the_embedder(client: Client, embedder: Embedder) -> None:
    for role, encode in (
        ("query", embedder.encode_query),
        ("document", embedder.encode_document),
        (None, embedder.encode_document),
    ):
        answer = client.post("/v1/multi-vector", {"input": TEXTS, "input_type": role})
        assert [row["index"] for row in answer["data"]] == [0, 1, 2, 3]
        assert answer["data"][0]["object"] == "embeddings"
        assert answer["usage"]["total_tokens"] > 0
        for row, expected in zip(answer["data"], encode(TEXTS), strict=True):
            np.testing.assert_allclose(row["embeddings"], expected, atol=1e-6)
    counts = client.send("GET", "/metrics").text
    for lane, num_requests in (("query", 1), ("bulk", 2)):
        assert f'requests_total{{model="late",lane="{lane}"}} {num_requests}' in counts


def test_the_tokens_of_its_texts_are_counted_at_the_door(client: Client) -> None:
    model = client.application.catalog.find("late", "embed_multi_vector")
    for _ in range(20):  # each letter is a token
        answer = client.post("/rerank", {"query": LETTERS, "documents": [LETTERS] * 9})
    load = model.estimate.load_of([LETTERS] * 10, 10 * len(LETTERS))
    assert load.tokens == pytest.approx(answer["usage"]["total_tokens"], rel=0.2)


def test_base64_is_of_each_token(client: Client, embedder: Embedder) -> None:
    (expected,) = embedder.encode_document([TEXTS[0]])
    dim = expected.shape[1]
    body = {"input": TEXTS[0], "dimensions": dim}
    for field in ("embedding_type", "encoding_format"):
        (row,) = client.post("/v1/multi-vector", body | {field: "base64"})["data"]
        found = [np.frombuffer(base64.b64decode(token), "<f4") for token in row["embeddings"]]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    status, error = client.refuse("/v1/multi-vector", body | {"dimensions": dim - 1})
    assert status == 400
    assert f"late has {dim}, leave it out" in error["error"]["message"]


def test_pooling_gives_the_vectors_of_tokens(client: Client, embedder: Embedder) -> None:
    asked = {"input": TEXTS, "input_type": "query"}
    for named in ({}, {"task": "token_embed"}):
        answer = client.post("/pooling", asked | named)
        assert answer["data"][1]["object"] == "pooling"
        for row, expected in zip(answer["data"], embedder.encode_query(TEXTS), strict=True):
            np.testing.assert_allclose(row["data"], expected, atol=1e-6)
    body = {"input": TEXTS[0], "input_type": "document", "encoding_format": "base64"}
    (row,) = client.post("/pooling", body)["data"]
    (expected,) = embedder.encode_document(TEXTS[:1])
    found = np.frombuffer(base64.b64decode(row["data"]), "<f4").reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for wrong, words in (
        ({"input_type": None}, "input_type is missing: a late-interaction model computes"),
        ({"task": "embed"}, "no model here can embed"),
        ({"task": "reward"}, "it must be classify or embed or token_embed"),
        ({"dimensions": 8}, "POST /v1/embeddings cuts vectors"),
        ({"use_activation": False}, "vectors have the length that the model gives them"),
    ):
        status, error = client.refuse("/pooling", asked | wrong)
        assert status == 400
        assert words in error["error"]["message"]


def test_it_says_what_it_is(client: Client) -> None:
    (model,) = client.send("GET", "/v1/models").json()["data"]
    assert (model["task"], model["tasks"]) == ("embed_multi_vector", ["embed_multi_vector"])
    assert client.send("GET", "/ready").status_code == 200
    assert client.application.catalog.find(None, "embed_multi_vector").answered_at > 0
    info = client.send("GET", "/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "multi_vector"}}
    assert client.post("/tokenize", {"inputs": TEXTS[:1]})[0]
    for path, body in (
        ("/v1/embeddings", {"input": TEXTS}),
        ("/embed_all", {"inputs": TEXTS}),
        ("/", {"inputs": TEXTS}),
    ):
        status, error = client.refuse(path, body)
        assert status in (400, 424)
        assert "embed_multi_vector (POST /v1/multi-vector)" in str(error)


def test_documents_are_ranked_by_maxsim(client: Client, embedder: Embedder) -> None:
    scores = maxsim(embedder, QUESTIONS[0], TEXTS)
    order = np.argsort(-scores).tolist()
    body = {"query": QUESTIONS[0], "documents": TEXTS}
    results = client.post("/v1/rerank", body)["results"]
    assert [row["index"] for row in results] == order
    found = [row["relevance_score"] for row in results]
    np.testing.assert_allclose(found, scores[order], rtol=1e-4)
    plain = client.post("/rerank", {"query": QUESTIONS[0], "texts": TEXTS})
    np.testing.assert_allclose([row["score"] for row in plain], scores[order], rtol=1e-4)
    counts = client.send("GET", "/metrics").text  # the lane is that of the documents
    assert 'requests_total{model="late",lane="bulk"} 2' in counts


def test_no_lane_puts_a_job_ahead(client: Client) -> None:
    background = Background(COMPUTING, client.application._shared)
    body = b'{"input": "a", "input_type": "query", "lane": "query"}'
    assert client.run(background.answer("/v1/multi-vector", body, "1")).status == 200
    assert 'requests_total{model="late",lane="bulk"} 1' in client.send("GET", "/metrics").text


def test_pairs_have_their_maxsim(client: Client, embedder: Embedder) -> None:
    one = client.post("/score", {"text_1": QUESTIONS[0], "text_2": TEXTS})["data"]
    expected = maxsim(embedder, QUESTIONS[0], TEXTS)
    np.testing.assert_allclose([row["score"] for row in one], expected, rtol=1e-4)
    each = client.post("/score", {"text_1": QUESTIONS, "text_2": TEXTS[:2]})["data"]
    pairs = zip(QUESTIONS, TEXTS[:2], strict=True)
    expected = np.concatenate([maxsim(embedder, question, [text]) for question, text in pairs])
    np.testing.assert_allclose([row["score"] for row in each], expected, rtol=1e-4)


def test_long_texts_are_treated_as_the_request_says(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_module, "SLICE_TOKENS", 1)  # each text for itself
    body: dict[str, Any] = {"input": [TEXTS[0], LONG]}
    ends = [
        client.post("/v1/multi-vector", body | {"truncation_side": side})["data"]
        for side in ("left", "right")
    ]
    assert ends[0][0] == ends[1][0]
    assert ends[0][1] != ends[1][1]
    status, error = client.refuse("/v1/multi-vector", body | {"truncation": False})
    assert (status, error["error"]["param"]) == (400, "input")
    assert "(row 1:" in error["error"]["message"]


def test_texts_are_computed_while_they_have_so_many_tokens(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_module, "SLICE_TOKENS", 2 * embedder.max_seq_length)
    slices = compute_module._slices([LONG] * 5, embedder)
    assert [len(each) for each in slices] == [2, 2, 1]


def test_more_numbers_than_an_answer_takes_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/multi-vector", {"input": TEXTS})
    monkeypatch.setattr(compute_module, "MAX_TOKEN_NUMBERS", 10)
    status, error = client.refuse("/v1/multi-vector", {"input": TEXTS})
    assert status == 413
    assert "send fewer texts at once" in str(error)
    doors = [model.admission for model in client.application.catalog]
    assert {sum(door.inside.values()) for door in doors} == {0}, "each request leaves its place"


def test_it_orders_the_rows_of_a_search(
    serve: MakeServer, folder: Path, embedder: Embedder, tmp_path: Path
) -> None:
    documents = [Document(id=str(number), text=text) for number, text in enumerate(TEXTS)]
    url = f"jsonl:{tmp_path}/rows.jsonl"
    with fake_embedder() as dense:
        embedlib.index(documents, url, embedder=dense)
    client = serve({"dense": fake_embedder(), "late": str(folder)}, search=url)
    asked = {"query": QUESTIONS, "top_k": 3, "rerank": True, "filter": None}
    answer = client.post("/v1/search", asked)
    assert answer["reranker"] == "late"
    for question, rows in zip(QUESTIONS, answer["results"], strict=True):
        scores = maxsim(embedder, question, TEXTS)
        order = np.argsort(-scores)[:3].tolist()
        assert [int(row["source_id"]) for row in rows] == order
        np.testing.assert_allclose([row["score"] for row in rows], scores[order], rtol=1e-4)
    assert client.post("/v1/search", asked | {"filter": "n > 3"})["results"] == [[], []]


def test_its_own_rows_are_searched(
    serve: MakeServer, folder: Path, embedder: Embedder, tmp_path: Path
) -> None:
    pytest.importorskip("qdrant_edge", reason="the edge: destination is not installed")
    documents = [Document(id=str(number), text=text) for number, text in enumerate(TEXTS)]
    url = f"edge:{tmp_path}/rows"
    embedlib.index(documents, url, embedder=embedder)
    client = serve({"late": str(folder)}, search=url)
    rows = client.post("/v1/search", {"query": QUESTIONS[0], "top_k": 4})["results"]
    scores = maxsim(embedder, QUESTIONS[0], TEXTS)
    assert [int(row["source_id"]) for row in rows] == np.argsort(-scores).tolist()
    np.testing.assert_allclose([row["score"] for row in rows], np.sort(scores)[::-1], rtol=1e-3)
