from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embedlib.errors import ClosedError, PassingBuildError, SinkError
from embedlib.indexing.sinks.thread import SinkThread, running_thread
from tests.waiting import WAIT_SECONDS


def test_an_end_lets_queued_calls_run_and_refuses_further_ones() -> None:
    thread, may_go, order = SinkThread(), threading.Event(), list[str]()
    first = thread.submit(may_go.wait, WAIT_SECONDS)
    thread.submit(order.append, "queued")
    last = thread.end(lambda: order.append("last"))
    assert thread.end(lambda: order.append("twice")) is None
    with pytest.raises(ClosedError, match="this destination is closed; open it again"):
        thread.submit(order.append, "too late")
    assert not thread.close(0)
    may_go.set()
    assert thread.close(WAIT_SECONDS)
    assert first.result(0)
    assert last is not None
    assert last.done()
    assert order == ["queued", "last"]


def test_a_call_that_comes_behind_the_end_fails() -> None:
    thread, may_go = SinkThread(), threading.Event()
    thread.submit(may_go.wait, WAIT_SECONDS)
    thread.end()
    thread._is_ending = False  # as the caller saw it just before
    assert thread.submit(print).cancel()
    waiting = thread.submit(print)
    may_go.set()
    with pytest.raises(ClosedError):
        waiting.result(WAIT_SECONDS)
    assert thread.close(WAIT_SECONDS)
    thread._is_ending = False
    with pytest.raises(ClosedError):
        thread.submit(print).result(0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SinkError])
def test_an_interrupted_load_waits_no_longer_for_a_call(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a database that builds an index."""
    monkeypatch.setattr("embedlib.indexing.sinks.thread._INTERRUPTED_SECONDS", 0.001)
    may_end, closed = threading.Event(), threading.Event()
    sink: Any = SimpleNamespace(close=closed.set)
    is_interrupt = error is KeyboardInterrupt

    def load() -> None:
        with running_thread(sink) as thread:
            thread.submit(may_end.wait, WAIT_SECONDS)
            if not is_interrupt:
                may_end.set()
            raise error

    with pytest.raises(error):
        load()
    assert closed.is_set() != is_interrupt
    may_end.set()
    assert closed.wait(WAIT_SECONDS)


def test_a_forked_child_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = SinkThread()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ClosedError, match=r"opened in process \d+ and this is its forked chi"):
            thread.submit(print)
        assert thread.end(print) is None
        assert thread.close(None)
    assert thread.submit(lambda: 7).result(WAIT_SECONDS) == 7
    assert thread.close(WAIT_SECONDS)


def test_where_no_thread_is_left_it_says_so(limit_threads: Callable[[int], list[str]]) -> None:
    limit_threads(1)
    thread = SinkThread()
    with pytest.raises(PassingBuildError, match=r"no more threads can be started .*raise the"):
        SinkThread()
    started = thread.submit(threading.Thread(target=print).start)  # as a sink may do
    with pytest.raises(PassingBuildError, match="no more threads"):
        started.result(WAIT_SECONDS)
    assert thread.close(WAIT_SECONDS)


@pytest.mark.parametrize(
    "said",
    [
        "lock on rows.db: Resource temporarily unavailable",
        "IO error: Resource temporarily unavailable (os error 11)",
        "recv: Resource temporarily unavailable\nthe server does not answer",
    ],
)
def test_what_else_is_not_available_is_not_told_of_threads(said: str) -> None:
    def locked() -> None:
        raise RuntimeError(said)

    thread = SinkThread()
    failed = thread.submit(locked).exception(WAIT_SECONDS)
    assert isinstance(failed, RuntimeError)
    assert str(failed) == said
    assert thread.close(WAIT_SECONDS)


def test_an_idle_thread_keeps_nothing_of_its_last_call() -> None:
    class Rows:
        def get(self) -> Rows:
            return self

        def fail(self) -> None:
            raise ValueError(self)

    thread = SinkThread()
    thread.submit((rows := Rows()).get).result(WAIT_SECONDS)
    freed = threading.Event()
    weakref.finalize(rows, freed.set)
    del rows
    assert freed.wait(WAIT_SECONDS)
    failed = thread.submit((rows := Rows()).fail)
    assert isinstance(failed.exception(WAIT_SECONDS), ValueError)
    freed.clear()
    weakref.finalize(rows, freed.set)
    del rows, failed
    assert freed.wait(WAIT_SECONDS)
    thread.close(WAIT_SECONDS)
