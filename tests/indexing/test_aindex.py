"""A load that an event loop waits for: the loop goes on, and a cancelled task costs no more."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from embedlib import Document, Embedder, SourceOptions, aindex
from embedlib.errors import ConfigError, SinkError, SourceError
from embedlib.indexing import IndexProgress, asynchronous
from embedlib.indexing.sinks.protocol import Target, Tell
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder
from tests.waiting import WAIT_SECONDS


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlib.indexing.load.LOOK_SECONDS", 0.01)


def documents(count: int) -> list[Document]:
    return [Document(id=f"d{number}", text=f"text {number}") for number in range(count)]


class WaitingSink(FakeSink):
    """Begins when it is told to."""

    def __init__(self, store: FakeStore) -> None:
        super().__init__(store)
        self.is_beginning = threading.Event()
        self.may_begin = threading.Event()

    def begin(self, target: Target, tell: Tell) -> None:
        self.is_beginning.set()
        assert self.may_begin.wait(WAIT_SECONDS), "the event loop was blocked"
        super().begin(target, tell)


async def test_the_loop_goes_on_while_a_load_runs() -> None:
    store, sink = FakeStore(), WaitingSink(FakeStore())
    sink.store = store
    with fake_embedder() as embedder:
        load = asyncio.create_task(aindex(documents(70), sink, embedder=embedder, chunk=False))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not load.done()
        sink.may_begin.set()
        report = await load
    assert report.num_embedded == len(store.rows) == 70
    assert not store.is_locked


async def test_what_index_raises_is_raised() -> None:
    store = FakeStore(is_locked=True)
    with fake_embedder() as embedder, pytest.raises(SinkError, match="another sink"):
        await aindex(documents(1), FakeSink(store), embedder=embedder)


async def test_the_progress_is_told() -> None:
    told: list[IndexProgress] = []
    store = FakeStore()
    with fake_embedder() as embedder:
        source = documents(9)
        await aindex(source, FakeSink(store), embedder=embedder, on_progress=told.append)
        assert (told[-1].num_embedded, told[-1].is_finishing) == (9, True)
        with pytest.raises(ConfigError, match="on_progress = 5; it must be a function"):
            await aindex(source, FakeSink(FakeStore()), embedder=embedder, on_progress=5)  # type: ignore[arg-type]


async def test_documents_come_from_an_async_iterable_which_is_closed() -> None:
    is_closed = False

    async def read() -> AsyncIterator[Document]:
        nonlocal is_closed
        try:
            for document in documents(30):
                await asyncio.sleep(0)
                yield document
        finally:
            is_closed = True

    store = FakeStore()
    with fake_embedder() as embedder:
        report = await aindex(read(), FakeSink(store), embedder=embedder, limit=20)
    assert report.num_documents == len(store.rows) == 20
    assert is_closed


async def test_an_error_of_an_async_source_is_raised() -> None:
    async def read() -> AsyncIterator[Document]:
        yield Document(id="a", text="a")
        raise OSError("the disk is gone")

    with fake_embedder() as embedder, pytest.raises(OSError, match="the disk is gone"):
        await aindex(read(), FakeSink(FakeStore()), embedder=embedder)


async def test_a_cancelled_load_embeds_no_more_and_frees_the_destination() -> None:
    engine = FakeEngine()
    engine.hold()
    store = FakeStore()
    with fake_embedder(engine) as embedder:
        load = asyncio.create_task(
            aindex(documents(5000), FakeSink(store), embedder=embedder, chunk=False)
        )
        await asyncio.to_thread(engine.wait_submitted, 1)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        assert not store.is_locked
        num_batches = len(engine.batches)
        engine.release()
        await embedder.aencode("end")
        assert len(engine.batches) == num_batches + 1
        await _loads_again(embedder, store)


async def _loads_again(embedder: Embedder, store: FakeStore) -> None:
    report = await aindex(documents(9), FakeSink(store), embedder=embedder, chunk=False)
    assert report.num_rows == 9


async def test_any_async_iterable_will_do() -> None:
    class Source:
        """Has no method that closes it, unlike a generator."""

        def __init__(self) -> None:
            self.rest = documents(5)

        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> Document:
            if not self.rest:
                raise StopAsyncIteration
            return self.rest.pop()

    with fake_embedder() as embedder:
        report = await aindex(Source(), FakeSink(FakeStore()), embedder=embedder)
    assert report.num_documents == 5


async def test_all_arguments_reach_the_load_and_its_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {
        **{name: name for name in ("embedder", "sparse", "ray", "ray_workers")},
        "source_options": SourceOptions(),
        "tell": print,
        "limit": 3,
    }

    def load(*arguments: object, on_progress: object, **options: object) -> threading.Thread:
        assert (arguments, options) == (("source", "sink"), given)
        return threading.current_thread()

    monkeypatch.setattr(asynchronous, "index", load)
    thread: Any = await aindex("source", "sink", **given)
    await asyncio.to_thread(thread.join, WAIT_SECONDS)
    assert not thread.is_alive()


async def test_a_source_is_not_waited_for_once_the_load_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(FakeSink):
        def digests(self, ids: Any) -> Any:
            assert is_asked.wait(WAIT_SECONDS)
            raise SinkError("fake: is gone")

    monkeypatch.setattr("embedlib.indexing.reader._JOIN_SECONDS", 0)
    is_asked, is_closed = threading.Event(), False

    async def read() -> AsyncIterator[Document]:
        nonlocal is_closed
        try:
            yield Document(id="a", text="a")
            is_asked.set()
            await asyncio.Event().wait()
        finally:
            is_closed = True

    store = FakeStore()
    with fake_embedder() as embedder:
        await aindex(documents(1), FakeSink(store), embedder=embedder)
        with pytest.raises(SinkError, match="fake: is gone"):
            await asyncio.wait_for(aindex(read(), Broken(store), embedder=embedder), WAIT_SECONDS)
    assert is_closed


async def test_a_source_that_is_cancelled_by_others_is_an_error() -> None:
    async def read() -> AsyncIterator[Document]:
        yield Document(id="a", text="a")
        raise asyncio.CancelledError

    said = "^the source was cancelled while it was read$"
    with fake_embedder() as embedder, pytest.raises(SourceError, match=said):
        await aindex(read(), FakeSink(FakeStore()), embedder=embedder)


async def test_a_source_that_is_cut_short_is_not_taken_for_a_whole_one() -> None:
    """As where the loop is busy while the load asks for a document, and the task is cancelled."""
    loop, is_compared = asyncio.get_running_loop(), threading.Event()

    def cancel() -> None:
        load.cancel()
        assert is_compared.wait(WAIT_SECONDS)

    async def read() -> AsyncIterator[Document]:
        loop.call_soon(loop.call_soon, cancel)  # when the first document has reached the load
        for document in documents(10):
            yield document

    def told(progress: IndexProgress) -> None:
        if progress.num_unchanged:
            is_compared.set()

    store = FakeStore()
    with fake_embedder() as embedder:
        await aindex(documents(10), FakeSink(store), embedder=embedder)
        options: dict[str, Any] = {"delete_missing": True, "max_delete": 1}
        load = asyncio.create_task(
            aindex(read(), FakeSink(store), embedder=embedder, on_progress=told, **options)
        )
        with pytest.raises(asyncio.CancelledError):
            await load
    assert len(store.rows) == 10


async def test_no_document_is_read_after_the_end() -> None:
    async def read() -> AsyncIterator[Document]:
        yield Document(id="a", text="a")

    items = asynchronous._Items(read())
    await items.close()
    with pytest.raises(asynchronous._Stopped):
        await asyncio.to_thread(list, items)


@pytest.mark.parametrize("how", ["soon", "stuck", "twice"])
def test_nothing_is_logged_of_a_load_that_nobody_waits_for(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = WaitingSink(FakeStore())
    if how == "stuck":
        monkeypatch.setattr(asynchronous, "STOP_SECONDS", 0.01)

    def end_load() -> None:
        sink.may_begin.set()
        for thread in threading.enumerate():
            if thread.name == "embedlib-index":
                thread.join(WAIT_SECONDS)

    async def cancel(embedder: Embedder) -> None:
        load = asyncio.create_task(aindex(documents(9), sink, embedder=embedder))
        await asyncio.to_thread(sink.is_beginning.wait, WAIT_SECONDS)
        load.cancel()
        if how == "soon":
            sink.may_begin.set()
        if how == "twice":
            await asyncio.sleep(0)
            load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        if how == "twice":  # it ends while the loop still runs
            await asyncio.to_thread(end_load)

    with fake_embedder() as embedder:
        asyncio.run(cancel(embedder))
        end_load()
    gc.collect()
    assert caplog.messages == []


async def test_a_load_that_the_end_of_the_program_leaves_behind_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with fake_embedder() as embedder, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr("embedlib.threads.closing.is_left_behind", lambda: True)
        load = asyncio.create_task(aindex([], FakeSink(FakeStore()), embedder=embedder))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not load.done()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load


async def test_a_source_that_never_answers_is_cancelled_with_the_task() -> None:
    waits = asyncio.Event()
    was_locked: list[bool] = []

    async def read() -> AsyncIterator[Document]:
        yield Document(id="a", text="a")
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            was_locked.append(store.is_locked)

    store = FakeStore()
    with fake_embedder() as embedder:
        load = asyncio.create_task(aindex(read(), FakeSink(store), embedder=embedder))
        await waits.wait()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
    assert was_locked == [True], "the load had to wait for it"
    assert not store.is_locked


def test_a_load_that_outlives_the_event_loop_of_its_source_stops() -> None:
    async def source() -> AsyncIterator[Document]:
        for document in documents(2):
            yield document

    async def begin() -> Iterator[Any]:
        items = asynchronous._Items(source())
        read = iter(items)
        await asyncio.to_thread(next, read)
        await items.close()
        return read

    left = asyncio.run(begin())
    with pytest.raises(asynchronous._Stopped):
        next(left)
