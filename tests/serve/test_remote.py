"""Models of other processes: which one a request is for, by what each tells of its tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from embedlib.serve import ServeOptions, remote
from embedlib.serve.dialects.dialect import Handle
from embedlib.serve.errors import HTTPError
from embedlib.serve.remote import ElsewhereError, RemoteModels
from embedlib.serve.requests.asgi import Request, Response
from embedlib.serve.requests.exchange import Exchange
from embedlib.serve.routes import find_route
from tests.waiting import WAIT_SECONDS

T = TypeVar("T")
ALL = ["one", "two", "rank", "last"]
TEXT = {"input": "a"}
PAIR = {"query": "q", "documents": ["a"]}


def run(work: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, WAIT_SECONDS)

    return asyncio.run(limited())


class Front:
    """A server in front of models that tell their tasks, fail to, or are silent (None)."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = dict(told)
        self.asked: list[str] = []
        self.models = RemoteModels(dict.fromkeys(told, "folder"), ServeOptions(), self._ask)

    async def _ask(self, name: str) -> Any:
        self.asked.append(name)
        await asyncio.sleep(0)
        told = self.told[name]
        if told is None:
            await asyncio.Event().wait()
        if isinstance(told, Exception):
            raise told
        return told

    async def answer(self, path: str, body: Any, method: str = "POST") -> Response:
        request = Request(method=method, path=path, query="", headers={}, client="")
        route, _ = find_route(request)
        exchange = self.models.exchange(request, self._answer_part)
        exchange.body = json.dumps(body).encode()
        return await self.models.choose(route.handle, exchange)

    async def choose(self, path: str, body: Any) -> str:
        """Return the name of the model that a request is for."""
        with pytest.raises(ElsewhereError) as found:
            await self.answer(path, body)
        return found.value.model

    async def _answer_part(self, handle: Handle, exchange: Exchange) -> Response:
        with pytest.raises(ElsewhereError) as found:
            await self.models.choose(handle, exchange)
        return Response(json.dumps([found.value.model, json.loads(exchange.body)]).encode())


@pytest.mark.parametrize(
    ("path", "body", "model", "asked"),
    [
        ("/v1/embeddings", TEXT, "one", ALL),
        ("/v1/embeddings", {**TEXT, "model": "two"}, "two", ["two"]),
        ("/rerank", PAIR, "rank", ALL),
        ("/rerank", {**PAIR, "model": "one"}, "one", ["one"]),
        ("/rerank", {**PAIR, "model": "other"}, "rank", ALL),
        ("/predict", {"inputs": [["a", "b"]]}, "rank", ALL),
        ("/pooling", {**TEXT, "task": "token_embed"}, "one", ALL),
    ],
)
def test_only_those_are_asked_that_the_choice_depends_on(
    path: str, body: Any, model: str, asked: list[str]
) -> None:
    front = Front({name: ("rerank",) if name == "rank" else ("embed",) for name in ALL})
    assert run(front.choose(path, body)) == model
    assert sorted(front.asked) == sorted(asked)


def test_who_has_told_is_not_asked_again() -> None:
    async def work() -> None:
        front = Front({"one": ("embed",), "two": ("rerank",), "last": ("embed",)})
        assert await front.choose("/v1/embeddings", {**TEXT, "model": "one"}) == "one"
        both = [front.choose("/v1/embeddings", TEXT) for _ in range(2)]
        assert await asyncio.gather(*both) == ["one", "one"]
        assert front.asked == ["one"], "those behind the first that is able do not matter"
        both = [front.choose("/predict", {"inputs": [["a", "b"]]}) for _ in range(2)]
        assert await asyncio.gather(*both) == ["two", "two"]
        assert sorted(front.asked) == ["last", "one", "two"]

    run(work())


def test_one_that_cannot_be_asked_is_asked_with_the_next_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        front = Front({"one": OSError("no replica\nat all"), "two": ("embed",)})
        with pytest.raises(HTTPError) as refused:
            await front.answer("/v1/embeddings", TEXT)
        assert (refused.value.status, refused.value.kind) == (503, "unavailable")
        assert "one is loading" in refused.value.message
        assert caplog.messages == ["one: no replica"]
        front.told["one"] = ("embed",)
        assert await front.choose("/v1/embeddings", TEXT) == "one"
        assert front.asked.count("one") == 2

    run(work())


@pytest.mark.parametrize("body", [PAIR, {**PAIR, "model": "other"}])
def test_a_choice_among_models_that_are_silent_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    monkeypatch.setattr(remote, "HOLD_SECONDS", 0.0)

    async def work() -> None:
        front = Front({"one": None, "two": None})
        with pytest.raises(HTTPError) as refused:
            await front.answer("/rerank", body)
        assert refused.value.status == 503
        assert refused.value.retry_seconds == 2

    run(work())


def test_a_named_model_is_found_though_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that computes refuses what it cannot do."""
    monkeypatch.setattr(remote, "HOLD_SECONDS", 0.0)
    front = Front({"one": None, "two": ("rerank",)})
    assert run(front.choose("/v1/embeddings", {**TEXT, "model": "one"})) == "one"


def test_a_refusal_names_the_models_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WORD_SECONDS", 0.0)

    async def work() -> None:
        front = Front({"one": ("embed",), "two": ("rerank",), "silent": None})
        for _ in range(2):  # at the second time it is known, or still silent
            with pytest.raises(HTTPError) as refused:
                await front.answer("/predict", {"inputs": [["a", "b"]], "model": "one"})
            assert refused.value.kind == "wrong_model"
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert refused.value.message.endswith("; there is two, silent")
        assert sorted(front.asked) == ["one", "silent", "two"]

    run(work())


def test_each_instance_has_a_model_of_its_own() -> None:
    front = Front({"one": ("embed",), "two": ("rerank",)})
    instances = [{"inputs": "a"}, {"query": "q", "texts": ["b"], "model": "two"}]
    answer = run(front.answer("/vertex", {"instances": instances}))
    assert json.loads(answer.body)["predictions"] == [
        ["one", instances[0]],
        ["two", instances[1]],
    ]


def test_what_needs_no_model_is_answered() -> None:
    front = Front({"one": None})
    answer = run(front.answer("/v1/models", None, method="GET"))
    [facts] = msgspec.json.decode(answer.body)["data"]
    assert (facts["id"], facts["root"], facts["state"]) == ("one", "folder", "ready")
    assert front.asked == []
