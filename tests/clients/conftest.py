"""A real server in a process of its own, with a tiny model of each kind, for real clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from embedlib import Classifier, Document, Embedder, Reranker, index
from embedlib.testing import write_tiny_model
from tests.ports import free_port

KEY = "k-clients"
PRECISION = "float32"
"""Of both sides: what `auto` takes depends on the CPU and on what was measured before."""
SECONDS = 120.0
SEARCHED = ("copy a folder", "remove a folder", "list the files")


@dataclass(frozen=True)
class Served:
    """A server, and the models that it serves, in this process."""

    url: str
    embedder: Embedder
    reranker: Reranker
    classifier: Classifier


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    names = {"embed": "bert", "rank": "bert-reranker", "label": "bert-classifier"}
    folders = {name: write_tiny_model(root / name, kind) for name, kind in names.items()}
    rows = f"jsonl:{root / 'rows.jsonl'}"
    with Embedder(folders["embed"], precision=PRECISION) as embedder:
        index([Document(id=text, text=text) for text in SEARCHED], rows, embedder=embedder)
    keys = root / "keys"
    keys.write_text(f"{KEY}\n")
    port = free_port()
    command = [sys.executable, "-m", "embedlib", "serve", *map(str, folders.values())]
    for name, folder in folders.items():
        command += ["--name", f"{name}={folder}"]
    command += ["--port", str(port), "--api-keys-file", str(keys), "--precision", PRECISION]
    command += ["--data-dir", str(root / "jobs"), "--search", f"docs={rows}"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache"), "HF_HUB_OFFLINE": "1"}
    with Path(root / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait_ready(port, process, root / "log")
        with (
            Embedder(folders["embed"], precision=PRECISION) as embedder,
            Reranker(folders["rank"], precision=PRECISION) as reranker,
            Classifier(folders["label"], precision=PRECISION) as classifier,
        ):
            yield Served(f"http://127.0.0.1:{port}", embedder, reranker, classifier)
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0, (root / "log").read_text()


def _wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                client.sendall(
                    b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                if client.recv(100).startswith(b"HTTP/1.1 200"):
                    return
        time.sleep(0.1)
    raise AssertionError(log.read_text())
