"""Which worker takes a call again that failed; workers are no processes here."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.errors import SinkError
from embedlib_ray.pool import ATTEMPTS, WorkerPool
from embedlib_ray.worker import Counts

SECONDS = 30.0


def reference(result: object) -> Any:
    """What Ray returns of a call that has ended."""
    future: Future[object] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return SimpleNamespace(future=lambda: future)


def worker(name: str, result: object) -> Any:
    """A worker whose calls all end alike."""
    counts = Counts(worker=name, num_texts=0, num_tokens=0, num_truncated=0)
    answer = result if isinstance(result, Exception) else (result, counts)
    return SimpleNamespace(load=Mock(remote=Mock(side_effect=lambda *_: reference(answer))))


def make_pool(first: Any, *others: Any, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """Return a pool whose workers are all ready."""
    monkeypatch.setattr("ray.kill", Mock())
    handles = iter(others)
    pool = WorkerPool(
        lambda _: (next(handles), ""), lambda _handle, _number: reference(None), Mock()
    )
    pool.grow(first, "", [1] * (1 + len(others)))
    while pool.num_ready <= len(others):
        pass
    return pool


def test_a_shard_that_failed_is_given_to_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = worker("lost", SinkError("the database does not answer"))
    good = worker("good", "stored")
    pool = make_pool(lost, good, monkeypatch=monkeypatch)
    try:
        results = [pool.submit("load", number).result(SECONDS) for number in range(20)]
    finally:
        pool.close()
    assert results == ["stored"] * 20
    assert lost.load.remote.called


def test_a_shard_that_all_workers_fail_with_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [worker(f"{number}", SinkError("it does not answer")) for number in range(2)]
    pool = make_pool(*workers, monkeypatch=monkeypatch)
    try:
        with pytest.raises(SinkError, match="it does not answer"):
            pool.submit("load", 1).result(SECONDS)
    finally:
        pool.close()
    assert sum(each.load.remote.call_count for each in workers) == ATTEMPTS
    assert all(each.load.remote.called for each in workers)
