"""`embedlib serve` as a process: its start, its end by signals, and clients that stall."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from embedlib.testing import write_tiny_model

SECONDS = 60.0
SERVE = """
import sys
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.server import Listen, serve
from embedlib.testing import FakeEngine, fake_embedder

engine = FakeEngine()
if "held" in sys.argv:
    engine.hold()
options = ServeOptions(head_seconds=0.2, body_seconds=0.2, grace_seconds=0.0)
serve(create_app({"fake": fake_embedder(engine)}, options=options), Listen(port=int(sys.argv[1])))
print("ended in order", flush=True)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


class Server:
    """A process that serves a fake engine."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self.port}"
        wait_ready(self.url, self.process)

    def get(self, path: str) -> bytes:
        return httpx.get(f"{self.url}{path}").content

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SECONDS)

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output


def wait_ready(url: str, process: subprocess.Popen[str], **options: Any) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", **options).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)  # a process in its start; there is nothing to wait on
    raise AssertionError(process.communicate()[0] if process.poll() is not None else "too late")


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*arguments: str) -> Server:
        server = Server(*arguments)
        started.append(server)
        return server

    yield start
    for server in started:
        server.process.kill()
        server.process.communicate()


def test_the_end_by_a_signal_answers_what_runs(start: Callable[..., Server]) -> None:
    server = start()
    with httpx.Client(base_url=server.url) as http:
        assert http.post("/embed", json={"inputs": "a"}).status_code == 200
    server.process.send_signal(signal.SIGTERM)
    code, output = server.end()
    assert code == 0, output
    assert "ended in order" in output


def test_the_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start("held")
    with server.connect() as client:
        body = b'{"inputs": "a"}'
        client.sendall(
            b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        while b'queued_texts{model="fake",lane="query"} 1' not in server.get("/metrics"):
            pass
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        code, output = server.end()
    assert code == 1, output
    assert "ended in order" not in output


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"POST /embed HT", b""),
        (b"POST /embed HTTP/1.1\r\nHost: x\r\n", b""),
        (
            b'POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"inputs',
            b"HTTP/1.1 408",
        ),
    ],
    ids=["silent", "half a line", "half a head", "half a body"],
)
def test_who_stalls_is_cut_off(start: Callable[..., Server], sent: bytes, answer: bytes) -> None:
    server = start()
    with server.connect() as client:
        client.sendall(sent)
        received = b""
        while chunk := client.recv(65536):
            received += chunk
            if answer and b"\r\n\r\n" in received:
                break
    assert received.startswith(answer)
    assert bool(received) == bool(answer)


def test_a_port_in_use_is_one_line(start: Callable[..., Server]) -> None:
    server = start()
    found = subprocess.run(
        [sys.executable, "-c", SERVE, str(server.port)], capture_output=True, text=True
    )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].startswith("embedlib.errors.ConfigError: http://127.0.0.1")


def test_the_command(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    path = tmp_path / "socket"
    keys = tmp_path / "keys"
    keys.write_text("k1\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "embedlib", "serve", str(folder), "--uds", str(path)),
            *("--name", f"tiny={folder}", "--api-keys-file", str(keys)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        transport = httpx.HTTPTransport(uds=str(path))
        until = time.monotonic() + SECONDS
        with httpx.Client(transport=transport, base_url="http://localhost") as http:
            while not can_connect(path) or http.get("/ready").status_code != 200:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until, "the server is not ready"
                time.sleep(0.05)
            assert path.stat().st_mode & 0o777 == 0o600
            assert http.post("/embed", json={"inputs": "a"}).status_code == 401
            answer = http.post("/embed", json={"inputs": "a"}, headers={"x-api-key": "k1"})
            assert answer.status_code == 200
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert re.fullmatch(r"Serving tiny on unix:.*; Ctrl-C stops it\n", errors), errors
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["status"] for line in lines if line["route"] == "/embed"] == [401, 200]
    assert not path.exists()
