"""Outcome: settled once, by any thread, without a lock."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import suppress

import pytest

from embedlib.batching.outcome import Outcome
from tests.waiting import WAIT_SECONDS, error_of

SETTLE: dict[str, Callable[[Outcome[int]], object]] = {
    "result": lambda outcome: outcome.set_result(1),
    "error": lambda outcome: outcome.set_exception(KeyError("a")),
    "cancelled": lambda outcome: outcome.cancel(),
}


def state(outcome: Outcome[int]) -> tuple[object, ...]:
    assert outcome.done()
    return outcome.done(), outcome.cancelled(), type(error_of(outcome))


@pytest.mark.parametrize("first", SETTLE)
@pytest.mark.parametrize("second", SETTLE)
def test_the_first_one_counts(first: str, second: str) -> None:
    outcome: Outcome[int] = Outcome()
    told: list[object] = []
    outcome.add_done_callback(told.append)
    assert not outcome.done()
    assert not outcome.cancelled()
    SETTLE[first](outcome)
    before = state(outcome)
    SETTLE[second](outcome)
    assert state(outcome) == before
    assert before[:2] == (True, first == "cancelled")
    assert told == [outcome]
    if first == "result":
        assert outcome.result(0) == 1
    else:
        with pytest.raises(KeyError if first == "error" else CancelledError):
            outcome.result(0)


@pytest.mark.parametrize("how", SETTLE)
@pytest.mark.parametrize("is_early", [True, False])
def test_a_cancellation_has_a_callback_of_its_own(how: str, is_early: bool) -> None:
    outcome: Outcome[int] = Outcome()
    told: list[str] = []
    steps = [lambda: outcome.if_cancelled(lambda: told.append("cancelled"))]
    steps.insert(1 if is_early else 0, lambda: SETTLE[how](outcome))
    for step in steps:
        step()
    outcome.cancel()
    assert told == (["cancelled"] if how == "cancelled" else [])


def test_cancelling_tells_whether_it_is_cancelled() -> None:
    outcome: Outcome[int] = Outcome()
    outcome.cancel()
    outcome.cancel()
    assert outcome.cancelled()
    settled: Outcome[int] = Outcome()
    settled.set_result(1)
    settled.cancel()
    assert not settled.cancelled()


def test_callbacks_are_called_in_their_order_even_if_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome: Outcome[int] = Outcome()
    told: list[int] = []

    def fail(_: Outcome[int]) -> None:
        raise ValueError("a bug")

    outcome.add_done_callback(lambda _: told.append(1))
    outcome.add_done_callback(fail)
    outcome.add_done_callback(lambda _: told.append(2))
    outcome.set_result(1)
    outcome.add_done_callback(lambda _: told.append(3))
    assert told == [1, 2, 3]
    assert "a bug" in caplog.text


def test_a_thread_waits_for_it() -> None:
    outcome: Outcome[int] = Outcome()
    with pytest.raises(NotInTimeError):
        outcome.result(0)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(outcome.result(WAIT_SECONDS)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    outcome.set_result(7)
    for thread in threads:
        thread.join()
    assert found == [7, 7]


def test_one_of_many_threads_settles_it_and_each_callback_is_called_once() -> None:
    for _ in range(20):
        outcome: Outcome[int] = Outcome()
        told: list[int] = []
        start = threading.Barrier(4)

        def settle(number: int, outcome: Outcome[int] = outcome) -> None:
            start.wait()  # noqa: B023 - joined before the next turn
            outcome.set_result(number)

        def add(outcome: Outcome[int] = outcome, told: list[int] = told) -> None:
            start.wait()  # noqa: B023 - joined before the next turn
            for index in range(20):
                outcome.add_done_callback(lambda _, index=index: told.append(index))  # type: ignore[misc]

        threads = [threading.Thread(target=settle, args=(number,)) for number in range(3)]
        threads.append(threading.Thread(target=add))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == list(range(20))


def test_the_event_loop_waits_for_it() -> None:
    async def wait() -> None:
        outcome: Outcome[int] = Outcome()
        waiting = [asyncio.ensure_future(outcome.in_loop()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        thread = threading.Thread(target=outcome.set_result, args=(7,))
        thread.start()
        assert await waiting[1] == 7
        thread.join()
        assert await outcome.in_loop() == 7

    asyncio.run(wait())


def test_it_may_be_settled_after_the_event_loop_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome: Outcome[int] = Outcome()

    async def leave() -> None:
        waiting = asyncio.ensure_future(outcome.in_loop())
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    outcome.set_result(1)
    assert not caplog.text


def test_an_error_that_was_raised_leaves_no_cycle() -> None:
    class Text(str):
        """A text that can be referred to weakly."""

    found: list[weakref.ref[Text]] = []

    def failed() -> Outcome[int]:
        text = Text("a")
        found.append(weakref.ref(text))
        outcome: Outcome[int] = Outcome()
        outcome.set_exception(KeyError(text))
        return outcome

    gc.disable()
    try:
        with suppress(KeyError):
            failed().result(0)
        assert found[0]() is None
    finally:
        gc.enable()
