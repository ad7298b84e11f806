"""A load that an event loop waits for: the loop goes on, and a cancelled task costs no more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from embedlib import Document, Embedder, aindex
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing import IndexProgress
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
        self.may_begin = threading.Event()

    def begin(self, target: Target, tell: Tell) -> None:
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


async def test_a_load_that_the_end_of_the_program_leaves_behind_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with fake_embedder() as embedder, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr("embedlib.closing.is_left_behind", lambda: True)
        load = asyncio.create_task(aindex([], FakeSink(FakeStore()), embedder=embedder))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not load.done()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load


async def test_a_source_that_never_answers_is_cancelled_with_the_task() -> None:
    waits = asyncio.Event()
    is_closed = False

    async def read() -> AsyncIterator[Document]:
        nonlocal is_closed
        yield Document(id="a", text="a")
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            is_closed = True

    store = FakeStore()
    with fake_embedder() as embedder:
        load = asyncio.create_task(aindex(read(), FakeSink(store), embedder=embedder))
        await waits.wait()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
    assert is_closed
    assert not store.is_locked
