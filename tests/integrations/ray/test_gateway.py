"""The gateway of a fleet answers as one server of the same models; Ray is tested by .ci/ray."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from embedlib import Embedder
from embedlib.models.spec import LateInteraction
from embedlib.serve import ServeOptions, create_app, remote
from embedlib.testing import FakeEngine, fake_embedder, fake_spec
from embedlib_ray import gateway as gateway_module
from embedlib_ray.gateway import Gateway, lane_of
from embedlib_ray.replica import Answer, Call, answer
from tests.serve.conftest import Client, fake_classifier, fake_reranker


def fake_late_embedder() -> Embedder:
    late = LateInteraction(query_tokens=8, document_tokens=16, expansion=None)
    spec = fake_spec(modules=(), late_interaction=late)
    return fake_embedder(FakeEngine(is_per_token=True), spec)


MODELS: dict[str, Callable[[], Any]] = {
    "emb": fake_embedder,
    "rank": fake_reranker,
    "cls": fake_classifier,
    "late": fake_late_embedder,
}
KEY = {"authorization": "Bearer secret"}
TEXTS = ["a cat", "the dog runs"]
RERANK = {"query": "a cat", "documents": TEXTS}


@dataclass
class Fleet:
    """A gateway before replicas in this process, and one server beside it."""

    plain: Client
    replicas: dict[str, Client]
    gateway: Gateway = field(init=False)
    calls: list[tuple[str, str, Call]] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    """Models whose replicas do not answer."""
    dead: set[str] = field(default_factory=set)
    """Models whose replicas have died."""

    def __post_init__(self) -> None:
        self.open(are_awake=True)

    def open(self, *, are_awake: bool) -> None:
        """Make a new gateway."""
        lanes = {
            name: {lane: partial(self._answer, name, lane) for lane in ("query", "bulk")}
            for name in self.replicas
        }
        options = ServeOptions(api_keys=("secret",))
        self.gateway = Gateway(lanes, options, sources={}, are_awake=are_awake)

    async def _answer(self, name: str, lane: str, call: Call) -> Answer:
        self.calls.append((name, lane, call))
        if name in self.dead:
            raise RuntimeError("the actor died")
        if name in self.silent:
            await asyncio.Event().wait()
        return await answer(self.replicas[name].application, call)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send a request to the gateway."""
        return self._ask(self.gateway, method, path, body, headers)

    def send_plain(self, method: str, path: str, body: Any, **headers: str) -> httpx.Response:
        """Send it to the server."""
        return self._ask(self.plain.application, method, path, body, headers)

    def _ask(
        self, application: Any, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=application)
            url = "http://localhost"
            async with httpx.AsyncClient(transport=transport, base_url=url) as http:
                return await http.request(method, path, json=body, headers={**KEY, **headers})

        return self.plain.run(send())


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    plain = Client(
        create_app(
            {name: make() for name, make in MODELS.items()},
            options=ServeOptions(api_keys=("secret",)),
        )
    )
    replicas = {name: Client(create_app({name: make()})) for name, make in MODELS.items()}
    for client in replicas.values():
        client._runner.close()
        client._runner = plain._runner
    for client in (plain, *replicas.values()):
        client.start()
    yield Fleet(plain, replicas)
    for client in (plain, *replicas.values()):
        client.run(client.application.close())
    plain._runner.close()


def comparable(response: httpx.Response) -> tuple[int, dict[str, str], str]:
    """What must be equal: not ids and times."""
    text = re.sub(r'"id":"([a-z]*-?)[0-9a-f-]{32,36}"', r'"id":"\1"', response.text)
    text = re.sub(r'"(total_duration|unix|created)":[\d.]+', r'"\1":0', text)
    names = ("content-type", "www-authenticate", "x-baseten-request-id", "location", "allow")
    return response.status_code, {n: response.headers.get(n, "") for n in names}, text


POSTS: tuple[tuple[str, Any], ...] = (
    ("/v1/embeddings", {"input": TEXTS}),
    ("/v1/rerank", RERANK),
    ("/rerank", {"query": "a", "texts": TEXTS}),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": text} for text in TEXTS]}),
    ("/v1/score", {"text_1": "a", "text_2": TEXTS}),
    ("/classify", {"input": TEXTS}),
    ("/predict", {"inputs": [["a"], ["b"]]}),
    ("/predict", {"inputs": TEXTS}),
    ("/embed", {"inputs": TEXTS}),
    ("/embed_sparse", {"inputs": TEXTS}),
    ("/v2/embed", {"texts": TEXTS, "input_type": "search_query", "embedding_types": ["float"]}),
    ("/api/embed", {"input": TEXTS}),
    ("/v1/multi-vector", {"input": TEXTS}),
    ("/pooling", {"input": TEXTS}),
    ("/pooling", {"input": TEXTS, "input_type": "query", "task": "token_embed"}),
    ("/", {"inputs": TEXTS}),
    ("/", RERANK),
    ("/vertex", {"instances": [{"inputs": "a"}, RERANK, {"inputs": "b", "model": "cls"}]}),
    ("/vertex", {"instances": [{"inputs": "a"}, {"query": 1, "texts": TEXTS}]}),
    ("/vertex", {"instances": [{"inputs": "a", "model": "rank"}]}),
    ("/vertex", {"instances": [{"input": "a", "encoding_format": "bytes"}]}),
    ("/vertex", {"instances": "a"}),
    ("/tokenize", {"inputs": TEXTS}),
    ("/v1/search", {"query": "a"}),
    ("/v1/batches", {"input_file_id": "f"}),
    ("/nowhere", {}),
)


@pytest.mark.parametrize("named", [{}, *({"model": name} for name in (*MODELS, "dummy", "", 7))])
@pytest.mark.parametrize(("path", "body"), POSTS)
def test_a_request_is_answered_by_the_model_that_one_server_takes(
    fleet: Fleet, path: str, body: Any, named: dict[str, Any]
) -> None:
    sent = {**body, **named}
    found, expected = fleet.send("POST", path, sent), fleet.send_plain("POST", path, sent)
    assert comparable(found) == comparable(expected)


def test_vectors_of_tokens_are_those_of_the_model_that_makes_them(fleet: Fleet) -> None:
    for path, fields in (
        ("/v1/multi-vector", {}),
        ("/pooling", {"input_type": "query", "task": "token_embed"}),
    ):
        fleet.calls.clear()
        assert fleet.send("POST", path, {"input": TEXTS, **fields}).status_code == 200
        assert [name for name, _, call in fleet.calls if call.method == "POST"] == ["late"]


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/ping", "/version", "/ready", "/info", "/openapi.json", "/docs"),
        *("/models", "/v1/models", "/v1/models/emb", "/models/cls", "/v1/models/no", "/api/tags"),
        *("/ui", "/v1/batches", "/nowhere", "/v1/embeddings"),
    ],
)
def test_what_has_no_body_is_answered_of_all_models(fleet: Fleet, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer no"}, {"accept": "text/html"}):
        found = fleet.send("GET", path, **headers)
        assert comparable(found) == comparable(fleet.send_plain("GET", path, None, **headers))


def test_the_id_of_a_client_of_baseten_is_kept_where_a_proxy_adds_another(fleet: Fleet) -> None:
    headers = {"x-baseten-customer-request-id": "bid", "x-request-id": "of-the-proxy"}
    for path, body in (("/embed", {"inputs": "a"}), ("/embed", {})):
        found = fleet.send("POST", path, body, **headers)
        assert found.headers["x-baseten-request-id"] == "bid"
        assert "x-request-id" not in found.headers, "Ray's proxy adds it"


def test_a_request_with_a_model_waits_for_no_other_one(fleet: Fleet) -> None:
    fleet.silent = {"rank"}
    assert fleet.send("POST", "/embed", {"inputs": "a", "model": "emb"}).status_code == 200
    assert {name for name, _, _ in fleet.calls} == {"emb"}


def test_a_model_that_does_not_answer_keeps_only_its_own_requests(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.silent = {"rank"}
    for path, body in (
        ("/v1/embeddings", {"input": "a", "model": "emb"}),
        ("/v1/multi-vector", {"input": "a", "model": "late"}),
        ("/classify", {"input": "a", "model": "cls"}),
        ("/v1/embeddings", {"input": "a"}),  # by emb, which comes before
    ):
        found = fleet.send("POST", path, body)
        assert comparable(found) == comparable(fleet.send_plain("POST", path, body))
    # What the others compute is known by now, so no time is needed for them.
    monkeypatch.setattr(remote, "HOLD_SECONDS", 0)
    monkeypatch.setattr(remote, "WORD_SECONDS", 0)
    for path, body in (
        ("/v1/rerank", {**RERANK, "model": "emb"}),  # which cannot
        ("/v1/embeddings", {"input": 7}),
    ):
        found = fleet.send("POST", path, body)
        assert comparable(found) == comparable(fleet.send_plain("POST", path, body))
    assert fleet.send("GET", "/info").status_code == 200
    for path, body in (("/v1/rerank", RERANK), ("/v1/embeddings", {"input": "a", "model": "x"})):
        found = fleet.send("POST", path, body)
        assert (found.status_code, found.headers["retry-after"]) == (503, "2")
        assert "rank is loading; come again" in found.text
    monkeypatch.undo()
    fleet.silent = set()
    fleet.open(are_awake=True)
    assert fleet.send("POST", "/v1/rerank", RERANK).status_code == 200


def test_what_is_wrong_with_a_body_wakes_no_model(fleet: Fleet) -> None:
    for body in ({"input": 7}, [], {"input": "a", "encoding_format": "no"}):
        assert fleet.send("POST", "/v1/embeddings", body).status_code == 400
    assert fleet.calls == []


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/async_predict"])
def test_jobs_are_refused_before_a_model_is_woken(fleet: Fleet, path: str) -> None:
    del fleet.replicas["rank"], fleet.replicas["cls"], fleet.replicas["late"]
    fleet.open(are_awake=False)
    response = fleet.send("POST", path, {})
    assert response.status_code == 400
    assert "keeps jobs; start the server with --data-dir" in response.text
    assert fleet.calls == []


def test_a_replica_that_answers_something_else_is_not_ready(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(name: str, lane: str, call: Call) -> Answer:
        return Answer(status=503, headers=[], body=b'{"error": "?"}')

    monkeypatch.setattr(fleet, "_answer", other)
    fleet.open(are_awake=True)
    assert fleet.send("GET", "/ready").json()["models"]["emb"] == "no replica for bulk answers"
    assert fleet.send("GET", "/v1/models").json()["data"][0]["state"] == "loading"


def test_a_model_without_a_replica_is_not_ready_unless_the_fleet_sleeps(fleet: Fleet) -> None:
    fleet.dead = {"rank"}
    found = fleet.send("GET", "/ready")
    assert (found.status_code, found.json()["status"]) == (503, "not ready")
    models = {**dict.fromkeys(MODELS, "ready"), "rank": "no replica for bulk answers"}
    assert found.json()["models"] == models
    listed = {each["id"]: each for each in fleet.send("GET", "/v1/models").json()["data"]}
    assert (listed["rank"]["state"], listed["emb"]["state"]) == ("loading", "ready")
    assert "task" not in listed["rank"]
    fleet.calls.clear()
    fleet.open(are_awake=False)
    assert fleet.send("GET", "/ready").status_code == 200
    assert [each["id"] for each in fleet.send("GET", "/models").json()["data"]] == list(MODELS)
    assert fleet.send("GET", "/models/rank").json()["id"] == "rank"
    scraped = fleet.send("GET", "/metrics")
    assert (scraped.status_code, "a scrape would start one" in scraped.text) == (404, True)
    assert fleet.calls == []


def test_a_replica_that_is_silent_is_not_ready(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "READY_SECONDS", 0)
    fleet.silent = set(MODELS)
    assert fleet.send("GET", "/ready").status_code == 503


def test_a_replica_that_is_not_ready_says_why(fleet: Fleet) -> None:
    [model] = fleet.replicas["emb"].application.catalog
    model.error = "the disk is gone"
    assert fleet.send("GET", "/ready").json()["models"]["emb"] == "the disk is gone"


def test_a_websocket_is_closed(fleet: Fleet) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    fleet.plain.run(fleet.gateway({"type": "websocket"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1000}]


def test_a_server_that_starts_and_ends_is_told_so(fleet: Fleet) -> None:
    sent: list[Any] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        return next(messages)

    fleet.plain.run(fleet.gateway({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize(("path", "kind"), [("/health", "own"), ("/v1/models/emb", "a replica's")])
def test_a_client_that_leaves_before_its_answer_is_no_error(
    fleet: Fleet, path: str, kind: str
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        raise OSError("the client has left")

    async def receive() -> Any:
        if received:
            await asyncio.Event().wait()
        received.append(True)
        return {"type": "http.request", "body": b"", "more_body": False}

    received: list[bool] = []
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer secret")]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    fleet.plain.run(fleet.gateway(scope, receive, send))
    assert sent == ["http.response.start"]
    assert len(fleet.calls) == (kind != "own")


@pytest.mark.parametrize(
    ("body", "lane"),
    [
        ({}, "query"),
        ({"input": ["a"] * 16}, "query"),
        ({"input": ["a"] * 17}, "bulk"),
        ({"input": list(range(100))}, "query"),  # one text, in tokens
        ({"text_1": "a", "text_2": ["a"] * 17}, "bulk"),
        ({"inputs": {"source_sentence": "a", "sentences": ["a"] * 17}}, "bulk"),
        ({"instances": [{"inputs": ["a"] * 9}, {"inputs": ["a"] * 8}]}, "bulk"),
        ({"instances": [{"inputs": "a"}] * 16}, "query"),
        ({"inputs": [["a", "b"]] * 16}, "query"),  # pairs
        ({"input": "a" * 70_000}, "bulk"),
    ],
)
def test_few_short_texts_are_a_query(body: Any, lane: str) -> None:
    assert lane_of(json.dumps(body).encode()) == lane


@pytest.mark.parametrize("body", [b'{"model": "\xff"}', b'{"a":' * 10_000, b"[]", b"", b"null"])
def test_a_body_that_cannot_be_read_is_refused_as_by_one_server(fleet: Fleet, body: bytes) -> None:
    assert lane_of(body) == "query"

    async def send(application: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post("/v1/embeddings", content=body, headers=KEY)

    found, expected = (
        fleet.plain.run(send(each)) for each in (fleet.gateway, fleet.plain.application)
    )
    assert comparable(found) == comparable(expected)
