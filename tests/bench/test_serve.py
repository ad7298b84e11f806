from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedlib.bench import http_client, serving
from embedlib.bench.http_client import ClientCalls, Connection, make_request
from embedlib.bench.options import ServeBenchOptions
from embedlib.bench.serve_table import render_serve
from embedlib.bench.servers import cpu_seconds
from embedlib.bench.serving import run_serve
from embedlib.cli import main
from embedlib.errors import ConfigError
from embedlib.measuring.process import ContestantFailedError

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


class Answering:
    """A connection to a server that answers at once."""

    def __init__(self, log: list[bytes]) -> None:
        self.log = log

    async def ask(self, request: bytes) -> int:
        self.log.append(request.rpartition(b'"input": ')[2][:2])
        await asyncio.sleep(0)
        return 200


def test_every_query_beside_bulk_is_beside_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[bytes] = []

    @asynccontextmanager
    async def connect(url: str, num_connections: int) -> AsyncIterator[list[Any]]:
        yield [Answering(log) for _ in range(num_connections)]

    monkeypatch.setattr(http_client, "_connect", connect)
    calls = ClientCalls()
    calls.set_texts(["a text"], ["q"] * 5)
    mixed = calls.mixed(URL, "m", 0.0, interval_s=0, request_texts=1, connections=1)
    assert len(mixed["latencies_ms"]) == 5, "more than fit into the time"
    assert log.count(b'["') >= 5


def test_a_server_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_SECONDS", 0)

    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(OSError, match=r"^the server has not answered all within 0 s$"):
        http_client._run(hang)


class FakeServer:
    """Stands for `embedlib serve`."""

    url, cpu_s = "http://ours", 0.0

    def __init__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class FakeClient:
    """A client's process; the third bulk pass of another server fails, and all after it."""

    def __init__(self, *_: object) -> None:
        self.calls: list[tuple[str, str]] = []

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, name: str, url: str = "", **_: Any) -> Any:
        if name == "status":
            return 200
        self.calls.append((name, url))
        if self.calls.count(("bulk", URL)) > 2 and url == URL:
            raise ContestantFailedError("client", "OSError: the server closed the connection")
        return {"seconds": 0.5, "client_cpu_s": 0.25, "latencies_ms": [1.0], "failures": {}}


def test_a_server_of_others_that_fails_costs_no_other_figures(
    tiny_folder: Callable[[str], Path], course: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    monkeypatch.setattr(serving, "Server", FakeServer)
    monkeypatch.setattr(serving, "ChildProcess", lambda *_: client)
    monkeypatch.setattr(serving, "usable_cores", lambda: 2)
    options = ServeBenchOptions(
        model=str(tiny_folder("bert")),
        urls={"other": URL},
        num_texts=40,
        query_seconds=0.3,
        rounds=3,
    )
    told: list[str] = []
    result = run_serve(options, machine={}, start=course.start, report=told.append)
    [ours] = result.servers
    assert (ours.name, len(ours.bulk_ratio.values)) == ("embedlib serve", 3)
    assert ours.client_share == 0.25, "a quarter of two cores"
    [left_out] = result.skipped
    assert left_out.reason == "OSError: the server closed the connection"
    assert f"other: not measured: {left_out.reason}" in told
    assert [name for name, url in client.calls if url == URL] == ["bulk"] * 3, "asked again"
    loads = [event for event in course.fakes["embedlib"].events if event[0] == "load"]
    assert [is_cold for _, _, is_cold, *_ in loads] == [True, False]
    assert "40 texts, " in render_serve(result)


def test_the_time_of_a_process() -> None:
    assert 0 < cpu_seconds(os.getpid()) < 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not end it")
def test_a_server_ends_with_who_started_it() -> None:
    program = """
import os, sys
from embedlib.bench.servers import Server

serve = "s.HTTPServer(('127.0.0.1', int(sys.argv[-1])), s.SimpleHTTPRequestHandler).serve_forever()"
Server("s", [sys.executable, "-c", f"import sys, http.server as s; {serve}"], ready="/")
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
        assert parent.wait() == -signal.SIGKILL
        assert parent.stdin is not None
        poll = select.poll()
        poll.register(parent.stdin, 0)  # an error of it: nobody has the other end any more
        assert poll.poll(20_000), "the server lives on"


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
