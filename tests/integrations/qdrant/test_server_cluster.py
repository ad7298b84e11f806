"""A cluster of three real Qdrant nodes, of which one dies; skipped where none can be started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embedlib
from embedlib import Document
from embedlib.errors import SinkError
from embedlib.indexing import open_sink
from embedlib.indexing.report import IndexProgress
from embedlib.testing import FakeEngine, fake_embedder
from embedlib.testing.check_sink import TARGET
from tests.ports import free_port

models = pytest.importorskip("qdrant_client.models", reason="needs the extra qdrant")

pytestmark = pytest.mark.qdrant_server


@pytest.fixture
def nodes(start_qdrant: Callable[..., Any]) -> list[Any]:
    started: list[Any] = []
    for _ in range(3):
        port = free_port()
        settings = {
            "QDRANT__CLUSTER__ENABLED": "true",
            "QDRANT__CLUSTER__P2P__PORT": str(port),
            "QDRANT_URI": f"http://127.0.0.1:{port}",
        }
        if started:
            settings["QDRANT_BOOTSTRAP"] = started[0][1]
        started.append((start_qdrant(**settings), settings["QDRANT_URI"]))
    return [server for server, _ in started]


def test_a_load_goes_on_when_a_node_dies(
    nodes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    url = f"{nodes[0].url}/docs?shards=3&replicas=2"
    sink: Any = open_sink(url)
    sink.sleep = lambda seconds: time.sleep(min(seconds, 0.2))
    texts = [Document(id=f"d{number}", text=f"text {number}") for number in range(1200)]
    is_dead = threading.Event()

    def kill(progress: IndexProgress) -> None:
        if progress.num_embedded >= 300 and not is_dead.is_set():
            nodes[2].kill()
            is_dead.set()

    with fake_embedder(FakeEngine(max_batch_tokens=512)) as embedder:
        report = embedlib.index(
            *(texts, sink),
            embedder=embedder,
            chunk=False,
            batch_rows=100,
            tell=str,
            on_progress=kill,
        )
    assert is_dead.is_set()
    assert report.num_embedded == 1200
    # Through another node, from another machine: while a load lives, a second one is refused.
    first: Any = open_sink(url)
    first.begin(_target_of(first), str)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    second: Any = open_sink(f"{nodes[1].url}/docs")
    second.sleep = lambda _: vars(first)["_lease"].beat()
    with pytest.raises(SinkError, match="is being written by process"):
        second.begin(_target_of(second), str)
    assert sorted(key.source_id for key in second.scan()) == sorted(text.id for text in texts)
    first.close()
    second.close()


def _target_of(sink: Any) -> Any:
    state = sink.inspect()
    return replace(
        TARGET,
        dim=state.dim,
        similarity=state.similarity,
        fingerprint=state.fingerprint,
        model=state.model,
    )
