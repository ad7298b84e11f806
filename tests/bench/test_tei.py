"""text-embeddings-inference as a contestant; a small server stands for its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.bench.tei_contestant import VARIABLE, TeiContestant
from embedlib.measuring.process import ContestantFailedError

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

assert "--pooling mean --hostname 127.0.0.1" in " ".join(sys.argv)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_right = self.path == "/embed" and len(given["inputs"]) <= 32
        self.answer(200 if is_right else 413, [[len(text), 1.0] for text in given["inputs"]])

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


def test_requests_of_32_texts(
    binary: Callable[[str], None], tiny_folder: Callable[[str], Path]
) -> None:
    binary(SERVER)
    contestant = load(tiny_folder("bert"))
    try:
        vectors = contestant.encode(["a" * length for length in range(1, 71)], None)
        assert vectors.tolist() == [[length, 1.0] for length in range(1, 71)]
        assert contestant.query("abc").tolist() == [3.0, 1.0]
        assert contestant.memory()["peak"] > 1
    finally:
        contestant._server.close()
        while not contestant._idle.empty():
            contestant._idle.get().close()


def test_a_server_that_ends_says_why(
    binary: Callable[[str], None], tiny_folder: Callable[[str], Path]
) -> None:
    binary("print('loading'); print('no such pooling'); raise SystemExit(1)")
    with pytest.raises(ContestantFailedError, match=r"router failed: no such pooling$"):
        load(tiny_folder("bert"))
