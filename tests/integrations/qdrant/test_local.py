from __future__ import annotations

import errno
import os
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
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

qdrant_client = pytest.importorskip("qdrant_client", reason="needs the extra qdrant")
models = qdrant_client.models


def ignore(_line: str) -> None:
    pass


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that opens the same folder every time."""
    return lambda options="": open_sink(f"qdrant+local:{tmp_path / 'db'}{options}")


def load(make: Callable[..., Any], num_rows: int = 10, **changes: Any) -> None:
    sink = make()
    sink.begin(replace(TARGET, **changes), ignore)
    rows = make_rows(num_rows)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    sink.close()


@pytest.mark.parametrize("options", ["", "?collection=other%20one"])
def test_it_keeps_what_every_sink_promises(make: Callable[..., Any], options: str) -> None:
    check_sink(lambda: make(options))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_a_higher_score_is_a_better_match(make: Callable[..., Any], similarity: str) -> None:
    load(make, similarity=similarity)
    rows = make_rows(10)
    sink = make()
    hits = sink.search(make_vectors(rows)[4], 10)
    sink.close()
    assert hits[0].id == rows[4].id
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert (scores[-1] < 0) == (similarity in ("euclidean", "manhattan"))


def test_new_metadata_replaces_the_old_and_keeps_the_vector(make: Callable[..., Any]) -> None:
    load(make)
    rows = make_rows(10)
    sink = make()
    sink.begin(TARGET, ignore)
    changed = replace(rows[2], metadata={"only": 1}, digest=b"d" * 24)
    sink.write_metadata([changed, make_rows(1, first=100)[0]])
    hit = sink.search(make_vectors(rows)[2], 1)[0]
    sink.close()
    assert (hit.id, hit.text, hit.metadata) == (rows[2].id, rows[2].text, {"only": 1})
    assert hit.score > 0.999


@pytest.mark.parametrize("method", ["write", "write_metadata"])
def test_both_ways_to_write_take_the_same_metadata(make: Callable[..., Any], method: str) -> None:
    load(make)
    rows, deep = make_rows(10), dict[str, Any]()
    for _ in range(300):
        deep = {"a": [deep]}
    rows[2] = replace(rows[2], metadata={"big": 2**70})
    rows[3] = replace(rows[3], metadata=deep)
    sink = make()
    sink.begin(TARGET, ignore)
    arguments = (rows, make_vectors(rows)) if method == "write" else (rows,)
    with pytest.raises(UnstorableRowsError, match="'a' nested too deeply") as caught:
        getattr(sink, method)(*arguments)
    assert [bad.id for bad in caught.value.bad_rows] == [rows[3].source_id]
    stored = {hit.id: hit.metadata for hit in sink.search(make_vectors(rows)[2], 10)}
    sink.close()
    assert stored[rows[2].id] == {"big": 2**70}
    assert stored[rows[3].id] == make_rows(10)[3].metadata


class Planted:
    """What a pickle calls when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("collection", ["embedlib", "other"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_point_that_would_run_code_is_not_read(
    make: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    collection: str,
    protocol: int,
) -> None:
    load(make)
    monkeypatch.chdir(tmp_path)
    storage = tmp_path / "db" / "collection" / collection / "storage.sqlite"
    storage.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(storage)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS Points (id TEXT PRIMARY KEY, point BLOB)")
        planted = pickle.dumps(Planted(), protocol)
        database.execute("INSERT INTO points VALUES ('x', ?)", [planted])
    sink = make()
    with pytest.raises(SinkError, match=r"has a point with (posix|os|nt)\.mkdir, which could run"):
        sink.search(make_vectors(make_rows(10))[4], 1)
    with pytest.raises(SinkError, match="which could run code; it is not opened"):
        sink.begin(TARGET, ignore)
    sink.close()
    assert not (tmp_path / "ran").exists()


def test_points_that_change_while_they_are_looked_at_are_not_read(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    load(make)
    storage = tmp_path / "db" / "collection" / "embedlib" / "storage.sqlite"
    with closing(sqlite3.connect(storage)) as database, database:
        database.execute("ALTER TABLE points RENAME TO others")
        database.execute("CREATE VIEW points AS SELECT * FROM others ORDER BY random()")
    sink = make()
    with pytest.raises(SinkError, match="cannot be read: points is no table"):
        sink.search(make_vectors(make_rows(10))[4], 1)
    sink.close()


def test_values_that_other_programs_store_are_read(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    load(make)
    client = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    payload = {"at": datetime(2026, 1, 31, tzinfo=timezone.utc), "id": uuid4(), "price": Decimal(1)}
    client.upsert("embedlib", [models.PointStruct(id=1, vector=[0.5] * 6, payload=payload)])
    client.close()
    sink = make()
    assert len(sink.search(make_vectors(make_rows(10))[4], 20)) == 10
    sink.close()


def test_langchain_opens_searches_adds_to_and_deletes_from_what_was_written(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    store_module = pytest.importorskip("langchain_qdrant")
    core = pytest.importorskip("langchain_core.embeddings")
    load(make)
    rows = make_rows(10)
    client = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    store = store_module.QdrantVectorStore(
        client, "embedlib", core.DeterministicFakeEmbedding(size=6)
    )
    (found,) = store.similarity_search_by_vector(make_vectors(rows)[1].tolist(), k=1)
    assert found.page_content == rows[1].text
    assert {key: found.metadata[key] for key in rows[1].metadata} == dict(rows[1].metadata)
    (added,) = store.add_texts(["of LangChain"], metadatas=[{"mine": True}])
    assert store.get_by_ids([added])[0].page_content == "of LangChain"
    store.delete([str(rows[0].id)])
    client.close()
    sink = make()
    sink.begin(TARGET, ignore)
    # What others added is neither listed nor found, and stays.
    assert {key.id for key in sink.scan()} == {row.id for row in rows[1:]}
    assert len(sink.search(make_vectors(rows)[1], 20)) == 9
    sink.write(rows[:1], make_vectors(rows[:1]))
    assert len(list(sink.scan())) == 10
    sink.close()
    client = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    assert client.retrieve("embedlib", [added])[0].payload["page_content"] == "of LangChain"
    client.close()


def test_the_clients_warning_of_many_rows_is_told_once(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = pytest.importorskip("qdrant_client.local.local_collection")
    shown = pytest.importorskip("qdrant_client.common.client_warnings")
    monkeypatch.setattr(local.LocalCollection, "LARGE_DATA_THRESHOLD", 3)
    monkeypatch.setattr(shown, "SEEN_MESSAGES", set())  # it warns once per process
    told: list[str] = []
    sink = make()
    sink.begin(TARGET, told.append)
    for part in (make_rows(4), make_rows(4, first=4), make_rows(4, first=8)):
        sink.write(part, make_vectors(part))
    sink.close()
    assert len(told) == 1
    assert told[0].startswith(f"{sink.name}: Local mode is not recommended")


def test_a_folder_that_is_open_elsewhere_is_one_line_and_can_be_inspected(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    load(make)
    other = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    for action in (
        lambda sink: sink.begin(TARGET, ignore),
        lambda sink: sink.search(np.ones(6, np.float32), 1),
    ):
        sink = make()
        with pytest.raises(SinkError, match="is open already, in this process or another"):
            action(sink)
        sink.close()
    assert make().inspect().num_rows == 10
    other.close()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "the right to write there"),
        (errno.EROFS, "copy the folder"),
        (errno.ENOSPC, "make room"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "its disk or network folder fails"),
        (errno.ENODEV, "make sure that the folder can be written"),
    ],
)
@pytest.mark.parametrize("mode", ["rb", "r+"])  # our look at the lock, and the client's own
def test_a_lock_that_cannot_be_opened_is_one_line_with_the_folder(
    mode: str,
    code: int,
    remedy: str,
    make: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(make)
    real_open = open

    def refuse(path: Any, how: str = "r", *arguments: Any, **options: Any) -> Any:
        if str(path).endswith(".lock") and how == mode:
            raise OSError(code, os.strerror(code), str(path))
        return real_open(path, how, *arguments, **options)

    sink = make()
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(SinkError, match=remedy) as caught:
            sink.search(np.ones(6, np.float32), 1)
    sink.close()
    said = f"cannot be opened: {os.strerror(code)}: folder {str(tmp_path / 'db')!r}; "
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--recreate" not in str(caught.value)


@pytest.mark.parametrize("recreate", [False, True])
def test_a_collection_of_others_is_left_alone(
    make: Callable[..., Any], tmp_path: Path, recreate: bool
) -> None:
    other = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    other.create_collection("embedlib", models.VectorParams(size=6, distance=models.Distance.DOT))
    other.close()
    sink = make()
    with pytest.raises(SinkError, match="was not created by embedlib"):
        sink.begin(replace(TARGET, recreate=recreate), ignore)
    sink.close()
    with pytest.raises(SinkError, match="was not created by embedlib"):
        make().inspect()
    assert make("?collection=free").inspect() is None


def test_the_current_folder_may_have_a_name_that_is_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    for _ in range(2):  # the second one reads what is stored
        load(lambda: open_sink("qdrant+local:db"), 3)
    assert open_sink("qdrant+local:db").inspect().num_rows == 3  # type: ignore[union-attr]


def test_a_folder_of_others_is_left_alone(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "notes.txt").write_text("x")
    sink = make()
    for action in (sink.inspect, lambda: sink.begin(TARGET, ignore)):
        with pytest.raises(SinkError, match="is a folder that qdrant-client did not create"):
            action()
    sink.close()
    assert os.listdir(tmp_path / "db") == ["notes.txt"]


def test_a_file_in_the_place_of_the_folder_is_one_line(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "db").write_text("x")
    for action in (lambda sink: sink.inspect(), lambda sink: sink.begin(TARGET, ignore)):
        with pytest.raises(SinkError, match=r"db cannot be read: Not a directory$"):
            action(make())


@pytest.mark.parametrize("content", [b"{", b"\xff", b"{}", b"[]"])
def test_a_broken_list_of_collections_is_one_line(
    make: Callable[..., Any], tmp_path: Path, content: bytes
) -> None:
    load(make)
    (tmp_path / "db" / "meta.json").write_bytes(content)
    for action in (lambda sink: sink.inspect(), lambda sink: sink.begin(TARGET, ignore)):
        with pytest.raises(SinkError, match=r"meta.json cannot be read: \w+Error") as caught:
            action(make())
        assert "\n" not in str(caught.value)


def test_a_kill_while_the_client_makes_the_folder_is_repaired(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "meta.json").touch()
    assert make().inspect() is None
    load(make)
    assert make().inspect().num_rows == 10


def test_a_kill_while_the_collection_is_made_is_repaired(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = pytest.importorskip("qdrant_client.local.qdrant_local")

    class Killed(BaseException):
        pass

    def stop(self: Any, *_: Any) -> None:
        raise Killed

    sink = make()
    with monkeypatch.context() as patch:
        patch.setattr(local.QdrantLocal, "_save", stop)
        with pytest.raises(Killed):
            sink.begin(TARGET, ignore)
    sink.close()
    assert make().inspect() is None
    load(make)
    assert make().inspect().num_rows == 10


def test_a_collection_without_a_file_of_points_holds_none(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    load(make)
    (tmp_path / "db" / "collection" / "embedlib" / "storage.sqlite").unlink()
    assert make().inspect().num_rows == 0


def test_looking_makes_nothing(make: Callable[..., Any], tmp_path: Path) -> None:
    sink = make()
    assert sink.inspect() is None
    with pytest.raises(SinkError, match="holds nothing"):
        sink.search(np.ones(6, np.float32), 1)
    with pytest.raises(SinkError, match="holds nothing"):
        sink.digests([])
    with pytest.raises(SinkError, match="begin was not called"):
        sink.delete([])
    sink.close()
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("qdrant+local:", "needs a folder"),
        ("qdrant+local://x", "needs a folder"),
        ("qdrant+local:x?m=8", "has no option 'm'"),
        ("qdrant+local:x?collection=a/b", "contains '/'"),
        ("qdrant+local:x?collection=..", "is the name of another folder"),
    ],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        open_sink(url)
