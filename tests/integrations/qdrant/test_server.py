"""Tests with a real Qdrant server, which real_server.py finds; without one they are skipped.

Each test uses a collection of its own and removes it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from embedlib.errors import SinkError
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.protocol import UnstorableRowsError
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


@pytest.mark.parametrize("method", ["write", "write_metadata"])
@pytest.mark.parametrize(("opened", "closed", "most"), [('{"a":', "}", 29), ("[", "]", 43)])
def test_the_deepest_metadata_is_stored_and_found(
    make: Callable[..., Any], method: str, opened: str, closed: str, most: int
) -> None:
    sink = make("?shards=2")
    sink.begin(TARGET, ignore)
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    deep, deeper = (json.loads(opened * depth + "1" + closed * depth) for depth in (most, most + 1))
    rows[0] = replace(rows[0], metadata={"deep": deep})
    rows[1] = replace(rows[1], metadata={"deep": deeper})
    arguments = (rows, make_vectors(rows)) if method == "write" else (rows,)
    with pytest.raises(UnstorableRowsError, match="cannot store 1 of these rows"):
        getattr(sink, method)(*arguments)
    hits = sink.search(make_vectors(rows)[0], 2)
    assert {hit.id: hit.metadata for hit in hits} == {
        rows[0].id: {"deep": deep},
        rows[1].id: make_rows(2)[1].metadata,
    }
    sink.close()


def test_the_graph_is_built_at_the_end(make: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    sink = make()
    sink.begin(replace(TARGET, dim=256), ignore)
    # Less than one request: the server divides them among segments as these are idle. Its default
    # would take a hundred times as many rows.
    sink.connect().update_collection(
        sink.collection, optimizers_config=models.OptimizersConfigDiff(indexing_threshold=100)
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


def test_an_alias_is_written_and_read_like_its_collection(make: Callable[..., Any]) -> None:
    sink = make()
    sink.begin(TARGET, ignore)
    client, name = sink.connect(), sink.collection
    _add_alias(client, name, f"{name}-alias")
    sink.close()
    alias: Any = open_sink(f"{make().name}-alias")
    rows = make_rows(10)
    alias.begin(TARGET, ignore)
    assert alias.collection == name  # the alias may be moved while this load runs
    alias.write(rows, make_vectors(rows))
    alias.finish()
    alias.close()
    read: Any = open_sink(f"{make().name}-alias")
    assert read.inspect().num_rows == make().inspect().num_rows == 10
    assert read.search(make_vectors(rows)[1], 1)[0].id == rows[1].id
    with pytest.raises(SinkError, match=f"is an alias of the collection '{name}'; nothing was"):
        read.begin(replace(TARGET, recreate=True), ignore)
    read.close()
    again = make()
    again.begin(replace(TARGET, recreate=True), ignore)
    found = again.connect().get_collection_aliases(name).aliases
    assert [each.alias_name for each in found] == [f"{name}-alias"]
    again.close()


def _add_alias(client: Any, name: str, alias: str) -> None:
    creation = models.CreateAlias(collection_name=name, alias_name=alias)
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=creation)])


def test_a_vector_with_a_name_and_indexes_of_metadata(make: Callable[..., Any]) -> None:
    sink = make("?vector=text%20en&payload_index=page:integer,source:keyword")
    sink.begin(TARGET, ignore)
    rows = make_rows(10)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    info = sink.read_info()
    assert list(info.config.params.vectors) == ["text en"]
    kinds = {field: index.data_type.value for field, index in info.payload_schema.items()}
    assert kinds.pop("_embedlib.source_id") == "keyword"
    assert kinds == {"metadata.page": "integer", "metadata.source": "keyword"}
    sink.close()
    read = make()  # the name is stored
    assert read.search(make_vectors(rows)[1], 1)[0].id == rows[1].id
    other = make("?vector=b")
    with pytest.raises(SinkError, match="was created with vector=text en, not b"):
        other.begin(TARGET, ignore)
    other.close()
    read.close()


def test_a_snapshot_is_kept_of_what_is_dropped(make: Callable[..., Any]) -> None:
    told: list[str] = []
    sink = make("?snapshot=1")
    rows = make_rows(10)
    for expected in (0, 1):
        sink.begin(replace(TARGET, recreate=True), told.append)
        sink.write(rows, make_vectors(rows))
        sink.close()
        kept = make().connect().list_snapshots(sink.collection)
        assert len(kept) == expected
    assert told == [f"{sink.name}: the server keeps the snapshot {kept[0].name}"]
    make().connect().delete_snapshot(sink.collection, kept[0].name)
