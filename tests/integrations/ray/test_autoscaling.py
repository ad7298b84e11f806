"""How many replicas a model needs, and where the gateway sends a request; without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.serve import ServeOptions, create_app
from embedlib.testing import fake_embedder
from embedlib_ray import replica
from embedlib_ray.autoscaling import BUSY, WORK, WorkPolicy, replicas_needed
from embedlib_ray.gateway import Gateway
from embedlib_ray.replica import Answer, Call, Loaded, answer


@pytest.mark.parametrize(
    ("work", "busy", "num_requests", "expected"),
    [
        ((), (), 0, 0),  # nobody asks
        ((), (), 3, 1),  # requests wait for the first replica
        ((0.0,), (0.0,), 1, 1),
        ((30.0,), (1.0,), 1, 3),  # one request with much work
        ((1.0, 1.0), (0.8, 0.8), 500, 2),
        ((0.0, 0.0), (0.9, 0.9), 2, 3),  # no queue, and no room for a rush
        ((0.0,) * 4, (0.1,) * 4, 9, 1),
    ],
)
def test_replicas_follow_work_and_not_requests(
    work: tuple[float, ...], busy: tuple[float, ...], num_requests: int, expected: int
) -> None:
    assert replicas_needed(work, busy, num_requests, target_seconds=10.0) == expected


def test_the_policy_reads_what_replicas_record() -> None:
    metrics = {WORK: {"a": 12.0, "b": 18.0}, BUSY: {"a": 1.0, "b": 1.0}}
    context = SimpleNamespace(aggregated_metrics=metrics, total_num_requests=2)
    assert WorkPolicy(10.0)(context) == (3, {})
    nothing = SimpleNamespace(aggregated_metrics=None, total_num_requests=0)
    assert WorkPolicy(10.0)(nothing) == (0, {})


class Fleet:
    """Replicas that note what they are asked, and a client."""

    def __init__(self, *models: str, options: ServeOptions | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        lanes = {
            model: {lane: self.replica(model, lane) for lane in ("query", "bulk")}
            for model in models
        }
        self.gateway = Gateway(lanes, options or ServeOptions(), sources={}, are_awake=False)

    def replica(self, model: str, lane: str) -> Callable[[Call], Awaitable[Answer]]:
        async def answer_call(call: Call) -> Answer:
            if call.path == "/v1/models":
                return Answer(status=200, body=b'{"data": [{"tasks": ["embed"]}]}')
            self.asked.append((model, lane))
            return Answer(status=200, body=call.body)

        return answer_call

    def send(self, path: str, body: Any) -> Answer:
        call = Call(method="POST", path=path, body=json.dumps(body).encode())
        return asyncio.run(answer(self.gateway, call))


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"model": "b", "input": "a"}, ("b", "query")),
        ({"model": "a", "input": ["x"] * 16}, ("a", "query")),
        ({"model": "a", "input": ["x"] * 17}, ("a", "bulk")),
        ({"model": "a", "input": "x" * 70_000}, ("a", "bulk")),
        ({"model": "a", "input": [7] * 40}, ("a", "query")),  # one text, in tokens
        ({"input": "x"}, ("a", "query")),
        ({"model": 3, "input": "x"}, None),
    ],
)
def test_a_request_goes_to_its_model_and_lane(
    body: dict[str, Any], asked: tuple[str, str] | None
) -> None:
    fleet = Fleet("a", "b", options=ServeOptions(token_ids=True))
    found = fleet.send("/v1/embeddings", body)
    assert fleet.asked == ([] if asked is None else [asked])
    assert found.status == (400 if asked is None else 200)


def test_one_model_takes_any_name() -> None:
    fleet = Fleet("only")
    assert fleet.send("/embed", {"model": "gpt", "inputs": "x"}).status == 200
    assert fleet.asked == [("only", "query")]


def test_a_replica_answers_as_the_server_does_and_tells_its_work() -> None:
    async def run() -> tuple[Answer, tuple[float, float]]:
        with fake_embedder() as embedder:
            application = create_app({"m": embedder})
            await application.start()
            await application.loaded()
            body = json.dumps({"model": "m", "input": ["a", "b"]}).encode()
            call = Call(method="POST", path="/v1/embeddings", body=body)
            loaded = Loaded(application)
            found = await answer(application, call)
            look = loaded.look()
            await application.close()
            return found, look

    found, (work, busy) = asyncio.run(run())
    assert found.status == 200
    assert len(json.loads(found.body)["data"]) == 2
    assert work == 0.0
    assert 0.0 <= busy <= 1.0


def test_a_replica_tells_which_share_of_the_time_it_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((100.0, 110.0, 120.0, 120.0))
    seconds = iter((5.0, 35.0, 35.0))
    monkeypatch.setattr(replica, "monotonic", lambda: next(clock))
    monkeypatch.setattr(replica, "computed", lambda _: (0, next(seconds)))
    model = Mock(admission=Mock(seconds_of_work=2.0))
    loaded = Loaded(Mock(catalog=[model]))
    assert [loaded.look() for _ in range(3)] == [(2.0, 0.5), (2.0, 1.0), (2.0, 0.0)]
