"""What a request does with its connection itself, and what it leaves to the messages of ASGI."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from embedlib.serve.http.direct import DirectRequest


def make(pipeline: tuple[str, ...] = (), **facts: Any) -> tuple[DirectRequest, Any]:
    """Return a request that is there as a whole, and what uvicorn knows of it."""
    cycle = SimpleNamespace(
        more_body=False,
        waiting_for_100_continue=False,
        disconnected=False,
        keep_alive=True,
        body=bytearray(b"all of it"),
        scope={"method": "POST"},
        default_headers=[(b"date", b"now")],
        flow=Mock(write_paused=False),
        transport=Mock(),
        on_response=Mock(),
        response_started=False,
        response_complete=False,
    )
    vars(cycle).update(facts)
    return DirectRequest(cycle, Mock(), pipeline), cycle  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", ["more_body", "waiting_for_100_continue", "disconnected"])
def test_a_body_that_is_not_there_is_waited_for(fact: str) -> None:
    request, cycle = make(**{fact: True})
    assert request.take_body() is None
    assert cycle.body == b"all of it"
    assert not cycle.flow.resume_reading.called


@pytest.mark.parametrize("pipeline", [(), ("next",)])
def test_a_body_is_taken_and_more_is_read_unless_requests_wait(pipeline: tuple[str, ...]) -> None:
    request, cycle = make(pipeline)
    assert request.take_body() == b"all of it"
    assert cycle.body == b""
    assert cycle.flow.resume_reading.called is not bool(pipeline)


@pytest.mark.parametrize(
    ("facts", "headers", "size"),
    [
        ({"keep_alive": False}, [], 1),
        ({"disconnected": True}, [], 1),
        ({"flow": Mock(write_paused=True)}, [], 1),
        ({"scope": {"method": "HEAD"}}, [], 1),
        ({}, [], HIGH_WATER_LIMIT + 1),
        ({}, [(b"a", b"b\r\nc: d")], 1),
    ],
)
def test_what_is_not_so_simple_is_left_to_messages(
    facts: dict[str, Any], headers: list[tuple[bytes, bytes]], size: int
) -> None:
    request, cycle = make(**facts)
    assert not request.answer(200, headers, bytes(size))
    assert not cycle.transport.write.called
    assert not cycle.response_started


def test_a_whole_answer_is_one_write() -> None:
    request, cycle = make()
    body = bytes(HIGH_WATER_LIMIT)
    assert request.answer(200, [(b"a", b"b")], body)
    cycle.transport.write.assert_called_once_with(
        b"HTTP/1.1 200 OK\r\ndate: now\r\na: b\r\n\r\n" + body
    )
    assert cycle.response_started
    assert cycle.response_complete
    cycle.on_response.assert_called_once_with()
