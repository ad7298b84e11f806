"""Shards, and what a load makes of the workers' results, with workers that are no processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import embedlib
from embedlib.errors import ConfigError, EmbedlibError, EngineRunError, InputError, SinkError
from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.reader import Group
from embedlib.indexing.report import IndexProgress, Tally
from embedlib.indexing.rows import BadRow, Row, row_digest, row_id
from embedlib.indexing.sinks.protocol import Target, UnstorableRowsError
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.testing import FakeSink, FakeStore, fake_embedder, fake_vector
from embedlib_ray.load import MAX_FAILED, ShardedLoad, _in_order
from embedlib_ray.shards import MAX_ROWS, ShardCutter, shard_rows
from embedlib_ray.worker import ModelPlan, Worker
from tests.tiny_models.sparse import write_sparse_model

TARGET = Target(dim=6, similarity="cosine", fingerprint="f", model="m")


def make_rows(num_rows: int) -> list[Row]:
    return [
        Row(
            id=row_id(f"d{number}", 0),
            source_id=f"d{number}",
            chunk=0,
            text=f"text {number}",
            metadata={},
            digest=row_digest(f"text {number}", {}, "f"),
        )
        for number in range(num_rows)
    ]


def test_shards_grow_and_do_not_depend_on_the_groups() -> None:
    rows = make_rows(3000)

    def cut(group_rows: int) -> list[list[str]]:
        cutter = ShardCutter(2048)
        shards = []
        for start in range(0, len(rows), group_rows):
            shards += cutter.add(rows[start : start + group_rows], group_rows)
        shards += cutter.end()
        return [[row.source_id for row in shard.rows] for shard in shards]

    assert cut(7) == cut(512)
    assert [len(shard) for shard in cut(512)][:5] == [16, 16, 32, 32, 64]
    assert shard_rows(100, 2048) == MAX_ROWS
    assert {shard_rows(number, 3) for number in range(50)} == {1}


def test_a_shard_is_given_out_when_it_is_full_and_names_its_documents() -> None:
    cutter, rows = ShardCutter(2048), make_rows(17)
    assert cutter.add(rows[:15], 15) == []
    [full] = cutter.add(rows[15:16], 1)
    assert (full.rows, full.num_documents) == (rows[:16], 16)
    assert str(full) == "shard 0 (documents 'd0' to 'd15')"
    assert cutter.end() == []
    cutter.add(rows[16:], 1)
    [last] = cutter.end()
    assert str(last) == "shard 1 (document 'd16')"
    assert cutter.end() == []


def test_a_shard_has_whole_windows() -> None:
    rows = [
        replace(row, embedded=f"window {number // 7}", span=(0, 1))
        for number, row in enumerate(make_rows(100))
    ]

    def cut(group_rows: int) -> list[int]:
        cutter, shards = ShardCutter(64), list[Any]()
        for start in range(0, len(rows), group_rows):
            shards += cutter.add(rows[start : start + group_rows], group_rows)
        return [len(shard.rows) for shard in shards + cutter.end()]

    assert cut(9) == cut(100)
    assert all(size % 7 == 0 for size in cut(9)[:-1])
    assert sum(cut(9)) == 100


class Pool:
    """In place of the cluster: a worker in this thread, or another answer for a shard."""

    def __init__(self, answer: Callable[[list[Row]], Any] | None = None) -> None:
        self.worker = Worker()
        self.worker.open(ModelPlan(model=fake_embedder), None)
        self.answer = answer
        self.methods: list[str] = []

    def submit(self, method: str, rows: list[Row]) -> Future[Any]:
        self.methods.append(method)
        future: Future[Any] = Future()
        try:
            loaded, _ = getattr(self.worker, method)(rows)
            future.set_result(loaded if self.answer is None else self.answer(rows) or loaded)
        except EmbedlibError as error:
            future.set_exception(error)
        return future


class Load:
    """A load of a fake sink that this process writes."""

    def __init__(self, store: FakeStore, answer: Callable[[list[Row]], Any] | None = None) -> None:
        self.told: list[str] = []
        self.sink = FakeSink(store)
        self.sink.begin(TARGET, self.told.append)
        self.bad_rows = BadRows(None, self.told.append, stops=False)
        self.progress: list[IndexProgress] = []
        self.pool = Pool(answer)
        self.num_ended = 0
        with fake_embedder() as embedder:
            self.tally = Tally(embedder, self.progress.append, None)

    def run(self, rows: list[Row], *, workers_write: bool = False) -> EngineRunError | None:
        thread = SinkThread()
        if workers_write:
            self.pool.worker._sink, self.pool.worker._thread = self.sink, thread
        load = ShardedLoad(
            self.pool,  # type: ignore[arg-type]
            None if workers_write else self.sink,
            thread,
            self.bad_rows,
            self.tally,
            batch_rows=64,
            num_workers=2,
            end_writing=self.end_writing,
        )
        try:
            for start in range(0, len(rows), 100):
                part = rows[start : start + 100]
                load.add(Group(rows=part, num_documents=len(part)))
            return load.end()
        finally:
            load.cancel()
            thread.close(None)
            self.sink.close()

    def end_writing(self) -> None:
        self.num_ended += 1


def test_rows_are_written_in_the_order_of_the_source() -> None:
    store, rows = FakeStore(), make_rows(400)
    load = Load(store)
    assert load.run(rows) is None
    assert list(store.rows) == [row.id for row in rows]
    for row in rows:
        assert np.array_equal(store.vectors[row.id], fake_vector(row.text.encode()))
    report = load.tally.report(0)
    assert (report.num_documents, report.num_embedded, load.num_ended) == (400, 400, 1)
    again = Load(store)
    assert again.run(rows) is None
    assert again.pool.methods == []
    assert again.tally.report(0).num_unchanged == 400


def test_what_workers_write_is_counted() -> None:
    store, rows = FakeStore(), make_rows(400)
    for num_embedded, num_unchanged in ((400, 0), (0, 400)):
        load = Load(store)
        assert load.run(rows, workers_write=True) is None
        assert set(load.pool.methods) == {"load"}
        report = load.tally.report(0)
        assert (report.num_documents, report.num_rows) == (400, 400)
        assert (report.num_embedded, report.num_unchanged) == (num_embedded, num_unchanged)
    assert set(store.rows) == {row.id for row in rows}


@pytest.mark.parametrize("workers_write", [False, True])
def test_no_more_shards_are_on_their_way_than_the_workers_need(
    workers_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[Future[Any], Any]] = []
    sizes = set()

    def submit(method: str, rows: list[Row]) -> Future[Any]:
        loaded, _ = getattr(load.pool.worker, method)(rows)
        begun.append((Future(), loaded))
        return begun[-1][0]

    def look(_: object) -> None:
        sizes.add(len(begun))
        if begun:
            future, loaded = begun.pop(0)
            future.set_result(loaded)

    store, rows = FakeStore(), make_rows(400)
    load = Load(store)
    load.tally._on_progress = look
    monkeypatch.setattr(load.pool, "submit", submit)
    monkeypatch.setattr("embedlib_ray.load.LOOK_SECONDS", 0)
    assert load.run(rows, workers_write=workers_write) is None
    assert max(sizes) == 4 * 2
    assert len(store.rows) == 400


def test_metadata_that_alone_changed_is_written_by_this_process() -> None:
    store, rows = FakeStore(), make_rows(20)
    Load(store).run(rows)
    paged = [
        replace(row, metadata={"page": 1}, digest=row_digest(row.text, {"page": 1}, "f"))
        for row in rows
    ]
    load = Load(store)
    write_metadata = load.sink.write_metadata

    def refuse_one(changed: Sequence[Row]) -> None:
        write_metadata([row for row in changed if row.id != paged[0].id])
        raise UnstorableRowsError("fake:", [paged[0].bad_row("is too big")])

    load.sink.write_metadata = refuse_one  # type: ignore[method-assign]
    assert load.run([*paged[:3], *rows[3:]]) is None
    assert load.pool.methods == []
    report = load.tally.report(load.bad_rows.num_rows)
    assert (report.num_metadata, report.num_unchanged, report.num_bad) == (2, 17, 1)
    assert [store.rows[row.id].metadata for row in rows[:4]] == [{}, {"page": 1}, {"page": 1}, {}]


def test_vectors_of_tokens_are_in_the_order_of_the_source() -> None:
    rows = make_rows(3)
    ids = [rows[2].id, rows[0].id]
    vectors: Any = [np.full((2, 3), number, np.float32) for number in (2, 0)]
    found, in_order = _in_order(rows, ids, vectors)
    assert found == [rows[0], rows[2]]
    assert [part[0, 0] for part in in_order] == [0, 2]


def test_a_bad_row_of_a_worker_is_counted_and_the_others_keep_their_vectors() -> None:
    store, rows = FakeStore(), make_rows(60)

    def answer(part: list[Row]) -> Any:
        if rows[20] not in part:
            return None
        loaded, _ = Pool().worker.embed_rows([row for row in reversed(part) if row is not rows[20]])
        loaded.bad_rows.append(BadRow(place="here", reason="cannot be embedded", id="d20"))
        return loaded

    load = Load(store, answer)
    assert load.run(rows) is None
    assert load.bad_rows.num_rows == 1
    assert rows[20].id not in store.rows
    assert np.array_equal(store.vectors[rows[21].id], fake_vector(rows[21].text.encode()))


def test_a_shard_that_failed_is_named_and_the_others_are_stored() -> None:
    store, rows = FakeStore(), make_rows(200)

    def answer(part: list[Row]) -> Any:
        if rows[100] in part:
            raise EmbedlibError("the worker died: no memory")
        return None

    failure = Load(store, answer).run(rows)
    assert failure is not None
    assert "16 rows are not loaded" in str(failure)
    assert "(documents 'd96' to 'd111'): the worker died: no memory" in str(failure)
    assert len(store.rows) == 184


def test_a_load_tells_its_own_retries_and_not_those_before() -> None:
    counts = {"num_tokens": 0, "num_truncated": 0, "num_texts": 0}
    stats = [SimpleNamespace(**counts, num_retries=number) for number in (4, 4, 7)]
    told: list[IndexProgress] = []
    tally = Tally(Mock(stats=Mock(side_effect=stats)), told.append, None)
    tally.look()
    tally.look()
    assert [progress.num_retries for progress in told] == [0, 3]


def test_a_load_goes_on_while_some_shards_are_loaded() -> None:
    store, rows = FakeStore(), make_rows(1000)

    def answer(part: list[Row]) -> Any:
        if int(part[0].source_id[1:]) % 32 == 0:
            raise EmbedlibError("the worker died")
        return None

    failure = Load(store, answer).run(rows)
    assert failure is not None
    assert "and 29 more" in str(failure)
    assert len(store.rows) == 496


def test_a_load_ends_when_nothing_works() -> None:
    def answer(part: list[Row]) -> Any:
        raise EmbedlibError("the disk is full")

    load = Load(FakeStore(), answer)
    with pytest.raises(EngineRunError, match=r"the disk is full.* and 7 more"):
        load.run(make_rows(1000))
    assert len(load.pool.methods) < MAX_FAILED + 9
    assert load.num_ended == 1


def test_a_load_whose_workers_cannot_give_its_destination_up_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end_writing() -> None:
        raise SinkError("not every row is applied")

    load = Load(FakeStore())
    monkeypatch.setattr(load, "end_writing", end_writing)
    with pytest.raises(SinkError, match="not every row is applied"):
        load.run(make_rows(20))


def test_a_load_that_fails_cancels_what_no_worker_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Future[Any]] = []

    def submit(_method: str, _rows: list[Row]) -> Future[Any]:
        if len(begun) == 5:
            raise ConfigError("the connection has ended")
        begun.append(Future())
        return begun[-1]

    def end_writing() -> None:
        load.num_ended += 1
        raise EmbedlibError("the workers cannot be asked")

    store, rows = FakeStore(), make_rows(200)
    Load(store).run(rows[:16])
    load = Load(store)
    monkeypatch.setattr(load.pool, "submit", submit)
    monkeypatch.setattr(load, "end_writing", end_writing)
    with pytest.raises(ConfigError, match="the connection has ended"):
        load.run(rows)
    assert [future.cancelled() for future in begun] == [True] * 5
    assert load.num_ended == 1


def test_a_worker_names_its_machine_and_another_model() -> None:
    worker = Worker()
    with pytest.raises(EmbedlibError, match=r"does not exist.*\(worker on .*process \d+\)"):
        worker.open(ModelPlan(model="/nowhere/model"), None)
    other = Worker()
    with pytest.raises(EmbedlibError, match="on the first worker; give all machines the same"):
        other.open(ModelPlan(model=fake_embedder), "sha256:other")
    with pytest.raises(EmbedlibError, match=r"and 0\.0\.1 in .*install the same .*\(worker on "):
        Worker().open(ModelPlan(model=fake_embedder, version="0.0.1"), None)


def test_a_worker_that_lacks_a_package_or_a_right_names_its_machine_and_closes_its_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(_url: str) -> None:
        raise SinkError("the package psycopg is missing")

    def no_right(_target: Target, _tell: Any) -> None:
        raise OSError("no right")

    worker = Worker()
    monkeypatch.setattr("embedlib_ray.worker.open_sink", missing)
    with pytest.raises(SinkError, match=r"^the package .* missing \(worker on .*process \d+\)$"):
        worker.open_sink("mine:", TARGET, Mock())
    sink = Mock(begin=no_right)
    monkeypatch.setattr("embedlib_ray.worker.open_sink", lambda _: sink)
    with pytest.raises(OSError, match="no right"):
        worker.open_sink("mine:", TARGET, Mock())
    assert sink.close.called


def test_a_worker_refuses_a_sparse_model(tmp_path: Any) -> None:
    folder = str(write_sparse_model(tmp_path / "sparse"))
    with pytest.raises(ConfigError, match=r"is a sparse model, and workers make.*without ray"):
        Worker().open(ModelPlan(model=folder), None)


def test_a_worker_writes_what_has_changed(tmp_path: Any) -> None:
    worker, rows = Worker(), make_rows(30)
    opened = worker.open(ModelPlan(model=fake_embedder), None)
    with fake_embedder() as embedder:
        assert (opened.model_name, opened.fingerprint) == (
            embedder.model_name,
            embedder.fingerprint,
        )
        assert (opened.dim, opened.similarity, opened.room) == (
            6,
            embedder.similarity_fn_name,
            embedder.count_room("document"),
        )
    worker.open_sink(f"jsonl:{tmp_path}/out.jsonl", TARGET, opened)
    for expected in ((30, 0), (0, 30)):
        loaded, counts = worker.load(rows)
        assert (loaded.report.num_embedded, loaded.report.num_unchanged) == expected
    assert counts.num_texts == 30
    worker.close_sink()
    worker.close_sink()


def test_a_worker_tells_the_rows_that_the_model_refuses() -> None:
    worker, rows = Worker(), make_rows(3)
    rows[1] = replace(rows[1], text="long " * 20)
    with fake_embedder(max_seq_tokens=16, on_truncate="error") as embedder:
        worker.open(ModelPlan(model=lambda: embedder), None)
        loaded, _ = worker.embed_rows(rows)
    assert loaded.ids == [rows[0].id, rows[2].id]
    assert np.array_equal(loaded.vectors, [fake_vector(b"text 0"), fake_vector(b"text 2")])
    [bad] = loaded.bad_rows
    assert (bad.id, loaded.report.num_bad) == ("d1", 1)


def test_a_worker_takes_an_embedder_of_another_kind() -> None:
    names = (
        *("model_name", "fingerprint", "get_embedding_dimension", "similarity_fn_name"),
        *("tokenizer", "max_seq_length", "count_room"),
    )
    asked: list[dict[str, Any]] = []

    def submit_batch(texts: list[str], **given: Any) -> Any:
        asked.append(given)
        return embedder.submit_batch(texts, role="document")

    worker = Worker()
    with fake_embedder() as embedder:
        other = SimpleNamespace(**{name: getattr(embedder, name) for name in names})
        other.submit_batch = submit_batch
        other.stats = lambda: SimpleNamespace(num_tokens=7, num_truncated=1)
        assert worker.open(ModelPlan(model=lambda: other), None).dim == 6
        vectors, counts = worker.embed(["a"])
        worker.embed(["a"], [[(0, 1)]])
    assert asked == [{"role": "document"}, {"role": "document", "chunks": [[(0, 1)]]}]
    assert np.array_equal(vectors, [fake_vector(b"a")])
    assert (counts.num_texts, counts.num_tokens, counts.num_truncated) == (0, 7, 1)


def test_vectors_of_tokens_are_returned_where_the_first_rows_of_a_shard_are_refused() -> None:
    class Late(Future[Any]):
        def done(self) -> bool:
            return False  # so that each job is written by itself

    def submit_batch(texts: list[str], *, role: str) -> Future[Any]:
        done = Late()
        if "" in texts:
            done.set_exception(InputError("a text is empty"))
        else:
            done.set_result([np.full((2, 3), ord(text[-1]), np.float32) for text in texts])
        return done

    embedder: Any = SimpleNamespace(
        submit_batch=submit_batch,
        get_embedding_dimension=lambda: 3,
        stats=lambda: SimpleNamespace(num_tokens=0, num_truncated=0),
    )
    worker, rows = Worker(), make_rows(8)
    worker._embedder = embedder
    loaded, _ = worker.embed_rows([*(replace(row, text="") for row in rows[:2]), *rows[2:]])
    assert loaded.ids == [row.id for row in rows[2:]]
    assert loaded.vectors is not None
    assert [chr(int(part[1, 2])) for part in loaded.vectors] == list("234567")
    assert {bad.id for bad in loaded.bad_rows} == {"d0", "d1"}


def test_a_worker_passes_on_what_is_told_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_model(*given: Any) -> Any:
        assert given[:4] == ("m", plan.config, None, "edge:docs")
        given[4]("a faster precision is measured")
        return embedder

    plan = ModelPlan(model="m", destination="edge:docs")
    monkeypatch.setattr("embedlib_ray.worker.open_embedder", open_model)
    with fake_embedder() as embedder:
        opened = Worker().open(plan, embedder.fingerprint)
    assert opened.notes == ("a faster precision is measured",)


def test_a_worker_has_one_destination_open_and_applies_all_rows_before_it_gives_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = [SinkError("it has gone"), [iter(())], [iter(())]]
    sinks = [Mock(scan=Mock(side_effect=each)) for each in shown]
    opened = iter(sinks)
    monkeypatch.setattr("embedlib_ray.worker.open_sink", lambda _: next(opened))
    worker = Worker()
    worker.open_sink("mine:a", TARGET, Mock())
    worker.open_sink("mine:a", TARGET, Mock())
    with pytest.raises(SinkError, match="it has gone"):
        worker.open_sink("mine:b", TARGET, Mock())
    worker.open_sink("mine:b", TARGET, Mock())
    worker.open_sink("mine:b", replace(TARGET, shard="ray 1"), Mock())
    worker.close_sink()
    for sink in sinks:
        assert [call[0] for call in sink.method_calls] == ["begin", "scan", "close"]
    assert "embedlib-sink" not in [thread.name for thread in threading.enumerate()]


def test_a_cluster_needs_its_package_and_a_right_address(tmp_path: Any) -> None:
    url = f"jsonl:{tmp_path}/out.jsonl"
    with pytest.raises(ConfigError, match="ray_workers = 2 needs ray"):
        embedlib.index([], url, embedder="m", ray_workers=2)
    with pytest.raises(ConfigError, match="ray = ''; it must be auto, local or HOST:PORT"):
        embedlib.index([], url, embedder="m", ray="")
    with fake_embedder() as sparse, pytest.raises(ConfigError, match=r"leave sparse .* or ray"):
        embedlib.index([], url, embedder="m", sparse=sparse, ray="auto")
    with pytest.raises(ConfigError, match="embedder = 'm'; it must be an Embedder"):
        embedlib.index([], url, embedder="m")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
def test_ray_is_asked_for_if_it_is_missing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("ray", "embedlib_ray:open_workers", "embedlib.workers")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [point])
    with pytest.raises(ConfigError, match=r"the package ray is missing; pip install .*\[ray\]"):
        embedlib.index([], f"jsonl:{tmp_path}/out.jsonl", embedder="m", ray="auto")
