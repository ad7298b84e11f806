"""Whatever is sent: the dialect's own error, in one line that names the field; never a 500."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embedlib.models.spec import Head, PairTemplate
from embedlib.serve.dialects import tokens
from embedlib.serve.dialects.baseten import PATHS
from embedlib.serve.models import compute, estimate
from embedlib.serve.routes import ROUTES
from embedlib.testing import fake_embedder
from tests.serve.conftest import Client, MakeClient, fake_reranker

POSTS = [route for route in ROUTES if route.method == "POST"]


def message_of(error: Any) -> str:
    if "message" in error:
        return str(error["message"])
    inner = error["error"]
    return str(inner["message"] if isinstance(inner, dict) else inner)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body is empty"),
        (b" \n", 400, "the body is empty"),
        (b"{", 400, "not JSON"),
        (b"[]", 400, "the body: expected `object`"),
        (b"null", 400, "the body: expected `object`"),
        (b"{}", 400, "input is missing"),
        (b'{"input": null}', 400, "input: expected"),
        (b'{"input": 3}', 400, "input: expected"),
        (b'{"input": [1.5]}', 400, "input[0]: expected"),
        (b'{"input": []}', 400, "input is empty"),
        (b'{"input": "a", "dimensions": false}', 400, "dimensions: expected"),
        (b'{"input": "a", "dimensions": "3"}', 400, "dimensions: expected"),
        (b'{"input": "a", "dimensions": -1}', 400, "dimensions = -1; it must be 0 (all) or more"),
        (b'{"input": "a", "output_dimension": 0}', 400, "output_dimension = 0; it must be 1 or"),
        (
            b'{"input": "a", "dimensions": 3, "output_dimension": 4}',
            400,
            "dimensions and output_dimension both say how many",
        ),
        (b'{"input": "a", "encoding_format": "hex"}', 400, "'hex'; it must be base64 or bytes or"),
        (b'{"input": "a", "lane": "fast"}', 400, "lane = 'fast'; it must be query or bulk"),
        (
            b'{"input": "a", "model": "rank"}',
            400,
            "model 'rank' cannot embed, it can rerank (POST /rerank)",
        ),
        (b'{"input": "a", "input_type": "image"}', 400, "input_type = 'image'"),
        (b'{"input": "\\ud800"}', 400, "half of a surrogate pair; send whole characters"),
        (b'{"input": "\\ud800 and more"}', 400, "half of a surrogate pair"),
        (b'{"input": "\\ud83d\\ude00", "input', 400, "truncated; send a JSON object"),
        (b'{"input": "' + b"\xff" + b'"}', 400, "its text is not UTF-8; encode the body in UTF-8"),
        ('{"input": "schön"}'.encode("latin-1"), 400, "its text is not UTF-8"),
        ('{"input": "a"}'.encode("utf-16"), 400, "its text is not UTF-8"),
        ('{"input": "a"}'.encode("utf-16-le"), 400, "its text is not UTF-8"),
        ("\ufeff{}".encode(), 400, "input is missing"),
        ("\ufeff".encode() * 2000 + b"{}", 400, "the body is not JSON"),
        (b'{"input": NaN}', 400, "not JSON"),
        (b"[" * 100_000, 400, "the body"),
        # Python 3.14 takes as many as the stack has room for.
        (b'{"other": ' + b"[" * 2_000_000, 400, "the body is nested too deep"),
        (b'{"input": ' + b"[" * 100_000, 400, "input"),
    ],
)
def test_a_wrong_field_is_named(client: Client, body: bytes, status: int, words: str) -> None:
    answer = client.send("POST", "/v1/embeddings", body)
    error = answer.json()["error"]
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert answer.status_code == status
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] != ""


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/v1/embeddings", b'"input": "a"'),
        ("/embed", b'"inputs": "a"'),
        ("/v2/embed", b'"texts": ["a"]'),
        ("/api/embed", b'"input": "a"'),
    ],
)
def test_a_compressed_body_is_refused_as_that(client: Client, path: str, texts: bytes) -> None:
    body = gzip.compress(b'{"input": "a"}')
    answer = client.send("POST", path, body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "Content-Encoding = 'gzip'; send the body uncompressed" in message_of(answer.json())
    for none in ("Identity", ""):
        plain = client.send("POST", path, b"{" + texts + b"}", headers={"content-encoding": none})
        assert plain.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a", "encoding_format": "x" * 100_000}),
        ("/v1/embeddings", {"input": "a", "model": "x" * 100_000}),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["x" * 100_000]}),
        ("/v1/search", {"query": "a", "x" * 100_000: 1}),
    ],
)
def test_a_wrong_value_is_told_by_its_start(make_client: MakeClient, path: str, body: Any) -> None:
    client = make_client({"one": fake_embedder(), "two": fake_embedder()})
    _, error = client.refuse(path, body)
    assert "xxx" in message_of(error)
    assert len(json.dumps(error)) < 500


def test_a_wrong_value_is_told_as_json_has_it(client: Client) -> None:
    _, error = client.refuse("/v1/embeddings", {"input": "a", "late_chunking": True})
    assert message_of(error).startswith("late_chunking = true; ")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/embeddings", {"input": ["a", "LONG"]}, "input"),
        ("/embed", {"inputs": ["a", "LONG"]}, None),
        ("/v1/rerank", {"query": "q", "documents": ["a", "LONG"]}, "documents"),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a", "LONG"], "max_tokens_per_doc": 1},
            "documents",
        ),
    ],
)
def test_a_text_that_no_model_reads_is_refused(
    make_client: MakeClient, path: str, body: Any, field: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(estimate, "MAX_TEXT_CHARACTERS", 200)
    client = make_client({"model": fake_reranker() if "rerank" in path else fake_embedder()})
    for length, wanted in ((200, 200), (201, 413)):
        sent = json.loads(json.dumps(body).replace("LONG", "b" * length))
        answer = client.send("POST", path, sent)
        assert answer.status_code == wanted
    assert "text 1 has 201 characters; one may have 200" in message_of(answer.json())
    if field is not None:
        assert answer.json()["error"]["param"] == field


def test_what_a_tokenizer_holds_is_bounded(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "MAX_TEXT_CHARACTERS", 200)
    monkeypatch.setattr(tokens, "MAX_TEXT_CHARACTERS", 200)
    client = make_client({"e": fake_embedder(), "r": fake_reranker()})
    client.post("/tokenize", {"inputs": ["b" * 100] * 2, "model": "e"})
    status, error = client.refuse("/tokenize", {"inputs": ["b" * 100, "b" * 101], "model": "e"})
    assert status == 413
    assert "inputs has 201 characters" in message_of(error)
    status, error = client.refuse("/v1/rerank", {"query": "b" * 201, "documents": ["a"]})
    assert (status, error["error"]["param"]) == (413, "query")


def test_a_query_counts_for_each_of_its_documents(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short body could keep the tokenizer busy for hours."""
    monkeypatch.setattr(compute, "MAX_QUERY_CHARACTERS", 12)
    template = PairTemplate(
        prefix="", body="{instruction}{query}{document}", suffix="", instruction="of the model"
    )
    head = Head(
        labels=("yes",), activation="sigmoid", reranker_activation="identity", template=template
    )
    client = make_client({"rank": fake_reranker(head=head)})
    for query, more in (("abc", {}), ("ab", {"instruction": "c"})):
        body = {"query": query, **more}
        client.post("/v1/rerank", body | {"documents": ["d" * 20] * 4})
        status, error = client.refuse("/v1/rerank", body | {"documents": ["d"] * 5})
        assert status == 413
        assert "the queries of 5 documents have 15 characters" in error["error"]["message"]


LONG = "b" * 99


@pytest.mark.parametrize(
    ("path", "body", "of_pair", "of_text"),
    [
        ("/v1/rerank", {"query": "q", "documents": [LONG]}, "documents", "documents"),
        ("/v1/rerank", {"query": LONG, "documents": ["a"]}, "documents", "query"),
        ("/score", {"text_1": "q", "text_2": LONG}, "text_2", "text_2"),
        ("/score", {"queries": LONG, "items": "a"}, "items", "queries"),
        ("/score", {"data_1": ["a", "b"], "data_2": ["a"] * 3}, "data_1", "data_1"),
        ("/score", {"data_1": "a"}, "text_2", "text_2"),
        ("/score", {"queries": "a", "items": []}, "items", "items"),
    ],
)
def test_the_clients_own_field_is_named(
    make_client: MakeClient, path: str, body: Any, of_pair: str, of_text: str
) -> None:
    """Of a pair that is too long the second text is; an embedder reads each for itself."""
    for model, field in ((fake_reranker(), of_pair), (fake_embedder(), of_text)):
        client = make_client({"model": model})
        status, error = client.refuse(path, body | {"truncation": False})
        assert (status, error["error"]["param"]) == (400, field)
        assert field in error["error"]["message"] or "too long" in error["error"]["message"]


def test_a_mark_in_front_of_utf_8_is_no_text(client: Client) -> None:
    plain = client.post("/v1/embeddings", {"input": "a"})["data"]
    assert client.post("/v1/embeddings", '\ufeff{"input": "a"}'.encode())["data"] == plain


def test_unknown_fields_are_ignored(client: Client) -> None:
    client.post("/v1/embeddings", {"input": "a", "cache_salt": "x", "user": "u"})


def test_unknown_paths_and_methods(client: Client) -> None:
    assert client.send("GET", "/v1/nothing").status_code == 404
    wrong = client.send("GET", "/v1/embeddings")
    assert wrong.status_code == 405
    assert "use POST" in wrong.json()["error"]["message"]
    assert wrong.headers["allow"] == "POST"
    wrong = client.send("POST", "/v1/models/embed")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
    assert client.send("POST", "/v1/embeddings/", {"input": "a"}).status_code == 200


def test_too_many_texts_and_bytes(make_client: MakeClient) -> None:
    client = make_client(max_texts=2, max_body_bytes=100)
    status, error = client.refuse("/v1/embeddings", {"input": ["a"] * 3})
    assert status == 413
    assert error["error"]["message"].startswith("input has 3 texts, the limit is 2")
    status, error = client.refuse("/embed", {"inputs": "a" * 100})
    assert status == 413
    assert "--max-body-mb" in error["error"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        *(("/v1/embeddings", {}, "input"), ("/pooling", {}, "input"), ("/classify", {}, "input")),
        *(("/embed", {}, "inputs"), ("/tokenize", {}, "inputs"), ("/api/embed", {}, "input")),
        *(("/v2/embed", {}, "texts"), ("/rerank", {"query": "q"}, "texts")),
        *(("/rerank", {"query": "q"}, "documents"), ("/score", {"text_1": "q"}, "text_2")),
    ],
)
def test_each_list_of_texts_has_bounds(
    make_client: MakeClient, path: str, body: Any, field: str
) -> None:
    client = make_client(max_texts=2)
    for texts, wanted in ((["a"] * 3, 413), ([], 400)):
        status, error = client.refuse(path, {**body, field: texts})
        assert status == wanted
        assert message_of(error).startswith(f"{field} ")


def test_what_was_answered_is_held_no_more(make_client: MakeClient) -> None:
    client = make_client(max_held_bytes=30)
    for _ in range(3):
        client.post("/embed", b'{"inputs": "a"}')
        assert client.send("POST", "/embed", b'{"inputs": "a", ').is_client_error


FIELDS = st.sampled_from(
    sorted(
        {field for route in POSTS for field in getattr(route.body, "__annotations__", ())}
        | {"text", "source_sentence", "sentences", "model", "lane"}
    )
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.sampled_from(POSTS), JSON)
def test_any_json_gets_an_answer(shared_client: Client, route: Any, body: Any) -> None:
    answer = shared_client.send("POST", route.path, json.dumps(body).encode())
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.status_code >= 400:
        assert "\n" not in message_of(answer.json())


@settings(max_examples=60)
@given(st.sampled_from(PATHS), st.dictionaries(FIELDS, JSON, max_size=4))
@example("/v1/embeddings", {"input": "Infinity"})
@example("/v1/embeddings", {"input": float("-inf")})
def test_any_body_of_a_job_is_taken(shared_client: Client, path: str, body: Any) -> None:
    """What becomes of it is looked at in the end: no answer may be a bug."""
    sent = json.dumps({"model_input": body, "path": path}).encode()
    answer = shared_client.send("POST", "/async_predict", sent)
    no_numbers: list[str] = []  # a string may be "Infinity", too
    json.loads(sent, parse_constant=no_numbers.append)
    assert answer.status_code == (400 if no_numbers else 202), answer.text


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from embedlib.serve import ServeOptions, create_app
    from tests.serve.conftest import fake_classifier, fake_reranker

    client = Client(
        create_app(
            {"embed": fake_embedder(), "rank": fake_reranker(), "label": fake_classifier()},
            options=ServeOptions(data_dir=str(tmp_path_factory.mktemp("jobs"))),
        )
    )
    client.start()
    yield client
    while client.send("GET", "/async_requests?status=QUEUED").json()["data"]:
        pass
    failed = client.send("GET", "/async_requests?status=FAILED&limit=100").json()["data"]
    codes = {error["code"] for row in failed for error in row["errors"]}
    assert codes <= {"MODEL_INVALID_INPUT", "MODEL_DOES_NOT_EXIST"}
    client.close()
