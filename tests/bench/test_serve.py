from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from click.testing import CliRunner

from embedlib.bench.http_client import ClientCalls, Connection, make_request
from embedlib.bench.options import ServeBenchOptions
from embedlib.bench.servers import cpu_seconds
from embedlib.cli import main
from embedlib.errors import ConfigError

URL = "http://127.0.0.1:1/v1/embeddings"


class Transport(asyncio.Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False


async def ask(*parts: bytes, error: Exception | None = None) -> int:
    """Return what a connection makes of an answer that arrives in parts and then ends."""
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)
    asking = asyncio.ensure_future(connection.ask(b"request"))
    await asyncio.sleep(0)
    assert transport.sent == b"request"
    for part in parts:
        assert not asking.done()
        connection.data_received(part)
    connection.connection_lost(error)
    return await asking


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_answer_in_parts(step: int) -> None:
    answer = b"HTTP/1.1 429 Too Many\r\nX: y\r\nContent-Length: 5\r\n\r\nabcde"
    parts = [answer[start : start + step] for start in range(0, len(answer), step)]
    assert asyncio.run(ask(*parts)) == 429


def test_a_connection_that_ends_and_an_answer_without_a_length() -> None:
    with pytest.raises(OSError, match="closed"):
        asyncio.run(ask(b"HTTP/1.1 200 OK\r\nContent-Le"))
    with pytest.raises(OSError, match="no Content-Length"):
        asyncio.run(ask(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))


def test_a_request_is_that_of_the_openai_package() -> None:
    head, _, body = make_request("http://h:1/v1/embeddings", "m", ["a", "ü"]).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/embeddings HTTP/1.1\r\nHost: h:1\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert json.loads(body) == {"model": "m", "input": ["a", "ü"], "encoding_format": "base64"}


def test_clients_that_find_no_server_are_counted() -> None:
    calls = ClientCalls()
    calls.set_texts([], ["q"])
    crowd = calls.crowd(URL, "m", clients=3, connect_timeout_s=5, requests=4)
    assert sum(crowd["failures"].values()) == 12
    assert crowd["latencies_ms"] == []


def test_the_time_of_a_process() -> None:
    assert 0 < cpu_seconds(os.getpid()) < 1e6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"urls": {"tei": "127.0.0.1:3000"}}, r"urls\['tei'\] = '127.0.0.1:3000'; it must be http"),
        ({"rounds": 0}, "rounds = 0; it must be at least 1"),
        ({"query_seconds": 0.0}, "query_seconds"),
    ],
)
def test_options_out_of_range(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServeBenchOptions(model="m", **wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "--vs-url", "a=http://h"], "--vs-url is for --serve"),
        (["m", "--serve", "--vs", "all"], "--serve goes without --task, --vs"),
        (["m", "--serve", "--vs-url", "http"], "--vs-url 'http': give NAME=URL"),
        (["--serve"], "Missing argument 'MODEL'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code != 0
    assert message in done.stderr
