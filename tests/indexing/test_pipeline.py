from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.embedder import Embedder
from embedlib.errors import (
    PassingBuildError,
    SinkError,
)
from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.chunks.chunking import cut_nothing
from embedlib.indexing.load import Load
from embedlib.indexing.pipeline import index
from embedlib.indexing.reader import Group, Reader
from embedlib.indexing.report import IndexProgress, IndexReport, Tally
from embedlib.indexing.rows import BadRow, Chunk, Document
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.protocol import UnstorableRowsError
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder, fake_spec
from tests.indexing.loading import Killed, documents, expect, num_calls, numbered, run
from tests.waiting import WAIT_SECONDS


def test_every_document_becomes_a_row_with_its_own_vector(
    store: FakeStore, embedder: Embedder
) -> None:
    report = run(numbered(3000), store, embedder)
    expect(store, numbered(3000), embedder)
    assert (report.num_documents, report.num_rows, report.num_embedded) == (3000, 3000, 3000)
    assert report.num_tokens == sum(len(text) for text in numbered(3000).values())
    assert store.calls[0] == ("begin", 0)
    assert store.calls[-1] == ("finish", 0)


def test_a_second_run_embeds_nothing(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(700), store, embedder)
    before = embedder.stats().num_texts
    report = run(numbered(700), store, embedder)
    assert embedder.stats().num_texts == before
    assert (report.num_embedded, report.num_unchanged, report.num_tokens) == (0, 700, 0)
    assert num_calls(store, "write") == num_calls(FakeStore(calls=store.calls[:-2]), "write")


def test_only_what_changed_is_embedded(store: FakeStore, embedder: Embedder) -> None:
    texts = numbered(700)
    run(texts, store, embedder)
    before = embedder.stats().num_texts
    texts |= {"d5": "another text", "new": "a new one"}
    report = run(texts, store, embedder)
    assert embedder.stats().num_texts == before + 2
    assert (report.num_embedded, report.num_unchanged) == (2, 699)
    expect(store, texts, embedder)


def test_changed_metadata_is_written_without_embedding(
    store: FakeStore, embedder: Embedder
) -> None:
    run(documents(numbered(10), page=1), store, embedder)
    before = embedder.stats().num_texts
    report = run(documents(numbered(10), page=2), store, embedder)
    assert embedder.stats().num_texts == before
    assert (report.num_embedded, report.num_metadata, report.num_unchanged) == (0, 10, 0)
    assert {row.metadata["page"] for row in store.rows.values()} == {2}
    expect(store, numbered(10), embedder)


def test_documents_get_their_prompt_and_queries_do_not_matter(store: FakeStore) -> None:
    spec = fake_spec(prompts={"query": "q: ", "document": "d: "})
    with fake_embedder(spec=spec) as embedder:
        run(numbered(3), store, embedder)
        assert (
            store.vectors[next(iter(store.rows))] == embedder.encode("d: text 0", prompt="")
        ).all()


def test_an_empty_source_is_no_error(store: FakeStore, embedder: Embedder) -> None:
    report = run({}, store, embedder)
    assert (report.num_documents, report.num_rows) == (0, 0)
    assert store.calls == [("begin", 0), ("finish", 0)]


# Killed and run again.


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 4), max_size=6),
    st.integers(1, 120),
    st.sampled_from([1, 4, 16, 64]),
)
def test_killed_anywhere_a_rerun_ends_with_exactly_the_rows(
    kills: list[int], num_documents: int, batch_rows: int
) -> None:
    store, texts = FakeStore(), numbered(num_documents)
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as embedder:
        num_killed = 0
        for after in kills:
            sink = FakeSink(store)
            sink.fail(*[None] * after, Killed())
            try:
                index(documents(texts), sink, embedder=embedder, chunk=False, batch_rows=batch_rows)
            except Killed:
                num_killed += 1
        run(texts, store, embedder, batch_rows=batch_rows)
        num_embedded = embedder.stats().num_texts
        expect(store, texts, embedder)
        assert num_embedded <= num_documents + num_killed * batch_rows


def test_never_more_rows_are_under_way_than_batch_rows(
    store: FakeStore, embedder: Embedder
) -> None:
    """What is embedded and not yet written is what a kill costs."""
    most = 0

    class Watching(FakeSink):
        def write(self, rows: Any, vectors: Any) -> None:
            nonlocal most
            most = max(most, embedder.stats().num_texts - len(self.store.rows))
            super().write(rows, vectors)

    index(documents(numbered(500)), Watching(store), embedder=embedder, chunk=False, batch_rows=40)
    assert 10 <= most <= 40
    assert max(rows for _, rows in store.calls) <= 40


def test_the_first_rows_are_written_soon(store: FakeStore, embedder: Embedder) -> None:
    """A load that is killed after seconds has then stored some."""
    run(numbered(3000), store, embedder, batch_rows=2048)
    writes = [num_rows for name, num_rows in store.calls if name == "write"]
    assert sum(writes) == 3000
    assert writes[0] <= 8
    assert all(rows <= 8 + sum(writes[:n]) for n, rows in enumerate(writes))


# Failures of the destination.


def test_a_failing_write_ends_the_load_and_gives_the_lock_back(
    store: FakeStore, embedder: Embedder
) -> None:
    sink = FakeSink(store)
    sink.fail(None, SinkError("the disk is full"))
    with pytest.raises(SinkError, match="the disk is full"):
        index(documents(numbered(300)), sink, embedder=embedder, chunk=False, batch_rows=40)
    assert not store.is_locked
    assert num_calls(store, "finish") == 0
    run(numbered(300), store, embedder)
    expect(store, numbered(300), embedder)


def test_the_first_error_is_the_one_to_tell(store: FakeStore, embedder: Embedder) -> None:
    class Unclosable(FakeSink):
        def close(self) -> None:
            super().close()
            raise SinkError("cannot be closed")

    sink = Unclosable(store)
    sink.fail(SinkError("the disk is full"))
    with pytest.raises(SinkError, match="the disk is full"):
        index(documents(numbered(1)), sink, embedder=embedder, chunk=False)
    with pytest.raises(SinkError, match="cannot be closed"):
        index(documents(numbered(1)), Unclosable(store), embedder=embedder, chunk=False)


def test_failing_writes_of_metadata_end_the_load_at_once(
    store: FakeStore, embedder: Embedder
) -> None:
    run(documents(numbered(10), page=1), store, embedder)

    class Full(FakeSink):
        def write_metadata(self, rows: Any) -> None:
            raise SinkError("the disk is full")

    changed = [
        replace(row, digest=row.digest[:-1] + bytes([row.digest[-1] ^ 1]))
        for row in store.rows.values()
    ]
    thread, bad_rows = SinkThread(), BadRows(None, print, stops=False)
    load = Load(embedder, Full(store), thread, bad_rows, Tally(embedder, print, None), 2048)

    def add_all() -> None:
        for row in changed:
            load.add(Group([row], 1))

    with pytest.raises(SinkError, match="the disk is full"):  # before `work` looks at the writes
        add_all()
    thread.close(None)


def test_the_counts_add_up_where_the_destination_refuses_rows(
    store: FakeStore, embedder: Embedder
) -> None:
    class Picky(FakeSink):
        def write(self, rows: Any, vectors: Any) -> None:
            good = [n for n, row in enumerate(rows) if row.metadata.get("page") != 13]
            super().write([rows[n] for n in good], vectors[good])
            self._refuse(rows)

        def write_metadata(self, rows: Any) -> None:
            super().write_metadata([row for row in rows if row.metadata.get("page") != 13])
            self._refuse(rows)

        def _refuse(self, rows: Any) -> None:
            bad = [row for row in rows if row.metadata.get("page") == 13]
            if bad:
                found = [BadRow(place=row.source_id, reason="is odd", id=row.id) for row in bad]
                raise UnstorableRowsError(self.name, found)

    def load(pages: list[int]) -> IndexReport:
        rows = [replace(one, metadata={"page": pages[n]}) for n, one in enumerate(numbered_rows)]
        return index(rows, Picky(store), embedder=embedder, chunk=False)

    numbered_rows = documents(numbered(3))
    first = load([1, 13, 2])
    assert (first.num_rows, first.num_embedded, first.num_bad) == (2, 2, 1)
    second = load([13, 4, 5])  # one refused, one new, one changed
    assert (second.num_rows, second.num_embedded, second.num_metadata) == (2, 1, 1)
    assert (second.num_unchanged, second.num_bad) == (0, 1)


def test_another_model_is_refused_before_anything_is_embedded(
    store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(3), store, embedder)
    assert store.target is not None
    store.target = replace(store.target, fingerprint="folder:other", model="other")
    before = embedder.stats().num_texts
    with pytest.raises(SinkError, match=r"made by 'other'.*--recreate"):
        run(numbered(3), store, embedder)
    assert embedder.stats().num_texts == before
    run(numbered(2), store, embedder, recreate=True)
    expect(store, numbered(2), embedder)


def test_where_no_thread_is_left_a_load_says_so(
    store: FakeStore, embedder: Embedder, limit_threads: Callable[[int], list[str]]
) -> None:
    started = limit_threads(1)
    with pytest.raises(PassingBuildError, match="no more threads can be started"):
        run(numbered(3), store, embedder)
    assert started == ["embedlib-sink"]
    assert "embedlib-sink" not in [thread.name for thread in threading.enumerate()]


def test_threads_end_with_the_load(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(100), store, embedder)
    sink = FakeSink(store)
    sink.fail(Killed())
    with pytest.raises(Killed):
        index(documents(numbered(5, 100)), sink, embedder=embedder, chunk=False)
    names = {thread.name for thread in threading.enumerate()}
    assert names.isdisjoint({"embedlib-reader", "embedlib-sink"})


# Dry run, limit, progress, options.


def test_a_dry_run_writes_nothing_and_counts_everything(
    store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(10), store, embedder)
    calls = list(store.calls)
    texts = {**numbered(15), "d0": "changed"}
    report = run(texts, store, embedder, dry_run=True, delete_missing=True)
    assert store.calls == calls
    assert (report.num_documents, report.num_embedded, report.num_unchanged) == (15, 5 + 1, 9)
    assert report.num_tokens == sum(len(texts[f"d{n}"]) for n in [0, *range(10, 15)])
    assert report.estimated_seconds is not None
    assert report.estimated_seconds > 0
    assert (report.num_deleted, report.num_other) == (0, None)
    report = run(numbered(10), store, embedder, dry_run=True)
    assert (report.num_unchanged, report.estimated_seconds, report.num_sampled) == (10, None, 0)


def test_a_dry_run_needs_no_destination_yet(store: FakeStore, embedder: Embedder) -> None:
    report = run(numbered(3), store, embedder, dry_run=True)
    assert (report.num_embedded, store.target) == (3, None)


def test_a_dry_run_of_recreate_counts_everything(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(3), store, embedder)
    report = run(numbered(3), store, embedder, dry_run=True, recreate=True)
    assert (report.num_embedded, report.num_unchanged, len(store.rows)) == (3, 0, 3)


def test_the_sink_is_told_the_shard(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(3), store, embedder, shard="1/2")
    assert store.target is not None
    assert store.target.shard == "1/2"


def test_a_document_of_many_chunks_is_written_in_groups(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.indexing.reader.GROUP_ROWS", 4)
    asked: list[int] = []

    class Watching(FakeSink):
        def digests(self, ids: Any) -> Any:
            asked.append(len(ids))
            return super().digests(ids)

    text = "One sentence here. " * 20
    report = index([Document(id="a", text=text)], Watching(store), embedder=embedder)
    assert (sum(asked), max(asked)) == (report.num_rows, 4)
    assert report.num_documents == 1


def test_a_document_waits_for_no_other_and_an_endless_source_ends_with_its_reader() -> None:
    is_read = threading.Event()

    def endless() -> Iterator[Document]:
        yield Document(id="first", text="text")
        assert is_read.wait(WAIT_SECONDS)
        yield from (Document(id=f"d{number}", text="text") for number in count())

    with closing(Seen()) as seen:
        reader = Reader(endless(), cut_nothing, "model", seen, BadRows(None, print, stops=False))
        groups = reader.groups(while_waiting=lambda: False)
        assert [row.source_id for row in next(groups).rows] == ["first"]
        is_read.set()
        assert next(groups).rows[0].source_id == "d0"
        reader.close()
        assert not reader._thread.is_alive()


def test_long_documents_do_not_wait_for_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlib.indexing.reader._GROUP_CHARS", 1000)
    is_ahead, sizes = threading.Event(), list[int]()

    def long() -> Iterator[Document]:
        for number in range(50):
            if number == 8:
                is_ahead.set()
            yield Document(id=f"d{number}", text="x" * 400)

    def cut(together: Sequence[Document]) -> list[list[Chunk]]:
        sizes.append(len(together))
        return cut_nothing(together)

    with closing(Seen()) as seen:
        reader = Reader(long(), cut, "model", seen, BadRows(None, print, stops=False))
        assert is_ahead.wait(WAIT_SECONDS)
        groups = list(reader.groups(while_waiting=lambda: False))
        reader.close()
    assert sum(group.num_documents for group in groups) == sum(sizes) == 50
    assert max(sizes) == 3
    assert max(len(group.rows) for group in groups) <= 3


def test_a_dry_run_checks_the_destination(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(3), store, embedder)
    assert store.target is not None
    store.target = replace(store.target, dim=7)
    with pytest.raises(SinkError, match="7 dimensions"):
        run(numbered(3), store, embedder, dry_run=True)


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_thread_of_the_destination_compares_rows(
    store: FakeStore, embedder: Embedder, dry_run: bool
) -> None:
    run(numbered(3), store, embedder)
    threads = []

    class Watched(FakeSink):
        def digests(self, ids: Any) -> Any:
            threads.append(threading.current_thread().name)
            return super().digests(ids)

    index(documents(numbered(5)), Watched(store), embedder=embedder, dry_run=dry_run, chunk=False)
    assert {*threads} == {"embedlib-sink"}


def test_a_dry_run_leaves_the_estimate_out_where_the_sample_cannot_be_embedded(
    store: FakeStore,
) -> None:
    with fake_embedder(on_truncate="error") as embedder:
        report = run({"a": "short", "b": "x" * 50}, store, embedder, dry_run=True)
    assert (report.num_rows, report.estimated_seconds, report.num_sampled) == (2, None, 0)


def test_a_limit_reads_no_further(store: FakeStore, embedder: Embedder) -> None:
    def live() -> Iterator[Document]:
        for number in range(7):
            yield Document(id=f"d{number}", text=f"text {number}")
        raise AssertionError("nobody asked for another one, which may take for ever")

    assert run(live(), store, embedder, limit=7).num_documents == 7
    expect(store, numbered(7), embedder)


def test_progress_only_grows_and_ends_at_the_whole(store: FakeStore, embedder: Embedder) -> None:
    seen: list[IndexProgress] = []
    run(numbered(900), store, embedder, on_progress=seen.append)
    counts = [progress.num_documents for progress in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 900
    assert {progress.total_documents for progress in seen} == {900}
    assert seen[-1].num_embedded == 900


@pytest.mark.parametrize("options", [{}, {"recreate": True}, {"dry_run": True}])
def test_progress_is_told_before_a_slow_source_has_given_anything(
    options: dict[str, Any], store: FakeStore, embedder: Embedder
) -> None:
    """Else a display says what went on before, that the destination is opened."""
    run(numbered(1), store, embedder)
    told, told_when_asked = list[IndexProgress](), list[int]()

    def slow() -> Iterator[Document]:
        told_when_asked.append(len(told))
        yield from documents(numbered(3))

    run(slow(), store, embedder, on_progress=told.append, **options)
    assert told_when_asked == [1]


def test_progress_counts_rows_as_batches_end(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.indexing.load.LOOK_SECONDS", 0.001)
    engine = FakeEngine(max_batch_tokens=64)
    seen, released = list[IndexProgress](), list[bool]()

    def look(progress: IndexProgress) -> None:
        seen.append(progress)
        if len(engine.batches) > len(released):  # one at each look; the others still wait
            released.append(True)
            engine.release_one()

    engine.hold()
    with fake_embedder(engine) as embedder:
        run(numbered(40), store, embedder, on_progress=look)
    ahead = [p for p in seen if p.num_embedded < p.num_vectors < 40]
    assert ahead
    assert all(p.num_documents_embedded == p.num_vectors for p in ahead)
    assert (seen[-1].num_vectors, seen[-1].num_documents_embedded) == (40, 40)
    assert [p.is_finishing for p in seen] == [False] * (len(seen) - 1) + [True]


@pytest.mark.parametrize(
    ("options", "total"), [({"limit": 7}, 7), ({"limit": 900}, 100), ({"shard": "1/4"}, 25)]
)
def test_the_whole_is_what_will_be_read(
    options: dict[str, Any], total: int, store: FakeStore, embedder: Embedder
) -> None:
    seen: list[IndexProgress] = []
    run(numbered(100), store, embedder, on_progress=seen.append, **options)
    assert {progress.total_documents for progress in seen} == {total}
    seen.clear()
    run((each for each in documents(numbered(9))), store, embedder, on_progress=seen.append)
    assert {progress.total_documents for progress in seen} == {None}
