"""What becomes of calls that fail, or whose cluster ends; workers are no processes here."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from embedlib.config import Config
from embedlib.errors import ClosedError, ConfigError, EmbedlibError, SinkError
from embedlib.testing import FakeSink, FakeStore
from embedlib_ray import pool as pool_module
from embedlib_ray.destination import SharedSink
from embedlib_ray.embedder import RayEmbedder, _joined
from embedlib_ray.pool import ATTEMPTS, WorkerPool
from embedlib_ray.worker import CALLS, Counts

SECONDS = 30.0
COUNTS = Counts(worker="", num_texts=0, num_tokens=0, num_truncated=0)


@pytest.fixture(autouse=True)
def ray() -> Iterator[Any]:
    """Ray's own functions: this program is connected to a cluster."""
    found = SimpleNamespace(kill=Mock(), is_initialized=Mock(return_value=True), get=Mock())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "ray", found)
        yield found


def reference(result: object) -> Any:
    """What Ray returns of a call that has ended, or that ends with a future."""
    future: Future[object] = result if isinstance(result, Future) else Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    elif future is not result:
        future.set_result(result)
    return SimpleNamespace(future=lambda: future)


def worker(name: str, result: object) -> Any:
    """A worker whose calls all end alike."""
    counts = Counts(worker=name, num_texts=0, num_tokens=0, num_truncated=0)
    answer = result if isinstance(result, Exception | Future) else (result, counts)
    return SimpleNamespace(load=Mock(remote=Mock(side_effect=lambda *_: reference(answer))))


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end


def make_pool(first: Any, *others: Any, open_call: Any = lambda *_: reference(None)) -> WorkerPool:
    """Return a pool whose workers are all ready."""
    handles = iter(others)
    pool = WorkerPool(lambda _: (next(handles), ""), open_call, Mock())
    pool.grow(first, "", [1] * (1 + len(others)))
    wait_until(lambda: pool.num_ready > len(others))
    return pool


def error_of(call: Callable[[], object]) -> EmbedlibError:
    """Return what a call raises, which may not wait forever."""
    raised: list[EmbedlibError] = []

    def run() -> None:
        try:
            call()
        except EmbedlibError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it waits forever"
    [error] = raised
    return error


def test_a_shard_that_failed_is_given_to_another_worker() -> None:
    lost = worker("lost", SinkError("the database does not answer"))
    good = worker("good", "stored")
    open_call = Mock(side_effect=lambda *_: reference(None))
    pool = make_pool(lost, good, open_call=open_call)
    try:
        results = [pool.submit("load", number).result(SECONDS) for number in range(20)]
    finally:
        pool.close()
    assert results == ["stored"] * 20
    assert pool.num_retries == lost.load.remote.call_count > 0
    open_call.assert_called_once_with(good, 1)  # a worker that lives is not opened again


def test_what_all_workers_have_embedded_is_counted_also_of_those_that_were_started_again() -> None:
    counts = [
        Counts(worker="a", num_texts=5, num_tokens=50, num_truncated=1),
        Counts(worker="a", num_texts=7, num_tokens=70, num_truncated=2),
        Counts(worker="b", num_texts=1, num_tokens=10, num_truncated=4),
    ]
    remote = Mock(side_effect=lambda number: reference((number, counts[number])))
    pool = make_pool(SimpleNamespace(load=Mock(remote=remote)))
    try:
        assert [pool.submit("load", number).result(SECONDS) for number in range(3)] == [0, 1, 2]
        assert pool.totals() == (8, 80, 6)
    finally:
        pool.close()


def test_a_shard_that_all_workers_fail_with_is_given_up() -> None:
    workers = [worker(f"{number}", SinkError("it does not answer")) for number in range(2)]
    pool = make_pool(*workers)
    try:
        with pytest.raises(SinkError, match="it does not answer"):
            pool.submit("load", 1).result(SECONDS)
    finally:
        pool.close()
    assert sum(each.load.remote.call_count for each in workers) == ATTEMPTS
    assert all(each.load.remote.called for each in workers)


def test_a_shard_of_a_load_that_was_cancelled_is_not_tried_in_the_next_one() -> None:
    """The workers may write to another destination then."""
    called, done = threading.Event(), Future[Any]()

    def load(number: int) -> Any:
        called.set()
        return reference(done if number == 1 else ("stored", COUNTS))

    remote = Mock(side_effect=load)
    pool = make_pool(SimpleNamespace(load=Mock(remote=remote)))
    try:
        shard = pool.submit("load", 1)
        assert called.wait(SECONDS)
        shard.cancel()
        pool.reopen()
        done.set_exception(SinkError("its destination was closed"))
        assert pool.submit("load", 2).result(SECONDS) == "stored"
    finally:
        pool.close()
    assert [call.args for call in remote.call_args_list] == [(1,), (2,)]


def test_without_a_connection_ray_is_asked_for_nothing(ray: Any) -> None:
    pool = make_pool(worker("", "stored"))
    ray.is_initialized.return_value = False
    for call in (pool.reopen, lambda: pool.submit("load", 1), pool.close_sinks):
        error = error_of(call)
        assert isinstance(error, ConfigError)
        assert str(error).startswith("the connection to the Ray cluster has ended; open other")
    pool.close()
    assert not ray.kill.called  # Ray would start a cluster to look for the worker


def test_a_worker_has_no_more_calls_than_it_overlaps_and_ends_with_the_pool(ray: Any) -> None:
    busy, is_seen = worker("", Future()), threading.Event()
    pool = make_pool(busy)
    shards = [pool.submit("load", number) for number in range(CALLS + 3)]
    pool._put(is_seen.set)
    assert is_seen.wait(SECONDS)
    assert busy.load.remote.call_count == CALLS
    pool.close()
    ray.kill.assert_called_once_with(busy, no_restart=True)
    assert {type(shard.exception(SECONDS)) for shard in shards} == {ClosedError}


@pytest.mark.parametrize("step", ["call", "open"])
def test_what_waits_when_the_connection_ends_asks_ray_for_nothing(ray: Any, step: str) -> None:
    idle, open_call = worker("", "stored"), Mock()
    pool = make_pool(idle, open_call=open_call)
    task = pool_module._Task("load", (1,), Future())
    ray.is_initialized.return_value = False
    if step == "open":
        pool._inbox.put(lambda: pool._open(pool._places[0]))
    pool._inbox.put(lambda: pool._add(task))
    with pytest.raises(ConfigError, match="connection to the Ray cluster has ended"):
        task.future.result(SECONDS)
    pool.close()
    assert not idle.load.remote.called
    assert not open_call.called


def test_a_call_that_the_end_of_the_connection_leaves_open_is_failed(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_LOOK_SECONDS", 0.01)
    never = worker("", Future())
    pool = make_pool(never)
    shard = pool.submit("load", 1)
    wait_until(lambda: never.load.remote.called)
    ray.is_initialized.return_value = False
    with pytest.raises(ConfigError, match="connection to the Ray cluster has ended"):
        shard.result(SECONDS)
    pool.close()


def test_a_worker_that_is_opened_takes_no_call_before_it_is_open() -> None:
    opening, is_seen = Future[Any](), threading.Event()
    good = worker("", "stored")
    pool = make_pool(good, open_call=lambda *_: reference(opening))
    try:
        pool._put(lambda: pool._open(pool._places[0]))
        shard = pool.submit("load", 1)
        pool._put(is_seen.set)
        assert is_seen.wait(SECONDS)
        assert not good.load.remote.called
        opening.set_result(None)
        assert shard.result(SECONDS) == "stored"
    finally:
        pool.close()


def test_a_worker_that_is_being_opened_is_opened_again_for_the_next_load() -> None:
    answers = [Future[Any](), Future[Any]()]
    open_call = Mock(side_effect=[reference(each) for each in answers])
    pool = make_pool(worker("", "stored"), open_call=open_call)
    try:
        pool._put(lambda: pool._open(pool._places[0]))
        began = threading.Thread(target=pool.reopen, daemon=True)
        began.start()
        wait_until(lambda: pool._purpose)
        answers[0].set_result(None)  # of the load before
        wait_until(lambda: open_call.call_count >= 2)
        assert pool.num_ready == 0
        answers[1].set_result(None)
        began.join(SECONDS)
        assert pool.num_ready == 1
    finally:
        pool.close()


def test_a_worker_that_was_opened_while_it_was_to_be_tried_again_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_RETRY_SECONDS", 0)
    open_call = Mock(side_effect=lambda *_: reference(None))
    pool = make_pool(worker("", "stored"), open_call=open_call)
    place, is_seen = pool._places[0], threading.Event()
    try:
        pool._put(lambda: pool._open_later(place))
        pool._put(is_seen.set)
        assert is_seen.wait(SECONDS)
        wait_until(lambda: not place.is_waiting)
    finally:
        pool.close()
    assert not open_call.called


def test_a_worker_waits_until_there_is_a_machine_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_RETRY_SECONDS", 0)
    late = worker("late", "stored")
    start = Mock(side_effect=[None, None, (late, "second")])
    pool = WorkerPool(start, lambda *_: reference(None), Mock())
    pool.grow(worker("", "stored"), "first", [1, 1])
    try:
        wait_until(lambda: pool.num_ready >= 2)
    finally:
        pool.close()
    assert [call.args[0] for call in start.call_args_list] == [{"first"}] * 3


def test_a_worker_that_dies_whenever_it_is_opened_is_lost_and_the_others_go_on() -> None:
    told = queue.SimpleQueue[str]()
    start = Mock(return_value=(worker("", ""), ""))
    pool = WorkerPool(start, lambda *_: reference(ActorDiedError()), told.put)
    pool.grow(worker("good", "stored"), "", [1, 1])
    try:
        assert told.get(timeout=SECONDS).startswith("a worker is lost: the worker died: ")
        assert start.call_count == ATTEMPTS
        assert pool.submit("load", 1).result(SECONDS) == "stored"
    finally:
        pool.close()


def test_a_worker_that_has_worked_is_started_as_often_as_a_new_one() -> None:
    told = queue.SimpleQueue[str]()
    start = Mock(return_value=(worker("", ""), ""))
    pool = WorkerPool(start, lambda *_: reference(ActorDiedError()), told.put)
    pool.grow(worker("", ActorDiedError()), "", [1])
    try:
        with pytest.raises(EmbedlibError, match="the worker died"):
            pool.submit("load", 1).result(SECONDS)
        assert start.call_count == ATTEMPTS
    finally:
        pool.close()


def test_a_load_waits_for_a_machine_that_does_not_answer_and_not_for_workers_that_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_RETRY_SECONDS", 0)
    answers = [ActorUnavailableError("no answer", None), None, SinkError("it is not reached")]
    open_call = Mock(side_effect=map(reference, answers))
    pool = make_pool(worker("", "stored"), open_call=open_call)
    pool.reopen()
    assert open_call.call_count == 2
    assert str(error_of(pool.reopen)) == "it is not reached"
    pool.close()


def test_at_the_end_of_a_load_a_worker_that_is_opened_is_ended_since_it_may_open_its_sink(
    ray: Any,
) -> None:
    opening = Future[Any]()
    answers = iter((reference(SinkError("it is not reached")), reference(opening)))
    lost, opened = worker("lost", ""), worker("opened", "")
    told = threading.Event()
    handles = iter((lost, opened))
    pool = WorkerPool(lambda _: (next(handles), ""), lambda *_: next(answers), lambda _: told.set())
    ready = SimpleNamespace(close_sink=Mock())
    pool.grow(ready, "", [1, 1, 1])
    try:
        for place in pool._places:
            place.num_failures = ATTEMPTS - 1
        assert told.wait(SECONDS)
        is_seen = threading.Event()
        pool._put(is_seen.set)
        assert is_seen.wait(SECONDS)
        pool.close_sinks()
        assert ready.close_sink.remote.called
        assert [call.args[0] for call in ray.kill.call_args_list] == [opened]
        opening.set_result(None)  # behind its end
        pool._put(is_seen.clear)
        wait_until(lambda: not is_seen.is_set())
        assert pool.num_ready == 1
    finally:
        pool.close()


def test_a_load_that_is_interrupted_before_it_begins_lets_the_workers_give_its_sink_up() -> None:
    embedder = RayEmbedder.__new__(RayEmbedder)
    embedder._lock, embedder._loads, embedder._shared = threading.Lock(), [], None
    embedder._pool = pool = Mock(reopen=Mock(side_effect=KeyboardInterrupt))
    sink = SharedSink(FakeSink(FakeStore()), "fake:")
    with pytest.raises(KeyboardInterrupt):
        embedder.start_load(sink, Mock(), Mock(), Mock(), Mock(), 1)
    assert pool.close_sinks.called
    embedder._check_free(sink)


def test_options_beside_a_config_are_refused() -> None:
    with pytest.raises(ConfigError, match="pass device, threads inside config, or leave config"):
        RayEmbedder("m", config=Config(), device="cpu", threads=1)


def test_a_load_whose_workers_cannot_be_asked_begins_never() -> None:
    stale = Mock(side_effect=RuntimeError("the actor is of another cluster"))
    pool = make_pool(worker("", "stored"), open_call=stale)
    for _ in range(2):
        assert str(error_of(pool.reopen)) == (
            "the Ray cluster does not work: the actor is of another cluster"
        )
    pool.close()


def test_a_shard_whose_worker_died_is_failed_if_no_other_one_can_be_started() -> None:
    dead = worker("", ActorDiedError())
    pool = make_pool(dead, open_call=Mock(side_effect=RuntimeError("the cluster has ended")))
    for _ in range(2):  # nor does the next shard wait for one
        with pytest.raises(EmbedlibError, match="does not work: the cluster has ended"):
            pool.submit("load", 1).result(SECONDS)
    pool.close()


def test_a_call_of_a_load_that_broke_may_end_in_the_next_one() -> None:
    called, done = threading.Event(), Future[Any]()

    def load(number: int) -> Any:
        called.set()
        return reference(done if number == 1 else ("stored", COUNTS))

    pool = make_pool(SimpleNamespace(load=Mock(remote=Mock(side_effect=load))))
    try:
        shard = pool.submit("load", 1)
        assert called.wait(SECONDS)
        pool._put(lambda: pool._break(EmbedlibError("no worker reaches the database")))
        with pytest.raises(EmbedlibError, match="no worker reaches"):
            shard.result(SECONDS)
        pool.reopen()
        done.set_result(("stored", COUNTS))
        assert pool.submit("load", 2).result(SECONDS) == "stored"
    finally:
        pool.close()


def test_a_worker_has_room_again_after_calls_that_could_not_be_made() -> None:
    remote = Mock(side_effect=RuntimeError("no memory"))
    pool = make_pool(SimpleNamespace(load=Mock(remote=remote)))
    try:
        for _ in range(2):
            with pytest.raises(EmbedlibError, match="does not work: no memory"):
                pool.submit("load", 1).result(SECONDS)
            pool.reopen()
        remote.side_effect = lambda _: reference(("stored", COUNTS))
        assert pool.submit("load", 1).result(SECONDS) == "stored"
    finally:
        pool.close()


def test_vectors_that_do_not_go_together_are_an_error() -> None:
    parts = [Future[Any](), Future[Any]()]
    joined = _joined(parts, 3)
    for part, dim in zip(parts, (3, 4), strict=True):
        part.set_result(np.zeros((2, dim), np.float32))
    with pytest.raises(EmbedlibError, match="a worker failed: ValueError: "):
        joined.result(SECONDS)
