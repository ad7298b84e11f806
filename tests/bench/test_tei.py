"""text-embeddings-inference as a contestant; a small server stands for its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embedlib.bench.contestants.tei import VARIABLE, TeiContestant
from embedlib.measuring.process import ContestantFailedError

SERVER = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

assert "--pooling mean --hostname 127.0.0.1" in " ".join(sys.argv)
together = threading.Barrier(9)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_right = self.path == "/embed" and len(given["inputs"]) <= 32
        if given["inputs"][0] == "together":
            together.wait(300)
        self.answer(200 if is_right else 413, [[len(text), 1.0] for text in given["inputs"]])
        self.close_connection = given["inputs"][0] == "the last"  # without telling

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def write(program: str) -> None:
        path = tmp_path / "router"
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(path))

    return write


def load(folder: Path) -> TeiContestant:
    contestant = TeiContestant()
    contestant.load(folder, folder, 1, {})
    return contestant


@pytest.fixture
def contestant(
    binary: Callable[[str], None], tiny_folder: Callable[[str], Path]
) -> Iterator[TeiContestant]:
    binary(SERVER)
    loaded = load(tiny_folder("bert"))
    yield loaded
    loaded._server.close()
    while not loaded._idle.empty():
        loaded._idle.get().close()


def test_requests_of_32_texts(contestant: TeiContestant) -> None:
    vectors = contestant.encode(["a" * length for length in range(1, 71)], None)
    assert vectors.tolist() == [[length, 1.0] for length in range(1, 71)]
    assert contestant.query("abc").tolist() == [3.0, 1.0]
    assert contestant.memory()["peak"] > 1


def test_a_query_beside_a_bulk_pass_waits_for_no_connection(contestant: TeiContestant) -> None:
    with ThreadPoolExecutor(1) as pool:
        bulk = pool.submit(contestant.encode, ["together"] * 8 * 32, None)
        assert contestant.query("together").tolist() == [8.0, 1.0]
        assert len(bulk.result()) == 8 * 32


def test_a_connection_that_the_server_has_closed_is_opened_again(contestant: TeiContestant) -> None:
    for _ in range(3):
        assert contestant.query("the last").tolist() == [8.0, 1.0]


def test_a_server_that_ends_says_why(
    binary: Callable[[str], None], tiny_folder: Callable[[str], Path]
) -> None:
    binary("print('loading'); print('no such pooling'); raise SystemExit(1)")
    with pytest.raises(ContestantFailedError, match=r"router failed: no such pooling$"):
        load(tiny_folder("bert"))
