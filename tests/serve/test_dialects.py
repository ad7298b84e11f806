"""Each dialect: the rows of `encode`, in the form that its clients read."""

from __future__ import annotations

import asyncio
import base64
import struct
import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from embedlib import Embedder
from embedlib.engines.base import Lane
from embedlib.models.spec import Head, PairTemplate
from embedlib.serve.dialects import cohere
from embedlib.serve.dialects.embedding_fields import as_type
from embedlib.serve.models import compute
from embedlib.serve.models.catalog import FEEDERS
from embedlib.serve.models.sessions import token_call
from embedlib.session.running import ASYNC_ROWS
from embedlib.testing import FAKE_DIM, fake_embedder, fake_vector, write_tiny_model
from tests.serve.conftest import LABELS, Client, MakeClient, fake_reranker

TEXTS = ["a", "bc", "def"]


def rows_of(texts: list[str]) -> Any:
    return np.array([fake_vector(list(text.encode())) for text in texts])


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/embeddings", "/embeddings", "/sync/v1/embeddings"),
        "/environments/production/sync/v1/embeddings",
        *("/production/sync/v1/embeddings", "/deployment/d3/sync/v1/embeddings"),
    ],
)
def test_openai_embeddings_are_the_rows_of_encode(client: Client, path: str) -> None:
    answer = client.post(path, {"input": TEXTS, "model": "embed"})
    rows = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
    assert (rows == rows_of(TEXTS)).all()
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0}
    assert answer["model"] == "embed"
    assert answer["object"] == "list"
    assert "truncated" not in answer


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *(("/v1/embeddings", "input"), ("/pooling", "input"), ("/classify", "input")),
        ("/embed", "inputs"),
    ],
)
def test_a_text_may_be_an_object_as_jina_has_it(client: Client, path: str, field: str) -> None:
    def vectors(given: Any) -> Any:
        answer = client.post(path, {field: given})
        return answer if isinstance(answer, list) else answer["data"]

    assert vectors([{"text": "a", "id": "x"}, "bc"]) == vectors(["a", "bc"])
    assert vectors({"text": "a"}) == vectors("a")
    _, error = client.refuse(path, {field: ["a", {"image": "data:,"}]})
    assert f"{field}[1] has no text; send a string or an object with text" in str(error)


def test_base64_is_little_endian_float32(client: Client) -> None:
    answer = client.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    rows = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in answer["data"]]
    assert (np.array(rows) == rows_of(TEXTS)).all()


def test_msgpack_where_the_client_accepts_it(client: Client) -> None:
    sent = client.send(
        "POST", "/v1/embeddings", {"input": TEXTS}, headers={"accept": "application/msgpack"}
    )
    assert sent.headers["content-type"] == "application/msgpack"
    answer = msgspec.msgpack.decode(sent.content)
    assert (np.array([e["embedding"] for e in answer["data"]]) == rows_of(TEXTS)).all()
    assert sent.content.count(b"\xca") >= FAKE_DIM * len(TEXTS)  # float32, not float64


def test_plain_bytes(client: Client) -> None:
    sent = client.send("POST", "/v1/embeddings", {"input": TEXTS, "encoding_format": "bytes"})
    rows = np.frombuffer(sent.content, "<f4").reshape(len(TEXTS), FAKE_DIM)
    assert (rows == rows_of(TEXTS)).all()
    metadata = msgspec.json.decode(sent.headers["metadata"])
    assert metadata["data"][1]["start"] == FAKE_DIM * 4
    octets = {"accept": "application/octet-stream"}
    asked = client.send("POST", "/v1/embeddings", {"input": TEXTS}, headers=octets)
    assert (asked.content, asked.headers["content-type"]) == (sent.content, octets["accept"])
    many = client.send("POST", "/v1/embeddings", {"input": TEXTS * 30}, headers=octets)
    assert many.content == sent.content * 30
    assert many.headers["x-embedlib-shape"] == f"90,{FAKE_DIM}"
    assert "metadata" not in many.headers  # too long for clients


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json, application/octet-stream;q=0", "application/json"),
        ("application/octet-stream; q=0.000, application/msgpack", "application/msgpack"),
        ("application/json, application/octet-stream;q=0.5", "application/json"),
        ("application/json;q=0.5, application/octet-stream", "application/octet-stream"),
        ("application/json, Application/MsgPack", "application/msgpack"),
        ("application/octet-stream;v=1;q=0.2, */*;q=0.1", "application/octet-stream"),
        ("application/octet-streams, */*", "application/json"),
        ("application/msgpack;q=much", "application/msgpack"),
        ("*/*", "application/json"),
    ],
)
def test_the_type_of_an_answer_is_the_one_preferred(client: Client, accept: str, kind: str) -> None:
    sent = client.send("POST", "/v1/embeddings", {"input": "a"}, headers={"accept": accept})
    assert sent.headers["content-type"] == kind


def test_many_rows_are_encoded_as_few_are(client: Client) -> None:
    texts = [chr(97 + index % 26) * (index % 7 + 1) for index in range(300)]
    answer = client.post("/v1/embeddings", {"input": texts})
    rows = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
    assert (rows == rows_of(texts)).all()


def test_dimensions_are_cut(client: Client) -> None:
    answer = client.post("/v1/embeddings", {"input": "abc", "dimensions": 2})
    assert answer["data"][0]["embedding"] == rows_of(["abc"])[0, :2].tolist()
    every = client.post("/embeddings", {"input": "abc", "dimensions": 0})  # Infinity's clients
    assert every["data"][0]["embedding"] == rows_of(["abc"])[0].tolist()
    status, error = client.refuse("/v1/embeddings", {"input": "abc", "dimensions": 7})
    assert status == 400
    assert error["error"]["message"] == "dimensions = 7; embed has 6, ask for 1 to 6"
    assert error["error"]["param"] == "dimensions"
    status, error = client.refuse("/v1/embeddings", {"input": "abc", "output_dimension": 7})
    assert (status, error["error"]["param"]) == (400, "output_dimension")
    status, error = client.refuse("/v2/embed", {"texts": ["abc"], "output_dimension": 7})
    assert (status, error["message"]) == (400, "output_dimension = 7; embed has 6, ask for 1 to 6")


def test_truncated_rows_are_told(client: Client) -> None:
    sent = client.send("POST", "/v1/embeddings", {"input": ["a", "b" * 40, "c" * 50]})
    assert sent.headers["x-embedlib-truncated"] == "2"
    assert sent.json()["truncated"] == [1, 2]
    status, error = client.refuse("/v1/embeddings", {"input": "b" * 40, "truncation": False})
    assert (status, error["error"]["code"]) == (400, "context_length_exceeded")
    status, error = client.refuse("/embed", {"inputs": "b" * 40, "truncate": False})
    assert (status, error["error_type"]) == (422, "Validation")


def test_tei_embed(client: Client) -> None:
    assert np.allclose(client.post("/embed", {"inputs": TEXTS}), unit(rows_of(TEXTS)), atol=1e-6)
    answer = client.post("/embed", {"inputs": "a", "normalize": False})
    assert answer == rows_of(["a"]).tolist()
    sent = client.send("POST", "/embed", {"inputs": "a"})
    for name in ("x-total-time", "x-queue-time", "x-tokenization-time", "x-inference-time"):
        assert sent.headers[name].isdigit()


def test_tei_similarity(client: Client) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": TEXTS}}
    rows = unit(rows_of(TEXTS))
    assert client.post("/similarity", body) == pytest.approx((rows[:1] @ rows.T)[0].tolist())


def score(*texts: str) -> float:
    return len("".join(texts)) / 10


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def test_tei_rerank_is_a_bare_list_with_the_best_first(client: Client) -> None:
    answer = client.post("/rerank", {"query": "q", "texts": TEXTS, "return_text": True})
    assert [entry["index"] for entry in answer] == [2, 1, 0]
    assert answer[0] == {
        "index": 2,
        "score": pytest.approx(sigmoid(score("q", "def"))),
        "text": "def",
    }
    raw = client.post("/rerank", {"query": "q", "texts": TEXTS, "raw_scores": True})
    assert raw[0] == {"index": 2, "score": pytest.approx(score("q", "def"))}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_with_documents(client: Client, path: str) -> None:
    body = {"query": "q", "documents": ["a", {"text": "bcd"}], "top_n": 1}
    answer = client.post(path, body)
    [best] = answer["results"]
    assert best == {"index": 1, "relevance_score": pytest.approx(sigmoid(score("q", "bcd")))}
    assert "document" not in best  # LiteLLM refuses null
    assert ("data" in answer) is (path == "/v1/rerank")  # Voyage's
    assert answer["meta"]["billed_units"] == {"search_units": 1}
    told = client.post(path, {**body, "return_documents": True})
    assert told["results"][0]["document"] == {"text": "bcd"}
    assert answer["usage"]["total_tokens"] == len("qa") + len("qbcd")


def test_rankings_as_nvidia_has_them(client: Client) -> None:
    body = {"model": "rank", "query": {"text": "q"}, "passages": [{"text": text} for text in TEXTS]}
    answer = client.post("/v1/ranking", body)
    assert answer["rankings"] == [
        {"index": index, "logit": pytest.approx(score("q", TEXTS[index]))} for index in (2, 1, 0)
    ]
    assert answer["usage"]["prompt_tokens"] == len("qa" + "qbc" + "qdef")
    long = {**body, "passages": [{"text": "b" * 99}]}
    assert client.send("POST", "/v1/ranking", long).headers["x-embedlib-truncated"] == "1"
    status, error = client.refuse("/v1/ranking", {**long, "truncate": "NONE"})
    assert (status, error["error"]["param"]) == (400, "passages")
    status, error = client.refuse("/v1/ranking", {**body, "query": {}})
    assert (status, error["error"]["param"]) == (400, "query")


def test_documents_are_ranked_by_their_text_alone(client: Client) -> None:
    body = {"query": "q", "documents": [{"text": "a", "title": "b"}]}
    client.post("/v1/rerank", body | {"rank_fields": ["text"]})
    for wrong in (body | {"rank_fields": ["title"]}, {"query": "q", "documents": [{"title": "b"}]}):
        status, error = client.refuse("/v1/rerank", wrong)
        assert (status, error["error"]["param"]) == (400, [*wrong][-1])


def test_voyage_reads_data(client: Client) -> None:
    answer = client.post("/v1/rerank", {"query": "q", "documents": TEXTS, "top_k": None})
    assert [entry["index"] for entry in answer["data"]] == [2, 1, 0]
    assert "results" not in answer
    for field in ("top_k", "top_n"):
        asked = {"query": "q", "documents": TEXTS, field: -1}
        status, error = client.refuse("/v1/rerank", asked)
        assert (status, error["error"]["param"]) == (400, field)
        assert error["error"]["message"] == f"{field} = -1; it must be 0 (all) or more"


def test_two_numbers_of_results_are_refused(client: Client) -> None:
    body = {"query": "q", "documents": TEXTS, "top_k": 1}
    for same in (1, None):
        assert len(client.post("/v1/rerank", body | {"top_n": same})["data"]) == 1
    for other in (2, 0):
        status, error = client.refuse("/v1/rerank", body | {"top_n": other})
        assert (status, error["error"]["param"]) == (400, "top_n")
        assert "top_n and top_k both say how many are kept; give one" in str(error)


def test_an_embedder_ranks_where_there_is_no_reranker(make_client: Any) -> None:
    from embedlib.testing import fake_embedder

    client = make_client({"embed": fake_embedder()})
    answer = client.post("/rerank", {"query": "a", "documents": ["zzz", "a"]})
    assert answer["results"][0] == {"index": 1, "relevance_score": pytest.approx(1)}


def test_score(client: Client) -> None:
    answer = client.post("/score", {"text_1": "q", "text_2": TEXTS})
    assert isinstance(answer["created"], int)
    scores = [entry["score"] for entry in answer["data"]]
    assert scores == pytest.approx([score("q", text) for text in TEXTS])
    status, error = client.refuse("/score", {"text_1": ["a", "b"], "text_2": TEXTS})
    assert (status, error["error"]["param"]) == (400, "text_1")
    body = {"text_1": "q", "text_2": TEXTS, "items": TEXTS}
    status, error = client.refuse("/score", body)
    assert (status, error["error"]["param"]) == (400, "items")
    assert "text_2 and items" in error["error"]["message"]


def test_an_embedder_computes_the_query_of_many_pairs_once(make_client: Any) -> None:
    client = make_client({"embed": fake_embedder()})
    answer = client.post("/score", {"text_1": "q", "text_2": TEXTS})
    pairs = client.post("/score", {"text_1": ["q"] * 3, "text_2": TEXTS})
    assert answer["data"] == pairs["data"]
    assert answer["usage"]["prompt_tokens"] == len("".join(["q", *TEXTS]))


def test_predict_takes_texts_and_pairs(client: Client) -> None:
    [one] = [client.post("/predict", {"inputs": "abc"})]
    assert {entry["label"] for entry in one} == set(LABELS)
    assert one == sorted(one, key=lambda entry: -entry["score"])
    assert client.post("/predict", {"inputs": [["abc"], ["b"]]})[0] == one
    [pair] = client.post("/predict", {"inputs": [["q", "abc"]], "raw_scores": True})
    assert pair[0]["score"] == pytest.approx(score("q", "abc"))
    assert client.post("/predict", {"inputs": ["q", "abc"], "raw_scores": True}) == pair
    # Whatever the model's own activation is: this one has none.
    [[between]] = client.post("/predict", {"inputs": [["q", "abc"]]})
    [ranked] = client.post("/rerank", {"query": "q", "texts": ["abc"]})
    assert between["score"] == ranked["score"] == pytest.approx(sigmoid(score("q", "abc")))
    status, error = client.refuse("/predict", {"inputs": [["a"], ["b", "c"]]})
    assert (status, error["error_type"]) == (422, "Validation")


def test_predict_refuses_an_empty_list_as_embed_does(client: Client) -> None:
    refused = client.refuse("/predict", {"inputs": []})
    assert refused == client.refuse("/embed", {"inputs": []})
    assert "inputs is empty; send at least one text" in refused[1]["error"]


def test_an_instruction_takes_the_place_of_the_models_own(make_client: MakeClient) -> None:
    template = PairTemplate(
        prefix="", body="{instruction}{query}{document}", suffix="", instruction="of the model"
    )
    head = Head(
        labels=("yes",), activation="sigmoid", reranker_activation="identity", template=template
    )
    client = make_client({"rank": fake_reranker(head=head)})
    body = {"query": "q", "documents": ["abc"]}
    plain = client.post("/v1/rerank", body)["results"]
    assert client.post("/v1/rerank", {**body, "instruction": "of the model"})["results"] == plain
    [longer] = client.post("/v1/rerank", {**body, "instruction": "of the caller"})["results"]
    assert longer["relevance_score"] > plain[0]["relevance_score"]


def test_an_instruction_needs_a_place(client: Client) -> None:
    for model in ("rank", "embed"):
        body = {"query": "q", "documents": TEXTS, "instruction": "find", "model": model}
        status, answer = client.refuse("/v1/rerank", body)
        error = answer["error"]
        assert (status, error["param"]) == (400, "instruction")
        assert error["message"] == (
            f"instruction = 'find'; model {model!r} has no place for one, leave it out"
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"texts": ["a", "b"], "top_n": -1},
        {"texts": "a"},
        {"texts": ["a" * 99], "truncate": False},
        {"texts": []},
    ],
)
def test_rerank_with_texts_is_refused_as_by_its_own_server(client: Client, fields: Any) -> None:
    status, error = client.refuse("/rerank", {"query": "q", **fields})
    assert status == (400 if fields["texts"] == [] else 422)
    assert error.keys() == {"error", "error_type"}


def test_rerank_with_documents_is_refused_as_by_others(client: Client) -> None:
    status, error = client.refuse("/rerank", {"query": "q", "documents": "a"})
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("body", "missing"),
    [({"documents": ["a"]}, "query"), ({"query": "q"}, "documents"), ({}, "query")],
)
def test_rerank_names_what_is_missing(client: Client, body: Any, missing: str) -> None:
    status, error = client.refuse("/rerank", body)
    assert status == 400
    assert error["error"]["param"] == missing
    assert error["error"]["message"] == f"{missing} is missing; the body must have it"


def test_classify_as_vllm_and_as_infinity(client: Client) -> None:
    answer = client.post("/classify", {"input": ["abc"]})
    [entry] = answer["data"]
    assert entry["num_classes"] == 3
    assert entry["label"] == LABELS[int(np.argmax(entry["probs"]))]
    status, error = client.refuse("/v1/classify", {"input": ["abc"], "labels": ["x", "y"]})
    assert (status, error["error"]["param"]) == (400, "labels")  # Jina's, which are not heeded
    infinity = client.post("/classify", {"input": ["abc"], "raw_scores": False})
    assert infinity["object"] == "classify"
    assert infinity["data"][0][0]["score"] == pytest.approx(max(entry["probs"]))


def test_cohere_embed(client: Client) -> None:
    answer = client.post(
        "/v2/embed",
        {
            "texts": TEXTS,
            "model": "embed",
            "input_type": "search_document",
            "embedding_types": ["float", "base64", "ubinary"],
        },
    )
    assert answer["embeddings"]["float"] == rows_of(TEXTS).tolist()
    packed = base64.b64decode(answer["embeddings"]["base64"][0])
    assert struct.unpack(f"<{FAKE_DIM}f", packed) == tuple(rows_of(TEXTS)[0])
    bits = [int(value > 0) for value in rows_of(TEXTS)[0]] + [0, 0]
    assert answer["embeddings"]["ubinary"][0] == [int("".join(map(str, bits)), 2)]
    for kind, words in (("int8", "quantization_ranges"), ("int4", "it must be base64 or binary")):
        status, error = client.refuse("/v2/embed", {"texts": TEXTS, "embedding_types": [kind]})
        assert status == 400
        assert words in error["message"]


def test_cohere_embed_of_the_older_client(client: Client) -> None:
    body = {"texts": TEXTS, "model": "embed", "input_type": "search_document"}
    plain = client.post("/v1/embed", body)
    assert plain["response_type"] == "embeddings_floats"
    assert plain["embeddings"] == rows_of(TEXTS).tolist()
    assert plain["texts"] == TEXTS
    assert plain["meta"]["api_version"] == {"version": "1"}
    typed = client.post("/v1/embed", {**body, "embedding_types": ["float", "binary"]})
    newer = client.post("/v2/embed", {**body, "embedding_types": ["float", "binary"]})
    assert typed["response_type"] == newer["response_type"] == "embeddings_by_type"
    assert typed["embeddings"] == newer["embeddings"]
    status, error = client.refuse("/v1/embed", {"texts": ["a" * 99], "truncate": "NONE"})
    assert (status, list(error)) == (400, ["message"])


def test_cohere_inputs_are_texts(client: Client) -> None:
    def given(*contents: list[dict[str, Any]]) -> dict[str, Any]:
        return {"model": "embed", "inputs": [{"content": content} for content in contents]}

    a, b = {"type": "text", "text": "a"}, {"type": "text", "text": "bb"}
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    answer = client.post("/v2/embed", given([a], [b]))
    assert answer["embeddings"]["float"] == rows_of(["a", "bb"]).tolist()
    for second, what in (
        ([image], "image_url"),
        ([a, image], "text, image_url"),
        ([a, b], "text, text"),
        ([], "nothing"),
        ([{"type": "text"}], "text"),
    ):
        status, error = client.refuse("/v2/embed", given([a], second))
        assert (status, error["message"]) == (
            400,
            f"inputs[1].content has {what}; send one text in each input, there are no images here",
        )
    status, error = client.refuse("/v2/embed", given([a]) | {"texts": TEXTS})
    assert (status, error["message"]) == (
        400,
        "texts and inputs are both there; send one of them",
    )
    status, error = client.refuse("/v2/embed", {"model": "embed"})
    assert error["message"] == "texts is missing; the body must have it"


def test_cohere_cuts_texts_to_the_tokens_that_are_asked_for(client: Client) -> None:
    body = {"texts": ["abcdef", "ab"], "model": "embed"}

    def rows(**more: Any) -> list[list[float]]:
        return client.post("/v2/embed", body | more)["embeddings"]["float"]

    assert rows(max_tokens=3) == rows_of(["abc", "ab"]).tolist()
    assert client.post("/v2/embed", body | {"max_tokens": 3})["texts"] == body["texts"]
    assert rows(max_tokens=3, truncate="START") == rows_of(["def", "ab"]).tolist()
    assert rows(max_tokens=6, truncate="NONE") == rows_of(body["texts"]).tolist()
    assert rows(max_tokens=32) == rows_of(body["texts"]).tolist()
    status, error = client.refuse("/v2/embed", body | {"max_tokens": 3, "truncate": "NONE"})
    assert (status, list(error)) == (400, ["message"])
    assert error["message"].startswith("text 0 has more than max_tokens = 3 tokens; leave truncate")
    status, error = client.refuse("/v2/embed", body | {"max_tokens": 0})
    assert error["message"] == "max_tokens = 0; it must be 1 or more"


@pytest.mark.parametrize(("text", "side"), [("abé", "END"), ("éab", "START")])
def test_a_character_of_several_tokens_is_cut_as_a_whole(
    client: Client, text: str, side: str
) -> None:
    body = {"texts": [text], "model": "embed", "max_tokens": 3}
    cut = client.post("/v2/embed", body | {"truncate": side})["embeddings"]["float"]
    assert cut == rows_of(["ab"]).tolist()
    assert client.refuse("/v2/embed", body | {"truncate": "NONE"})[0] == 400


@pytest.mark.parametrize(("text", "side"), [("éab", "END"), ("abé", "START"), ("é", "NONE")])
def test_a_character_of_more_tokens_than_asked_for_stays(
    client: Client, text: str, side: str
) -> None:
    body = {"texts": [text], "model": "embed", "max_tokens": 1, "truncate": side}
    vectors = client.post("/v2/embed", body)["embeddings"]["float"]
    assert vectors == rows_of(["é"]).tolist()


def test_cohere_makes_each_type_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        cohere,
        "as_type",
        lambda rows, kind, session: made.append(kind) or as_type(rows, kind, session),
    )
    asked = {"texts": TEXTS, "embedding_types": ["float", "binary", "float"] * 100}
    assert list(client.post("/v2/embed", asked)["embeddings"]) == ["float", "binary"]
    assert made == ["float", "binary"]


def test_cohere_embed_in_bytes(make_client: Any) -> None:
    asked = {"texts": TEXTS, "embedding_types": ["int8"]}
    with fake_embedder(truncate_dim=5) as embedder:  # all dimensions that differ between texts
        client = make_client({"embed": embedder})
        embedder.calibrate([*TEXTS, "zzzz" * 8])
        expected = embedder.encode(TEXTS, precision="int8")
        assert client.post("/v2/embed", asked)["embeddings"]["int8"] == expected.tolist()
        embedder.calibrate([*TEXTS, "zzzz" * 8], normalize_embeddings=True)
        status, error = client.refuse("/v2/embed", asked)
        assert status == 400
        assert "the ranges are those of vectors of unit length" in error["message"]


def test_ollama_embed(client: Client) -> None:
    answer = client.post("/api/embed", {"model": "any:latest", "input": TEXTS})
    assert np.allclose(answer["embeddings"], unit(rows_of(TEXTS)), atol=1e-6)
    assert answer["prompt_eval_count"] == 6
    cut = client.post("/api/embed", {"input": "abc", "dimensions": 2})["embeddings"]
    assert np.allclose(cut, unit(rows_of(["abc"])[:, :2]), atol=1e-6)
    assert client.refuse("/api/embed", {"input": "b" * 40, "truncate": False})[0] == 400
    old = client.post("/api/embeddings", {"model": "embed", "prompt": "a"})
    assert old["embedding"] == rows_of(["a"])[0].tolist()


def test_tokenize_and_decode(client: Client) -> None:
    [tokens] = client.post("/tokenize", {"inputs": "hé", "model": "embed"})
    assert [token["id"] for token in tokens] == list("hé".encode())
    vllm = client.post("/tokenize", {"prompt": "ab", "model": "embed"})
    assert vllm == {"tokens": [97, 98], "count": 2, "max_model_len": 32}
    more = client.post("/tokenize", {"prompt": "ab", "model": "embed", "return_token_strs": True})
    assert more == {**vllm, "token_strs": ["a", "b"]}
    status, error = client.refuse("/tokenize", {"inputs": "a", "prompt": "b", "model": "embed"})
    assert status == 422
    assert error["error"] == "inputs and prompt are both there; send one of them"
    document = {"inputs": "a", "model": "embed", "prompt_name": "document"}
    assert len(client.post("/tokenize", document)[0]) == 1  # as /embed takes it
    status, error = client.refuse("/tokenize", {**document, "prompt_name": "nobody"})
    assert status == 422
    assert error["error"] == "prompt_name = 'nobody'; the prompts are: document, query"
    assert client.post("/decode", {"ids": [[97, 98], [99]], "model": "embed"}) == ["ab", "c"]
    assert client.post("/decode", {"ids": [97], "model": "embed"}) == ["a"]
    status, error = client.refuse("/decode", {"ids": [256], "model": "embed"})
    assert (status, error["error"]) == (422, "ids has 256; the ids are 0 to 255")
    vllm = client.post("/detokenize", {"tokens": [97, 98], "model": "embed"})
    assert vllm == {"prompt": "ab"}
    status, error = client.refuse("/detokenize", {"tokens": [-1], "model": "embed"})
    assert error["error"]["message"] == "tokens has -1; the ids are 0 to 255"


def test_vertex_and_the_root_answer_by_what_is_asked(client: Client) -> None:
    body = {"instances": [{"query": "q", "texts": ["a"]}, {"inputs": "a", "model": "embed"}]}
    first, second = client.post("/vertex", body)["predictions"]
    assert first[0]["index"] == 0
    assert np.allclose(second, unit(rows_of(["a"])))
    assert np.allclose(client.post("/", {"inputs": "a", "model": "embed"}), unit(rows_of(["a"])))


def test_vertex_needs_an_instance(client: Client) -> None:
    status, error = client.refuse("/vertex", {"instances": []})
    assert (status, error["error_type"]) == (400, "Empty")


def test_vertex_takes_no_model_for_all_instances(client: Client) -> None:
    """It would be another model's answer."""
    for field in ("model", "lane"):
        body = {"instances": [{"inputs": "a", "model": "embed"}], field: "query"}
        status, error = client.refuse("/vertex", body)
        assert status == 422
        assert error["error"] == (f"{field} is no field of this route; send it in each instance")


def test_the_root_answers_as_the_route_of_what_is_asked(client: Client) -> None:
    for path, body in (
        ("/predict", {"inputs": "abc", "model": "label"}),
        ("/rerank", {"query": "q", "texts": ["a", "bc"]}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a", "bc"]}}),
    ):
        assert client.post("/", body) == client.post(path, body)


def test_vertex_counts_each_instance_for_itself(client: Client) -> None:
    instance = {"input": "ab" * 40, "model": "embed"}
    answer = client.send("POST", "/vertex", {"instances": [instance] * 3})
    counts = [each["usage"]["prompt_tokens"] for each in answer.json()["predictions"]]
    assert len(counts) == 3
    assert len(set(counts)) == 1
    assert answer.headers["x-embedlib-truncated"] == "3"
    metrics = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="query"} 3' in metrics


def test_the_texts_of_all_instances_are_bounded(make_client: MakeClient) -> None:
    """Else one body could ask for a hundred times the vectors of any other."""
    client = make_client({"embed": fake_embedder()}, max_texts=3)
    first, second = {"input": ["a", "b"]}, {"input": ["c", "d"]}
    assert len(client.post("/vertex", {"instances": [first, second]})["predictions"]) == 2
    status, error = client.refuse("/vertex", {"instances": [first, second, first]})
    assert status == 413
    assert error["error"].startswith("instances has 5 texts, the limit is 3; send them in several")


def test_predictions_are_json_whatever_is_accepted(client: Client) -> None:
    instance = {"input": "a", "model": "embed"}
    for kind in ("application/msgpack", "application/octet-stream"):
        sent = client.send("POST", "/vertex", {"instances": [instance]}, headers={"accept": kind})
        [answer] = sent.json()["predictions"]
        assert answer["data"][0]["embedding"] == rows_of(["a"])[0].tolist()
    packed = {**instance, "encoding_format": "bytes"}
    status, error = client.refuse("/vertex", {"instances": [packed]})
    assert (status, error["error_type"]) == (422, "Validation")
    assert error["error"] == "encoding_format: a prediction is JSON; use float or base64"


def test_models_are_described(client: Client) -> None:
    listed = client.send("GET", "/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["embed", "rank", "label"]
    assert [entry["task"] for entry in listed] == ["embed", "rerank", "classify"]
    assert [entry["tasks"] for entry in listed] == [["embed"], ["rerank"], ["classify"]]
    assert [entry["max_model_len"] for entry in listed] == [32, 64, 32]  # vLLM's
    assert client.send("GET", "/v1/models/embed").json()["dimensions"] == FAKE_DIM
    assert client.send("GET", "/v1/models/none").status_code == 404
    assert {entry["owned_by"] for entry in listed} == {"embedlib"}
    for path in ("/models", "/models/embed"):  # Infinity's client knows one owner
        answer = client.send("GET", path).json()
        assert {e["owned_by"] for e in answer.get("data", [answer])} == {"infinity"}
    door = client.application.catalog.find("embed", "embed").admission
    for lane in Lane:
        door.inside[lane] = 1024
    told = client.send("GET", "/v1/models").json()["data"]
    assert told[0]["stats"] == {"queue_absolute": 2048, "queue_fraction": 0.25}  # Infinity's
    assert told[1]["stats"] == {"queue_absolute": 0, "queue_fraction": 0}
    assert client.send("GET", "/health").json()["unix"] > 0


def test_baseten_reads_the_id_of_a_request(client: Client) -> None:
    headers = {"x-request-id": "of-a-proxy", "x-baseten-customer-request-id": "perfclient-1"}
    answer = client.send("POST", "/v1/embeddings", {"input": "a"}, headers=headers)
    assert answer.headers["x-baseten-request-id"] == "perfclient-1"
    assert "x-baseten-request-id" not in client.send("GET", "/health").headers


def test_queries_take_the_prompt_of_queries(make_client: Any, embedder: Embedder) -> None:
    from embedlib.testing import fake_embedder

    client = make_client({"embed": fake_embedder(prompts={"query": "Q:", "document": "D:"})})
    for role, front in (("query", "Q:"), ("document", "D:"), (None, "")):
        answer = client.post("/v1/embeddings", {"input": "a", "input_type": role})
        assert answer["data"][0]["embedding"] == rows_of([front + "a"])[0].tolist()


def test_a_second_engine_that_loads_keeps_no_long_list_waiting(
    make_client: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def call(*arguments: Any) -> Any:
        gate.wait()
        return token_call(*arguments)

    monkeypatch.setattr(compute, "token_call", call)
    client = make_client({"tiny": str(write_tiny_model(tmp_path / "model", "bert"))})

    async def work() -> None:
        async with client.http() as http:
            # More of them than asyncio's own threads, on which long lists are converted.
            waiting = [
                asyncio.ensure_future(http.post("/embed_all", json={"inputs": "a"}))
                for _ in range(40)
            ]
            try:
                body = {"inputs": ["a"] * (ASYNC_ROWS + 1)}
                dense = await http.post("/embed", json=body)
                assert len(dense.json()) == ASYNC_ROWS + 1
            finally:
                gate.set()
            assert [(await each).status_code for each in waiting] == [200] * 40

    client.run(work())


def test_vectors_of_tokens_and_lexical_weights(
    make_client: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    client = make_client({"tiny": str(folder)})
    body = {"inputs": ["a b", "c"]}
    with Embedder(folder) as own:
        expected = own.encode(body["inputs"], output_value="token_embeddings")
    for rows, right in zip(client.post("/embed_all", body), expected, strict=True):
        assert (np.array(rows, np.float32) == right).all()
    gate = threading.Event()
    feeders = client.application.catalog.find("tiny", "embed").feeders
    held = [feeders.submit(gate.wait) for _ in range(FEEDERS)]  # they are for lone queries
    assert client.post("/embed_all", body)
    gate.set()
    assert all(each.result() for each in held)
    monkeypatch.setattr(compute, "SLICE_TOKENS", 1)  # one text after the other
    for rows, right in zip(client.post("/embed_all", body), expected, strict=True):
        assert np.allclose(rows, right, atol=1e-6)
    monkeypatch.setattr(compute, "MAX_TOKEN_NUMBERS", expected[0].size)
    assert client.post("/embed_all", {"inputs": "a b"})
    status, error = client.refuse("/embed_all", body)
    assert (status, error["error_type"]) == (413, "Validation")
    monkeypatch.undo()
    for named in ({}, {"model": "tiny"}, {"model": "any"}):
        status, error = client.refuse("/embed_sparse", body | named)
        assert (status, error["error_type"]) == (424, "Backend")
        assert "can embed_sparse" in error["error"] or "cannot embed_sparse" in error["error"]
        assert "sparse_linear.safetensors" in error["error"]
        assert "output_value" not in error["error"]
