"""Tests with a real Qdrant server, which real_server.py finds; without one they are skipped.

Each test uses a collection of its own and removes it.
"""

from __future__ import annotations

import re
import time
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

models = pytest.importorskip("qdrant_client.models", reason="needs the extra qdrant")

pytestmark = pytest.mark.qdrant_server


def ignore(_line: str) -> None:
    pass


@pytest.fixture
def make(
    qdrant_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Return a function that opens the same new collection every time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"embedlib-test-{uuid4()}"

    def open_quick(options: str = "") -> Any:
        sink: Any = open_sink(f"{qdrant_url}/{name}{options}")
        sink.sleep = lambda seconds: time.sleep(min(seconds, 0.1))
        return sink

    yield open_quick
    sink: Any = open_sink(f"{qdrant_url}/{name}")
    sink.connect().delete_collection(name)
    sink.close()


@pytest.mark.parametrize("options", ["", "?on_disk=1&quantization=scalar&shards=2&m=8"])
def test_it_keeps_what_every_sink_promises(make: Callable[..., Any], options: str) -> None:
    check_sink(lambda: make(options))


def test_the_graph_is_built_at_the_end(make: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    sink = make()
    sink.begin(replace(TARGET, dim=256), ignore)
    # Megabytes; the server's default would take ten times as many rows.
    sink.connect().update_collection(
        sink.collection, optimizers_config=models.OptimizersConfigDiff(indexing_threshold=1000)
    )
    rows = make_rows(3000)
    sink.write(rows, random.standard_normal((len(rows), 256), dtype=np.float32))
    assert "the load was not finished" in sink.inspect().index
    sink.finish()
    state = sink.inspect()
    assert state.num_rows == 3000
    assert state.index == "hnsw, 3000 of 3000 points"
    sink.close()


def test_the_state_says_why_there_is_no_index(make: Callable[..., Any]) -> None:
    sink = make()
    sink.begin(TARGET, ignore)
    rows = make_rows(10)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    assert re.fullmatch(
        r"none needed, exact scan: the server builds one when a segment has more than [\d,]+ kB "
        "of vectors",
        sink.inspect().index,
    )
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


def test_a_server_in_strict_mode(make: Callable[..., Any]) -> None:
    """Strict mode, which hosted servers may have on, refuses filters without an index."""
    sink = make()
    rows = make_rows(10)
    sink.begin(TARGET, ignore)
    sink.connect().update_collection(
        sink.collection,
        strict_mode_config=models.StrictModeConfig(
            enabled=True, unindexed_filtering_retrieve=False, unindexed_filtering_update=False
        ),
    )
    sink.close()
    sink = make()
    sink.begin(TARGET, ignore)
    sink.write(rows, make_vectors(rows))
    vars(sink)["_lease"].beat()
    assert sink.inspect().num_rows == 10
    sink.delete([rows[0].id])
    sink.close()
    found, _ = make().connect().scroll(sink.collection, limit=100)
    assert len(found) == 9  # the lease was given back
