"""Exceptions of the program's own signal handlers, in the middle of a call."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import _base as futures
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import embedlib
from embedlib import Embedder
from embedlib.engines.base import Batch, Lane
from embedlib.testing import FakeEngine, fake_embedder
from embedlib.threads.interrupts import SafeCondition, is_of_handler, sigterm_waits

PACKAGE = Path(embedlib.__file__).parent
FAKES = PACKAGE / "testing"


class TimeIsUpError(Exception):
    """What the program raises."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise TimeIsUpError


class _Handler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeIsUpError

    def handle(self, number: int, frame: FrameType | None) -> None:
        raise TimeIsUpError


HANDLERS = {
    "function": _raise,
    "method": _Handler().handle,
    "partial": partial(_raise),
    "object": _Handler(),
}


@pytest.fixture(params=HANDLERS.values(), ids=HANDLERS)
def handler(request: pytest.FixtureRequest) -> Iterator[Any]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


class InterruptedEngine(FakeEngine):
    """Computes on the caller's thread, where a signal arrives."""

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        signal.raise_signal(signal.SIGUSR1)
        return self._compute(batch)


@pytest.mark.usefixtures("handler")
def test_its_exception_is_passed_on_as_it_is() -> None:
    with fake_embedder(InterruptedEngine()) as embedder:
        for ask in (embedder.encode, embedder.encode_query):
            with pytest.raises(TimeIsUpError):
                ask("a")
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        assert embedder.encode("a").shape == (6,)


@pytest.mark.usefixtures("handler")
def test_a_tokenizer_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __init__(self, tokenizer: Any) -> None:
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tokenizer, name)

        def encode(self, *args: Any, **kwargs: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)

    with fake_embedder() as embedder:
        ids = embedder._tokenizer._encode
        monkeypatch.setattr(ids, "_tokenizer", Interrupted(ids._tokenizer))
        with pytest.raises(TimeIsUpError):
            embedder.encode("a")


def test_other_errors_are_no_handlers(handler: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="own") as raised:
        raise ValueError("own")
    assert not is_of_handler(raised.value)
    with pytest.raises(TimeIsUpError) as by_handler:
        handler(0, None)
    assert is_of_handler(by_handler.value)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_of_handler(by_handler.value)))
    thread.start()
    thread.join()
    assert found == [False], "Python runs handlers on the main thread"


def _entered(embedder: Embedder) -> list[str]:
    """Run every kind of call; return where Python code takes a Condition, or gives it back."""
    entered: list[str] = []
    codes = [getattr(threading.Condition, name).__code__ for name in ("__enter__", "__exit__")]

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            caller = frame.f_back
            assert caller is not None
            place = Path(caller.f_code.co_filename)
            is_ours = place.is_relative_to(PACKAGE) and not place.is_relative_to(FAKES)
            if is_ours or place == Path(futures.__file__):
                entered.append(f"{place}:{caller.f_lineno}")

    sys.setprofile(note)
    try:
        embedder.encode(["a", "b"] * 40)
        embedder.encode("a")
        embedder.encode_query(["a", "b"])
        embedder.submit("a").result()
        list(embedder.encode_stream(["a", "b"]))
    finally:
        sys.setprofile(None)
    return entered


def test_no_lock_is_taken_by_python_code_of_the_callers_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # There an exception of a handler would leave it taken, and every call would wait for ever.
    with fake_embedder() as embedder:
        assert _entered(embedder) == []
    monkeypatch.delattr(SafeCondition, "__enter__")
    monkeypatch.delattr(SafeCondition, "__exit__")
    with fake_embedder() as embedder:
        assert _entered(embedder) != []


def test_an_exception_in_a_wait_leaves_the_lock_to_its_with() -> None:
    condition = SafeCondition()

    def interrupted(state: object) -> None:
        raise TimeIsUpError

    condition._acquire_restore = interrupted  # type: ignore[attr-defined]
    with pytest.raises(TimeIsUpError), condition:
        condition.wait(0)
    assert not condition._is_owned()  # type: ignore[attr-defined]


def test_what_python_does_with_a_signal_by_itself_is_no_handler() -> None:
    assert isinstance(signal.getsignal(signal.SIGUSR1), signal.Handlers)  # an Enum, as Lane is
    with pytest.raises(ValueError, match="no lane") as caught:
        Lane("no lane")
    assert not is_of_handler(caught.value)


def test_a_wait_that_fails_before_it_begins_leaves_its_condition_free() -> None:
    condition = SafeCondition()
    with pytest.raises(TypeError), condition:
        condition.wait("soon")  # type: ignore[arg-type]
    assert not condition._is_owned()  # type: ignore[attr-defined]


def test_a_program_that_handles_sigterm_is_told_at_once() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        with sigterm_waits():
            signal.raise_signal(signal.SIGTERM)
            assert told == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_the_process_again_after_the_block() -> None:
    with sigterm_waits():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
