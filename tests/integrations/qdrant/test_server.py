"""Tests with a real Qdrant server; without EMBEDLIB_TEST_QDRANT_URL they are skipped.

The variable holds host and gRPC port: `qdrant://localhost:6334`. Each test uses a collection of its
own and removes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from embedlib.indexing.sinks.urls import open_sink
from embedlib.testing import check_sink
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors

URL = os.environ.get("EMBEDLIB_TEST_QDRANT_URL", "")

pytestmark = [
    pytest.mark.qdrant_server,
    pytest.mark.skipif(not URL, reason="needs a Qdrant server at EMBEDLIB_TEST_QDRANT_URL"),
]


def ignore(_line: str) -> None:
    pass


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that opens the same new collection every time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"embedlib-test-{uuid4()}"
    yield lambda options="": open_sink(f"{URL.rstrip('/')}/{name}{options}")
    sink: Any = open_sink(f"{URL.rstrip('/')}/{name}")
    sink.connect().delete_collection(name)
    sink.close()


@pytest.mark.parametrize("options", ["", "?on_disk=1&quantization=scalar&shards=2&m=8"])
def test_it_keeps_what_every_sink_promises(make: Callable[..., Any], options: str) -> None:
    check_sink(lambda: make(options))


def test_the_graph_is_built_at_the_end(make: Callable[..., Any]) -> None:
    # 40 MB of vectors: twice what a segment holds before it is indexed.
    random = np.random.default_rng(0)
    sink = make()
    sink.begin(replace(TARGET, dim=1024), ignore)
    rows = make_rows(10_000)
    for first in range(0, len(rows), 2000):
        part = rows[first : first + 2000]
        sink.write(part, random.standard_normal((len(part), 1024), dtype=np.float32))
    assert "the load was not finished" in sink.inspect().index
    sink.finish()
    state = sink.inspect()
    assert state.num_rows == 10_000
    assert state.index.startswith("hnsw")
    assert not state.index.startswith("hnsw, 0 of")
    sink.close()


def test_langchain_opens_what_was_written(make: Callable[..., Any]) -> None:
    store_module = pytest.importorskip("langchain_qdrant")
    core = pytest.importorskip("langchain_core.embeddings")
    sink = make()
    sink.begin(TARGET, ignore)
    rows = make_rows(10)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    store = store_module.QdrantVectorStore(
        sink.connect(), sink.collection, core.DeterministicFakeEmbedding(size=6)
    )
    (found,) = store.similarity_search_by_vector(make_vectors(rows)[1].tolist(), k=1)
    assert found.page_content == rows[1].text
    (added,) = store.add_texts(["of LangChain"])
    store.delete([str(rows[0].id)])
    assert store.get_by_ids([added])[0].page_content == "of LangChain"
    assert {key.id for key in sink.scan()} == {row.id for row in rows[1:]}
    sink.close()
