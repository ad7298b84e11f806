"""A server in a process of its own, and a real Chromium that looks at it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedlib.testing import write_tiny_model
from tests.ports import free_port

KEY = "k-console"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TEXTS = ("copytree copies", "dumps writes", "sorted returns")
SERVE = f"""
import sys
from embedlib import Config, Document, Embedder, index
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.http.server import Listen, serve
from embedlib.testing import FakeSink, FakeStore

port, key, *folders = sys.argv[1:]
config = Config(threads=1, precision="float32")
store = FakeStore()
with Embedder(folders[0], config=config) as embedder:
    rows = [Document(id=text[:4], text=text) for text in {TEXTS}]
    index(rows, FakeSink(store), embedder=embedder)
options = ServeOptions(api_keys=(key,) if key else ())
models = {{folder.rpartition("/")[2]: folder for folder in folders}}
found = {{}} if key else {{"docs": FakeSink(store), "same": FakeSink(store)}}
serve(create_app(models, config=config, options=options, search=found), Listen(port=int(port)))
"""


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    real = os.environ.get("EMBEDLIB_CONSOLE_MODEL")  # for screenshots that mean something
    root = tmp_path_factory.mktemp("models")
    kinds = {"reranker": "bert-reranker", "classifier": "bert-classifier"}
    written = [write_tiny_model(root / name, kind) for name, kind in kinds.items()]
    return [Path(real) if real else write_tiny_model(root / "embedder", "bert"), *written]


def start(port: int, key: str, folders: list[Path], cache: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port), key, *map(str, folders)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "HF_HUB_OFFLINE": "1"},
    )


def wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)  # a process in its start; there is nothing to wait on
    raise AssertionError("the server does not listen")


@pytest.fixture(scope="session")
def urls(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of a server without a key ("open") and of one with `KEY` ("keyed")."""
    ports = {"open": free_port(), "keyed": free_port()}
    cache = tmp_path_factory.mktemp("cache")
    started = [
        start(ports["open"], "", folders, cache),
        start(ports["keyed"], KEY, folders[:1], cache),
    ]
    for port, process in zip(ports.values(), started, strict=True):
        wait_listening(port, process)
    yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    for process in started:
        process.terminate()
    assert [process.wait(60) for process in started] == [0, 0]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium on PATH; apt install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
