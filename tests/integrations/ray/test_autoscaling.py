"""How many replicas a model needs, and where the gateway sends a request; without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embedlib.serve import ServeOptions
from embedlib_ray.autoscaling import BUSY, WORK, WorkPolicy, replicas_needed
from embedlib_ray.gateway import Gateway
from embedlib_ray.replica import Answer, Call, answer


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
        ((30.0,), (1.0,), 0, 3),  # a request that has just ended left work
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
        self.paths: list[str] = []
        lanes = {
            model: {lane: self.replica(model, lane) for lane in ("query", "bulk")}
            for model in models
        }
        self.gateway = Gateway(lanes, options or ServeOptions(), sources={}, are_awake=False)

    def replica(self, model: str, lane: str) -> Callable[[Call], Awaitable[Answer]]:
        async def answer_call(call: Call) -> Answer:
            self.paths.append(call.path)
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
    assert fleet.paths == ["/embed"]  # and nothing else, for which it would wait
