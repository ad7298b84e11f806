"""What happens at the same moment: an end and a call, a start and a signal. No cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from ray.exceptions import ActorDiedError

from embedlib.config import Config
from embedlib.errors import ClosedError
from embedlib.serve import ServeOptions
from embedlib.serve.fleet import Replicas
from embedlib_ray import run
from embedlib_ray.pool import WorkerPool
from embedlib_ray.replica import Call
from embedlib_ray.serving import ATTEMPTS, _caller

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
            on_start=lambda: None,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert serve.delete.called


def test_a_request_goes_to_another_replica_if_one_dies_and_ends_with_its_client() -> None:
    class Response:
        """What Ray Serve returns of a call."""

        def __init__(self, found: Any) -> None:
            self.found = found
            self.cancel = Mock()

        def __await__(self) -> Any:
            yield
            if isinstance(self.found, BaseException):
                raise self.found
            return self.found

    def ask(*found: Any) -> tuple[Any, list[Any]]:
        responses = [Response(each) for each in found]
        remote = Mock(side_effect=responses)
        call = _caller(SimpleNamespace(answer=Mock(remote=remote)), "m")
        try:
            answer: Any = asyncio.run(call(request))
        except BaseException as error:
            answer = error
        assert [each.args for each in remote.call_args_list] == [(request, "m")] * remote.call_count
        return answer, responses[: remote.call_count]

    request, died = Call(method="GET", path="/"), ActorDiedError()
    assert ask(died, died, died, "an answer")[0] == "an answer"
    answer, asked = ask(*[died] * ATTEMPTS, "an answer")
    assert (answer, len(asked)) == (died, ATTEMPTS)
    answer, asked = ask(ValueError("a bug"), "an answer")
    assert (str(answer), len(asked)) == ("a bug", 1)
    answer, [only] = ask(asyncio.CancelledError())
    assert isinstance(answer, asyncio.CancelledError)
    assert only.cancel.called
