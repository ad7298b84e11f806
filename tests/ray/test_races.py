"""What happens at the same moment: an end and a call, a start and a signal. No cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.config import Config
from embedlib.errors import ClosedError
from embedlib.serve import ServeOptions
from embedlib.serve.fleet import Replicas
from embedlib_ray import run
from embedlib_ray.pool import WorkerPool

SECONDS = 30.0


@pytest.fixture(autouse=True)
def connected() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.is_initialized", lambda: True)
        yield


def make_pool() -> WorkerPool:
    return WorkerPool(Mock(return_value=None), Mock(), Mock())


def test_a_call_behind_the_end_of_a_pool_is_refused() -> None:
    pool, may_end = make_pool(), threading.Event()
    pool._inbox.put(lambda: may_end.wait(SECONDS) and None)
    closing = threading.Thread(target=pool.close)
    closing.start()
    while not pool._inbox.qsize():
        pass
    try:
        with pytest.raises(ClosedError, match="were closed"):
            pool.submit("embed", ["a"])
    finally:
        may_end.set()
        closing.join(SECONDS)


def test_a_call_that_is_cancelled_at_the_end_leaves_none_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Leaving(Future[Any]):
        def set_exception(self, exception: BaseException | None) -> None:
            self.cancel()
            super().set_exception(exception)

    pool = make_pool()
    monkeypatch.setattr("embedlib_ray.pool.Future", Leaving)
    first = pool.submit("embed", ["a"])
    monkeypatch.undo()
    second = pool.submit("embed", ["b"])
    pool.close()
    assert first.cancelled()
    with pytest.raises(ClosedError):
        second.result(SECONDS)


def test_a_signal_right_behind_the_start_of_a_server_ends_what_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = iter((None, "1", "1"))  # before the start, behind it and at the end

    def version() -> str | None:
        found = next(calls)
        if found == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    serve = Mock()
    for name, fake in {
        "build_app": Mock(),
        "connected": lambda _: nullcontext(),
        "machines": list,
        "start": Mock(),
        "serve": serve,
        "_version": version,
    }.items():
        monkeypatch.setattr(run, name, fake)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run.serve_models(
            {"m": "m"},
            "auto",
            host="127.0.0.1",
            port=1,
            config=Config(),
            options=ServeOptions(),
            replicas=Replicas(min_replicas=1, max_replicas=1, cpus=1),
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert serve.delete.called
