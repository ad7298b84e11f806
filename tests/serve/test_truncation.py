"""The side that long texts are truncated on, as each dialect spells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.testing import fake_embedder
from tests.serve.conftest import Client, MakeClient, ScoreEngine, fake_reranker
from tests.serve.test_dialects import rows_of, unit
from tests.tiny_models.sparse import write_sparse_model

LONG = "".join(chr(97 + index % 26) for index in range(40))
LEFT, RIGHT = LONG[-32:], LONG[:32]


@pytest.mark.parametrize(
    ("path", "text", "field", "left", "right"),
    [
        ("/v1/embeddings", {"input": LONG}, "truncation_side", ["left"], ["right", None]),
        ("/v1/embeddings", {"input": LONG}, "truncate", ["START"], ["END", True, None]),
        ("/embed", {"inputs": LONG}, "truncation_direction", ["Left", "left"], ["Right", "right"]),
        ("/v2/embed", {"texts": [LONG]}, "truncate", ["START"], ["END", None]),
    ],
)
def test_vectors_are_those_of_what_is_left(
    client: Client, path: str, text: dict[str, Any], field: str, left: list[Any], right: list[Any]
) -> None:
    for values, kept in ((left, LEFT), (right, RIGHT)):
        for value in values:
            sent = client.send("POST", path, {"model": "embed", **text, field: value})
            assert sent.headers["x-embedlib-truncated"] == "1"
            answer = sent.json()
            if path == "/embed":
                assert np.allclose(answer, unit(rows_of([kept])))
            elif path == "/v2/embed":
                assert answer["embeddings"]["float"] == rows_of([kept]).tolist()
            else:
                assert answer["data"][0]["embedding"] == rows_of([kept])[0].tolist()


@pytest.mark.parametrize(
    ("path", "text", "field"),
    [
        ("/classify", {"input": LONG}, "truncation_side"),
        ("/predict", {"inputs": LONG}, "truncation_direction"),
    ],
)
def test_labels_are_those_of_what_is_left(
    client: Client, path: str, text: dict[str, Any], field: str
) -> None:
    [name] = text
    for side, kept in (("left", LEFT), ("right", RIGHT)):
        short, long = client.post(path, {name: kept}), client.post(path, {**text, field: side})
        for answer in (short, long):
            if isinstance(answer, dict):
                answer.update(id="", created=0)
        assert long == short


@pytest.mark.parametrize(
    ("path", "texts", "field"),
    [
        ("/rerank", {"query": "q", "texts": [LONG * 2]}, "truncation_direction"),
        ("/rerank", {"query": "q", "documents": [LONG * 2]}, "truncation_side"),
        ("/score", {"text_1": "q", "text_2": LONG * 2}, "truncation_side"),
        ("/predict", {"inputs": [["q", LONG * 2]]}, "truncation_direction"),
    ],
)
def test_documents_are_truncated_on_the_side(
    make_client: MakeClient, path: str, texts: dict[str, Any], field: str
) -> None:
    engine = ScoreEngine(1)
    client = make_client({"rank": fake_reranker(engine)})
    for side, kept in (("left", (LONG * 2)[-63:]), ("right", (LONG * 2)[:63])):
        client.post(path, {**texts, field: side})
        assert bytes(engine.batches[-1].token_ids.tolist()).decode() == f"q{kept}"


def test_the_side_of_the_next_request_is_its_own(client: Client) -> None:
    body = {"input": LONG, "model": "embed"}
    left = client.post("/v1/embeddings", {**body, "truncation_side": "left"})
    right = client.post("/v1/embeddings", body)
    assert left["data"] != right["data"]
    assert right["data"][0]["embedding"] == rows_of([RIGHT])[0].tolist()


def test_similarity_takes_it_among_its_parameters(client: Client) -> None:
    inputs = {"source_sentence": LEFT, "sentences": [LONG]}
    body = {"inputs": inputs, "parameters": {"truncation_direction": "Left"}}
    assert client.post("/similarity", body) == pytest.approx([1.0])


def test_a_side_that_is_none_is_refused(client: Client) -> None:
    status, error = client.refuse("/embed", {"inputs": "a", "truncation_direction": "Up"})
    assert (status, error["error"]) == (
        422,
        "truncation_direction = 'Up'; it must be Left or Right",
    )
    for fields in ({"truncation_direction": "Left"}, {"truncate": False}):
        status, error = client.refuse("/embed_all", {"inputs": "a", **fields})
        assert (status, error["error_type"]) == (422, "Validation")
        assert "long texts are truncated on the right here, leave both out" in error["error"]
    status, error = client.refuse("/v1/embeddings", {"input": "a", "truncation_side": "up"})
    assert (status, error["error"]["param"]) == (400, "truncation_side")


def test_a_prompt_in_front_is_cut_first(make_client: MakeClient) -> None:
    client = make_client({"embed": fake_embedder(prompts={"query": "Q:"})})
    body = {"inputs": LONG, "prompt_name": "query", "truncation_direction": "Left"}
    assert np.allclose(client.post("/embed", body), unit(rows_of([LEFT])))


def test_requests_decide_whatever_the_model_does_for_its_own_program(
    make_client: MakeClient, tmp_path: Path
) -> None:
    sparse = Embedder(write_sparse_model(tmp_path / "model"), threads=1, on_truncate="error")
    embedder = fake_embedder(on_truncate="error")
    client = make_client({"sparse": sparse, "embed": embedder})
    for path, body in (("/embed_sparse", {"inputs": "a " * 99}), ("/embed", {"inputs": LONG})):
        sent = client.send("POST", path, body)
        assert (sent.status_code, sent.headers.get("x-embedlib-truncated")) == (200, "1"), path
