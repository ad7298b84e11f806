"""What vLLM's clients send beside the fields of others: kept, or refused if it has no effect."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Config, Embedder, Reranker
from embedlib.models.spec import Head
from embedlib.testing import byte_tokenizer, fake_embedder, fake_spec
from embedlib.testing.models.write import write_tiny_model
from tests.serve.conftest import (
    LABELS,
    Client,
    MakeClient,
    ScoreEngine,
    fake_classifier,
    fake_reranker,
)
from tests.serve.test_dialects import rows_of, score, sigmoid


def test_other_types_of_numbers(client: Client) -> None:
    right = rows_of(["a", "bc"])
    for dtype, numpy_type in (("float32", "f4"), ("float16", "f2"), ("bfloat16", "u2")):
        for order, sign in (("little", "<"), ("big", ">"), ("native", "=")):
            asked = {"input": ["a", "bc"], "embed_dtype": dtype, "endianness": order}
            answer = client.post("/v1/embeddings", asked | {"encoding_format": "base64"})
            sent = [base64.b64decode(entry["embedding"]) for entry in answer["data"]]
            plain = client.send("POST", "/v1/embeddings", asked | {"encoding_format": "bytes"})
            assert plain.content == b"".join(sent)
            item = json.loads(plain.headers["metadata"])["data"][1]
            assert (item["embed_dtype"], item["endianness"]) == (dtype, order)
            assert plain.content[item["start"] : item["end"]] == sent[1]
            numbers = np.frombuffer(plain.content, sign + numpy_type)
            if dtype == "bfloat16":
                numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
            assert np.allclose(numbers.reshape(2, -1), right, rtol=2**-8)
    status, error = client.refuse("/v1/embeddings", {"input": "a", "embed_dtype": "fp8_e4m3"})
    assert (status, error["error"]["param"]) == (400, "embed_dtype")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/rerank", "/score"])
@pytest.mark.parametrize(
    ("field", "same", "other"),
    [
        ("truncate_prompt_tokens", -1, 5),
        ("padding", "do_not_pad", "max_length"),
        ("add_special_tokens", True, False),
    ],
)
def test_what_would_be_ignored_is_refused(
    client: Client, path: str, field: str, same: object, other: object
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/rerank": {"query": "q", "documents": ["a"]},
        "/score": {"text_1": "q", "text_2": "a"},
    }
    body = bodies.get(path, {"input": "a"})
    client.post(path, body | {field: same})
    status, error = client.refuse(path, body | {field: other})
    assert (status, error["error"]["param"]) == (400, field)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/invocations"])
def test_a_chat_is_refused_with_what_to_send(client: Client, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "model": "embed"}
    _, error = client.refuse(path, body)
    assert "messages is no field of this route; send the chat as a text in input" in str(error)


@pytest.mark.parametrize("model", ["rank", "embed"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a", "b" * 99]}),
        ("/classify", {"input": ["a", "b" * 99]}),
        ("/rerank", {"query": "q", "documents": ["a", "b" * 99]}),
        ("/score", {"text_1": "q", "text_2": ["a", "b" * 99]}),
    ],
)
def test_long_texts_are_refused_where_asked(
    make_client: MakeClient, path: str, body: dict[str, Any], model: str
) -> None:
    makers: dict[str, Any] = {"rank": fake_reranker, "embed": fake_embedder}
    make = {"/v1/embeddings": fake_embedder, "/classify": fake_classifier}.get(path, makers[model])
    client = make_client({"model": make()})
    assert client.send("POST", path, body).headers["x-embedlib-truncated"] == "1"
    for refuses in ({"truncation": False}, {"truncate": False}, {"truncate": "NONE"}):
        status, error = client.refuse(path, body | refuses)
        assert (status, error["error"]["code"]) == (400, "context_length_exceeded")


def test_vectors_keep_their_activation(client: Client) -> None:
    status, error = client.refuse("/v1/embeddings", {"input": "a", "use_activation": False})
    assert (status, error["error"]["param"]) == (400, "use_activation")
    assert "use_activation = false; vectors have" in error["error"]["message"]
    classified = client.post("/classify", {"input": "a", "use_activation": False})
    raw = client.post("/classify", {"input": "a", "raw_scores": True})
    scores = {entry["label"]: entry["score"] for entry in raw["data"][0]}
    assert classified["data"][0]["probs"] == pytest.approx([scores[name] for name in LABELS])


def test_without_activation_scores_are_the_outputs(make_client: Any) -> None:
    head = Head(labels=("LABEL_0",), activation="sigmoid", reranker_activation="sigmoid")
    spec = fake_spec(64, head=head)
    client = make_client(
        {"rank": Reranker.from_engine(ScoreEngine(1), spec, byte_tokenizer(), Config())}
    )
    right = score("q", "ab")
    for more, expected in (({}, sigmoid(right)), ({"use_activation": False}, right)):
        [ranked] = client.post("/rerank", {"query": "q", "documents": ["ab"]} | more)["results"]
        [scored] = client.post("/score", {"text_1": "q", "text_2": "ab"} | more)["data"]
        assert ranked["relevance_score"] == scored["score"] == pytest.approx(expected)


def test_a_model_with_several_scores_does_not_rank(make_client: Any) -> None:
    head = Head(labels=LABELS, activation="softmax", reranker_activation="identity")
    spec = fake_spec(64, head=head)
    client = make_client(
        {"rank": Reranker.from_engine(ScoreEngine(3), spec, byte_tokenizer(), Config())}
    )
    for path, body in (
        ("/score", {"text_1": "q", "text_2": "a"}),
        ("/rerank", {"query": "q", "documents": ["a"]}),
    ):
        status, error = client.refuse(path, body)
        assert (status, error["error"]["param"]) == (400, "model")


def test_documents_are_cut_to_their_tokens(client: Client) -> None:
    body = {"query": "q", "documents": ["abcdef", "ab"], "max_tokens_per_doc": 3}
    answer = client.post("/rerank", body)
    scores = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
    assert scores == pytest.approx({0: sigmoid(score("q", "abc")), 1: sigmoid(score("q", "ab"))})
    assert client.post("/rerank", body | {"max_tokens_per_doc": 0})["usage"]["total_tokens"] == 10
    status, error = client.refuse("/rerank", body | {"max_tokens_per_doc": -1})
    assert (status, error["error"]["param"]) == (400, "max_tokens_per_doc")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a"], "model": "embed"}),
        ("/classify", {"input": ["a"], "model": "label"}),
        ("/rerank", {"query": "q", "documents": ["a"], "model": "rank"}),
        ("/score", {"text_1": "q", "text_2": "a", "model": "rank"}),
        ("/score", {"queries": "q", "documents": "a"}),
    ],
)
def test_invocations_take_the_bodies_of_other_routes(
    client: Client, path: str, body: dict[str, Any]
) -> None:
    first, second = client.post(path, body), client.post("/invocations", body)
    assert {**first, "id": 0, "created": 0} == {**second, "id": 0, "created": 0}


def test_pooling_is_what_the_model_is_for(client: Client) -> None:
    texts = ["a", "bc"]
    for task in ({}, {"task": "embed"}):
        answer = client.post("/pooling", {"input": texts, "model": "embed", **task})
        assert [row["data"] for row in answer["data"]] == rows_of(texts).tolist()
    asked = {"input": texts, "model": "embed", "encoding_format": "base64"}
    row = client.post("/pooling", asked)["data"][1]
    assert np.array_equal(np.frombuffer(base64.b64decode(row["data"]), "<f4"), rows_of(texts)[1])
    probs = [row["probs"] for row in client.post("/classify", {"input": texts})["data"]]
    answer = client.post("/pooling", {"input": texts, "task": "classify"})
    assert [row["data"] for row in answer["data"]] == [pytest.approx(row) for row in probs]
    raw = client.post("/pooling", {"input": texts, "task": "classify", "use_activation": False})
    assert raw["data"][0]["data"] != answer["data"][0]["data"]
    for wrong in ({"encoding_format": "bytes"}, {"embed_dtype": "float16"}, {"endianness": "big"}):
        status, error = client.refuse("/pooling", asked | wrong)
        assert (status, error["error"]["param"]) == (400, next(iter(wrong)))


def test_pooling_gives_the_vectors_of_tokens(make_client: MakeClient, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    client = make_client({"tiny": str(folder)})
    body = {"input": ["a b", "c"], "task": "token_embed"}
    with Embedder(folder) as own:
        expected = own.encode(body["input"], output_value="token_embeddings")
    for row, right in zip(client.post("/pooling", body)["data"], expected, strict=True):
        assert np.allclose(row["data"], right, atol=1e-6)
    for wrong in ({"truncation": False}, {"truncation_side": "left"}):
        status, error = client.refuse("/pooling", body | wrong)
        assert status == 400
        assert "long texts are truncated on the right with token_embed" in str(error)
