from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.engines.base import (
    Batch,
    CancellablePending,
    Engine,
    InFlight,
    Lane,
    Pending,
    why_lost,
)
from embedlib.engines.many import ManyEngines
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import CloseTimeoutError, EngineOutOfMemoryError, EngineRunError
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import (
    FakeEngine,
    byte_tokenizer,
    check_engine,
    fake_spec,
    fake_vector,
    make_batch,
)
from tests.waiting import WAIT_SECONDS

TEXTS = [f"text {number}" for number in range(40)]


class DeadEngine(FakeEngine):
    """An engine whose device is lost: every batch fails, in `submit` or afterwards."""

    def __init__(self, *, at_submit: bool = False) -> None:
        super().__init__()
        self.at_submit = at_submit

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Pending:
        if self.at_submit:
            self.batches.append(batch)
            raise EngineRunError("the device is gone")
        self.fail_next(EngineRunError("the device is gone"))
        return super().submit(batch, on_done)


def many(*engines: Engine) -> ManyEngines:
    return ManyEngines([(f"cuda:{index}", engine) for index, engine in enumerate(engines)])


def batch_of(text: str, lane: Lane = Lane.BULK) -> Batch:
    return make_batch([list(text.encode())], lane)


class Submitted:
    """A batch submitted to an engine; counts the calls of `on_done`."""

    def __init__(self, engine: ManyEngines, batch: Batch) -> None:
        self._done = threading.Semaphore(0)
        self._pending = engine.submit(batch, self._done.release)

    def result(self) -> NDArray[np.float32]:
        assert self._done.acquire(timeout=WAIT_SECONDS)
        assert not self._done.acquire(blocking=False), "on_done was called twice"
        return self._pending.result()

    def cancel(self) -> None:
        assert isinstance(self._pending, CancellablePending)
        self._pending.cancel()


@pytest.fixture
def embedder_of() -> Iterator[Callable[..., Embedder]]:
    made: list[Embedder] = []

    def make(*engines: Engine) -> Embedder:
        made.append(Embedder.from_engine(many(*engines), fake_spec(), byte_tokenizer()))
        return made[-1]

    yield make
    for embedder in made:
        embedder.close()


def expected() -> NDArray[np.float32]:
    return np.stack([fake_vector(list(text.encode())) for text in TEXTS])


def test_rows_come_in_order_and_every_engine_works(embedder_of: Callable[..., Embedder]) -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.hold()
    future = embedder_of(*engines).submit_batch(TEXTS)
    for engine in engines:
        engine.wait_submitted(1)
    # The last engine finishes first.
    for engine in reversed(engines):
        engine.release()
    np.testing.assert_array_equal(future.result(WAIT_SECONDS), expected())


def test_an_engine_that_says_done_twice(embedder_of: Callable[..., Embedder]) -> None:
    class Stutterer(FakeEngine):
        def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
            pending = super().submit(batch, on_done)
            on_done()
            return pending

    embedder = embedder_of(Stutterer(), FakeEngine())
    for _ in range(2):
        np.testing.assert_array_equal(embedder.encode(TEXTS), expected())


@pytest.mark.parametrize("is_one_of_many", [False, True])
def test_a_batch_that_is_over_waits_for_no_garbage_collector(is_one_of_many: bool) -> None:
    found: list[weakref.ref[Pending]] = []

    class Keeping(FakeEngine):
        """Its batches keep the callback, as those of our engines do."""

        def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
            pending = InFlight(batch, on_done)
            pending.vectors = self._compute(batch)
            found.append(weakref.ref(pending))
            on_done()
            return pending

    engine = many(Keeping()) if is_one_of_many else Keeping()
    gc.disable()
    try:
        with Embedder.from_engine(engine, fake_spec(), byte_tokenizer()) as embedder:
            np.testing.assert_array_equal(embedder.encode(TEXTS), expected())
        assert found
        assert not any(pending() for pending in found)
    finally:
        gc.enable()


def test_limits_are_the_sum() -> None:
    first = FakeEngine(max_batch_tokens=64, max_inflight_batches=3, max_inflight_bulk=2)
    second = FakeEngine(max_batch_tokens=48, max_inflight_batches=5, max_inflight_bulk=4)
    engine = many(first, second)
    limits = engine.limits
    assert limits.max_batch_tokens == 48
    assert limits.num_parallel_batches == 2
    assert (limits.max_inflight_batches, limits.max_inflight_bulk) == (8, 6)
    engine.close()
    assert first.is_closed
    assert second.is_closed
    engine.close()


def test_no_engine_gets_more_than_it_takes() -> None:
    first, second = FakeEngine(max_inflight_bulk=1), FakeEngine(max_inflight_bulk=2)
    first.hold()
    second.hold()
    engine = many(first, second)
    bulk = [Submitted(engine, batch_of(text)) for text in TEXTS[:4]]
    first.wait_submitted(1)
    second.wait_submitted(2)
    query = Submitted(engine, batch_of("query", Lane.QUERY))
    first.wait_submitted(2)  # the less busy engine, before the fourth bulk batch
    assert [batch.lane for batch in first.batches] == [Lane.BULK, Lane.QUERY]
    first.release()
    second.release()
    for submitted, text in zip([*bulk, query], [*TEXTS[:4], "query"], strict=True):
        np.testing.assert_array_equal(submitted.result()[0], fake_vector(list(text.encode())))
    engine.close()


def test_a_query_that_no_engine_takes_now_waits() -> None:
    first, second = (FakeEngine(max_inflight_batches=1, max_inflight_bulk=1) for _ in range(2))
    first.hold()
    second.hold()
    engine = many(first, second)
    *taken, waiting = (Submitted(engine, batch_of(text, Lane.QUERY)) for text in TEXTS[:3])
    waiting.cancel()
    with pytest.raises(EngineRunError, match="the batch was cancelled"):
        waiting.result()
    assert [len(one.batches) for one in (first, second)] == [1, 1]
    first.release()
    second.release()
    for submitted in taken:
        submitted.result()
    engine.close()


def test_a_query_that_waits_goes_first() -> None:
    first, second = (FakeEngine(max_inflight_batches=1, max_inflight_bulk=1) for _ in range(2))
    first.hold()
    second.hold()
    engine = many(first, second)
    bulk = [Submitted(engine, batch_of(text)) for text in TEXTS[:4]]
    query = Submitted(engine, batch_of("query", Lane.QUERY))
    first.wait_submitted(1)
    second.wait_submitted(1)
    first.release_one()
    first.wait_submitted(2)
    assert first.batches[1].lane is Lane.QUERY
    first.release()
    second.release()
    for submitted in [*bulk, query]:
        submitted.result()
    engine.close()


@pytest.mark.parametrize("at_submit", [False, True])
def test_a_dying_engine_loses_no_row(
    at_submit: bool, embedder_of: Callable[..., Embedder], caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = DeadEngine(at_submit=at_submit), FakeEngine()
    embedder = embedder_of(dead, alive)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(embedder.encode(TEXTS), expected())
    assert len(caplog.records) == 1
    assert "cuda:0 gets no more batches" in caplog.text
    assert "the device is gone" in caplog.text
    num_batches = len(dead.batches)
    np.testing.assert_array_equal(embedder.encode(TEXTS), expected())
    assert len(dead.batches) == num_batches, "it is given up for good"


def test_an_engine_that_dies_with_batches_in_flight() -> None:
    first, second = FakeEngine(), FakeEngine()
    first.hold()
    second.hold()
    engine = many(first, second)
    first.fail_next(*[EngineRunError("the device is gone")] * 2)
    submitted = [Submitted(engine, batch_of(text)) for text in TEXTS[:4]]
    first.wait_submitted(2)
    second.wait_submitted(2)
    first.release()
    second.release()
    for entry, text in zip(submitted, TEXTS[:4], strict=True):
        np.testing.assert_array_equal(entry.result()[0], fake_vector(list(text.encode())))
    assert len(second.batches) == 4
    engine.close()


def test_when_all_are_dead_the_error_is_told(embedder_of: Callable[..., Embedder]) -> None:
    embedder = embedder_of(DeadEngine(), DeadEngine(at_submit=True))
    told = "no engine could compute it: cuda:0: the device is gone; cuda:1: the device is gone"
    for _ in range(2):
        with pytest.raises(EngineRunError, match=told) as caught:
            embedder.encode(TEXTS)
        assert isinstance(caught.value.__cause__, EngineRunError)


def test_a_batch_that_is_to_blame_ends_no_engine() -> None:
    first, second = FakeEngine(), FakeEngine()
    engine = many(first, second)
    for fake in (first, second):
        fake.fail_next(EngineRunError("a bad batch"))
    with pytest.raises(EngineRunError, match="no engine could compute it"):
        Submitted(engine, batch_of("bad")).result()
    for fake in (first, second):
        fake.hold()
    good = [Submitted(engine, batch_of(text)) for text in TEXTS[:2]]
    first.wait_submitted(2)
    second.wait_submitted(2)
    first.release()
    second.release()
    for submitted in good:
        submitted.result()
    engine.close()


def test_two_engines_never_give_each_other_up() -> None:
    first, second = FakeEngine(), FakeEngine()
    first.hold()
    second.hold()
    engine = many(first, second)
    first.fail_next(EngineRunError("once"))
    second.fail_next(EngineRunError("once"))
    submitted = [Submitted(engine, batch_of(text)) for text in TEXTS[:2]]
    first.wait_submitted(1)
    second.wait_submitted(1)
    first.release_one()  # fails, and is retried on the second
    second.wait_submitted(2)
    second.release_one()  # fails, and is retried on the first
    first.wait_submitted(2)
    first.release()
    submitted[1].result()  # so the second engine is given up, with a batch of the first in flight
    second.release()
    submitted[0].result()
    assert Submitted(engine, batch_of("after")).result().shape == (1, 6)
    engine.close()


def test_a_batch_whose_last_engine_was_given_up_is_told() -> None:
    first, second = FakeEngine(), FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    first.hold()
    second.hold()
    engine = many(first, second)
    first.fail_next(EngineRunError("once"))
    second.fail_next(EngineRunError("gone"))
    failing = Submitted(engine, batch_of("one"))
    first.wait_submitted(1)
    other = Submitted(engine, batch_of("two"))
    second.wait_submitted(1)
    first.release_one()  # "one" is queued for the second, which is full
    second.release_one()  # "two" fails there too, and the second starts "one"
    first.wait_submitted(2)
    second.fail_next(EngineRunError("gone"))
    first.release()
    other.result()  # the second engine is given up
    second.release()
    assert failing.result().shape == (1, 6)  # its batch in flight was still computed
    engine.close()


def test_too_little_memory_is_for_the_caller_to_split(
    embedder_of: Callable[..., Embedder],
) -> None:
    first, second = FakeEngine(memory_tokens=20), FakeEngine(memory_tokens=20)
    np.testing.assert_array_equal(embedder_of(first, second).encode(TEXTS), expected())


def test_it_is_told_at_once_on_one_engine() -> None:
    first, second = FakeEngine(), FakeEngine()
    first.fail_next(EngineOutOfMemoryError("too large"))
    engine = many(first, second)
    with pytest.raises(EngineOutOfMemoryError, match=r"^too large$"):
        Submitted(engine, batch_of("long")).result()
    assert not second.batches
    engine.close()


def test_close_waits_for_what_is_in_flight() -> None:
    fake = FakeEngine()
    fake.hold()
    engine = many(fake, FakeEngine())
    submitted = Submitted(engine, batch_of("in flight"))
    fake.wait_submitted(1)
    closing = threading.Thread(target=engine.close)
    closing.start()
    fake.release()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    assert submitted.result().shape == (1, 6)


def test_close_waits_for_a_limited_time() -> None:
    fake, other = FakeEngine(), FakeEngine()
    fake.hold()
    engine = many(fake, other)
    submitted = Submitted(engine, batch_of("in flight"))
    with pytest.raises(CloseTimeoutError, match="'embedlib-engines' still runs"):
        engine.close(timeout=0.01)
    assert not other.is_closed
    fake.release()
    engine.close()
    assert other.is_closed
    assert submitted.result().shape == (1, 6)


def test_one_that_is_not_closed_in_time_is_told_once_the_others_are_closed() -> None:
    class Late(FakeEngine):
        def close(self) -> None:
            raise CloseTimeoutError("late")

    other = FakeEngine()
    with pytest.raises(CloseTimeoutError, match="late"):
        many(Late(), other).close()
    assert other.is_closed


class CancellingEngine(FakeEngine):
    """An engine whose batches can be cancelled; they then fail."""

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        pending = super().submit(batch, on_done)

        def cancel() -> None:
            pending._error = EngineRunError("cancelled")
            on_done()

        pending.cancel = cancel  # type: ignore[attr-defined]
        return pending


def test_a_batch_that_is_cancelled_is_tried_on_no_other_engine() -> None:
    first, second = CancellingEngine(), CancellingEngine()
    for engine in (first, second):
        engine.hold()
    engines = many(first, second)
    num_bulk = engines.limits.max_inflight_bulk
    batches = [Submitted(engines, batch_of(text)) for text in TEXTS[: num_bulk + 1]]
    for engine in (first, second):
        engine.wait_submitted(engine.limits.max_inflight_bulk)
    try:
        batches[-1].cancel()  # that waits
        with pytest.raises(EngineRunError, match="the batch was cancelled"):
            batches[-1].result()
        batches[0].cancel()  # this one is being computed
        with pytest.raises(EngineRunError, match="cancelled"):
            batches[0].result()
        batches[0].cancel()  # this one has ended
        assert len(first.batches) + len(second.batches) == num_bulk
    finally:
        for engine in (first, second):
            engine.release()
        engines.close()


def test_a_batch_without_cancel_is_waited_for() -> None:
    engine = FakeEngine()
    engine.hold()
    engines = many(engine)
    batch = Submitted(engines, batch_of(TEXTS[0]))
    engine.wait_submitted(1)
    batch.cancel()
    engine.release()
    engines.close()
    np.testing.assert_array_equal(batch.result()[0], expected()[0])


def test_one_that_cannot_be_closed_leaves_the_others_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(FakeEngine):
        def close(self) -> None:
            raise EngineRunError("stuck")

    other = FakeEngine()
    many(Stuck(), other).close()
    assert other.is_closed
    assert "closing cuda:0 failed: stuck" in caplog.text


def test_two_cpu_engines_keep_every_promise(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("bert"))
    engines = [OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1)) for _ in range(2)]
    check_engine(many(*engines), files.spec)


def test_a_list_of_devices(tiny_folder: Callable[[str], Path]) -> None:
    with (
        Embedder(tiny_folder("bert"), device=["cpu", "cpu"], threads=2) as two,
        Embedder(tiny_folder("bert"), device="cpu", threads=1) as one,
    ):
        np.testing.assert_allclose(two.encode(TEXTS), one.encode(TEXTS), atol=1e-5)
        assert two.fingerprint == one.fingerprint


class LostEngine(DeadEngine):
    """An engine that tells that its device is lost."""

    lost = "the GPU is lost"


def test_engines_are_lost_when_all_that_get_batches_are() -> None:
    healthy = FakeEngine()
    engine = many(LostEngine(), healthy)
    assert why_lost(engine) is None
    batch = batch_of("a")
    np.testing.assert_array_equal(Submitted(engine, batch).result(), [fake_vector(list(b"a"))])
    assert why_lost(engine) is None, "the second one computes"
    healthy.lost = "it is, too"  # type: ignore[attr-defined]
    assert why_lost(engine) == "cuda:1: it is, too"
    engine.close()
    for engines in ((FakeEngine(), DeadEngine()), (LostEngine(), FakeEngine())):
        untold = many(*engines)
        assert why_lost(untold) is None
        untold.close()
    both = many(LostEngine(), LostEngine(at_submit=True))
    assert why_lost(both) == "cuda:0: the GPU is lost; cuda:1: the GPU is lost"
    both.close()
