"""What `close` does about an engine that never answers.

Where a program ends, the case runs in a process of its own: a hang is the failure looked for.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import subprocess
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder, Reranker
from embedlib.batching.callers import Callers
from embedlib.batching.policy import BatchingPolicy
from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.errors import ClosedError, CloseTimeoutError, ConfigError
from embedlib.session.ending import INTERRUPTED_SECONDS, Ending
from embedlib.session.model import ModelAroundEngine
from embedlib.testing import FakeEngine, byte_tokenizer, fake_embedder, fake_spec
from tests.waiting import WAIT_SECONDS

STILL_RUNS = (
    r"the model was not closed within 0 s: the thread ('embedlib-tokenizer', )?'embedlib-batches' s"
    r"till runs; the engine is not freed before it answers, and all open calls have failed"
)
"""What `close` without any time says of an engine that is held. The other thread, which may end,
has ended by then or has not."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""`run` of conftest.py."""


class QuickEmbedder(Embedder):
    """Does not wait where the caller cannot say how long."""

    _close_seconds = 0.0


def quick_embedder(engine: FakeEngine, **options: Any) -> Embedder:
    return QuickEmbedder.from_engine(engine, fake_spec(), byte_tokenizer(), Config(**options))


def test_the_engine_of_options_that_are_refused_is_closed() -> None:
    refused = ((Embedder, Config(default_prompt_name="x")), (Reranker, Config(truncate_dim=8)))
    for kind, config in refused:
        engine = FakeEngine()
        with pytest.raises(ConfigError):
            kind.from_engine(engine, fake_spec(), byte_tokenizer(), config)
        assert engine.is_closed


def wait_ended(engine: FakeEngine) -> None:
    """Let an engine answer and wait until the model's threads have ended."""
    engine.release()
    for thread in threading.enumerate():
        if thread.name.startswith("embedlib-"):
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


def test_a_load_that_is_interrupted_at_its_end_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(model: ModelAroundEngine) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelAroundEngine, "start_preparing", interrupt)
    engine, before = FakeEngine(), threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        fake_embedder(engine)
    assert threading.enumerate() == before
    assert engine.is_closed


def test_an_engine_that_never_answers_is_named_and_no_call_waits() -> None:
    engine = FakeEngine()
    engine.hold()
    embedder = fake_embedder(engine, max_queued_texts=64)
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: embedder.encode(["a" * 30] * 1000),
        "query": lambda: embedder.encode("q"),
        "stream": lambda: list(embedder.encode_stream(["b" * 30] * 1000)),
        "aencode": lambda: asyncio.run(embedder.aencode(["c" * 30] * 1000)),
    }
    in_flight = embedder.submit("d")
    engine.wait_submitted(1)
    with ThreadPoolExecutor(len(calls)) as pool:
        outcomes = [pool.submit(call) for call in calls.values()]
        engine.wait_submitted(3)
        with pytest.raises(CloseTimeoutError, match=f"^{STILL_RUNS}$"):
            embedder.close(timeout=0)
        for outcome in outcomes:
            assert isinstance(outcome.exception(WAIT_SECONDS), ClosedError)
        error = in_flight.exception(0)
    assert isinstance(error, ClosedError)
    assert isinstance(error.__cause__, CloseTimeoutError)
    assert not engine.is_closed
    with pytest.raises(CloseTimeoutError):
        embedder.close(timeout=0)
    engine.release()
    embedder.close()  # waits again
    assert engine.is_closed
    embedder.close()


def test_close_after_one_in_a_callback_waits_for_the_thread_of_that_callback() -> None:
    engine = FakeEngine()
    engine.hold()
    embedder = fake_embedder(engine)
    closed, may_go_on = threading.Event(), threading.Event()

    def close(_: object) -> None:
        embedder.close()
        closed.set()
        assert may_go_on.wait(WAIT_SECONDS)

    embedder.submit("a").add_done_callback(close)
    engine.release()
    assert closed.wait(WAIT_SECONDS)
    with pytest.raises(CloseTimeoutError, match="'embedlib-batches'"):
        embedder.close(timeout=0)
    may_go_on.set()
    embedder.close()
    assert engine.is_closed


class NeverClosed(FakeEngine):
    """An engine of another maker: its `close` takes no time limit, and hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.may_close = threading.Event()

    def close(self) -> None:
        assert self.may_close.wait(WAIT_SECONDS)
        super().close()


def test_an_engine_whose_close_hangs() -> None:
    engine = NeverClosed()
    embedder = fake_embedder(engine)
    embedder.encode(["a"])
    with pytest.raises(CloseTimeoutError, match="'embedlib-batches'"):
        embedder.close(timeout=0)
    engine.may_close.set()
    wait_ended(engine)
    assert engine.is_closed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CloseTimeoutError("it hangs")])
def test_the_end_waits_for_a_short_time_after_a_close_that_was_given_up(
    error: BaseException,
) -> None:
    waited: list[float | None] = []

    def close(timeout: float | None) -> None:
        waited.append(timeout)
        if len(waited) == 1:
            raise error

    ending = Ending(Callers())
    ending.add(close)
    with pytest.raises(type(error)):
        ending.close(30.0)
    assert ending._at_exit is not None
    ending._at_exit()  # the program ends
    assert len(waited) == 2
    assert waited[1] is not None
    assert 0 <= waited[1] <= INTERRUPTED_SECONDS


def test_a_batch_that_hangs_in_submit() -> None:
    begun, may_submit = threading.Event(), threading.Event()

    class Hangs(FakeEngine):
        def submit(self, batch: Any, on_done: Any) -> Any:
            begun.set()
            assert may_submit.wait(WAIT_SECONDS)
            return super().submit(batch, on_done)

    engine = Hangs()
    embedder = fake_embedder(engine)
    future = embedder.submit("a")
    assert begun.wait(WAIT_SECONDS)
    with pytest.raises(CloseTimeoutError):
        embedder.close(timeout=0)
    assert isinstance(future.exception(0), ClosedError)
    may_submit.set()
    wait_ended(engine)


def test_a_text_that_is_tokenized_for_ever() -> None:
    may_tokenize, begun = threading.Event(), threading.Event()
    engine = FakeEngine()
    embedder = fake_embedder(engine)
    tokenizer = embedder._tokenizer

    class Hangs:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            begun.set()
            assert may_tokenize.wait(WAIT_SECONDS)
            return tokenizer(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

    embedder._tokenizer = Hangs()  # type: ignore[assignment]
    future = embedder.submit_batch(["a"])
    assert begun.wait(WAIT_SECONDS)
    with pytest.raises(CloseTimeoutError, match="the thread 'embedlib-tokenizer'"):
        embedder.close(timeout=0)
    assert isinstance(future.exception(0), ClosedError)
    may_tokenize.set()
    wait_ended(engine)


def test_what_close_of_an_engine_raises_is_raised() -> None:
    class Broken(FakeEngine):
        def close(self) -> None:
            raise OSError("the device is gone")

    embedder = fake_embedder(Broken())
    with pytest.raises(OSError, match="the device is gone"):
        embedder.close()
    embedder.close()


def leave_block(engine: FakeEngine, error: Exception | None) -> None:
    engine.hold()
    with quick_embedder(engine) as embedder:
        embedder.submit("a")
        engine.wait_submitted(1)
        if error is not None:
            raise error


def test_a_with_block_keeps_its_own_exception(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    with pytest.raises(ZeroDivisionError):
        leave_block(engine, ZeroDivisionError())
    assert re.search(STILL_RUNS, caplog.text)
    wait_ended(engine)


def test_a_with_block_that_ends_well_raises() -> None:
    engine = FakeEngine()
    with pytest.raises(CloseTimeoutError):
        leave_block(engine, None)
    wait_ended(engine)


@pytest.mark.parametrize("timeout", [np.float32(9), np.int64(9), Fraction(9)])
def test_a_number_of_another_library_is_a_timeout(timeout: Any) -> None:
    embedder = quick_embedder(FakeEngine())
    embedder.close(timeout)
    with pytest.raises(ClosedError):
        embedder.encode("a")


def test_exit_may_be_called_without_arguments() -> None:
    embedder = fake_embedder()
    embedder.__exit__()
    with pytest.raises(ClosedError):
        embedder.encode("a")


def test_garbage_collection_logs(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    engine.hold()
    embedder = quick_embedder(engine)
    future = embedder.submit("a")
    engine.wait_submitted(1)
    with caplog.at_level(logging.ERROR):
        del embedder
    assert re.search(STILL_RUNS, caplog.text)
    assert isinstance(future.exception(0), ClosedError)
    wait_ended(engine)


def test_a_policy_is_handed_down() -> None:
    engine = FakeEngine()
    policy = BatchingPolicy(max_query_texts=1, micro_batch_texts=2)
    with Embedder.from_engine(engine, fake_spec(), byte_tokenizer(), policy=policy) as embedder:
        embedder.encode_query(["a", "b"])
        assert {batch.lane for batch in engine.batches} == {Lane.BULK}
        assert embedder._pipeline._manager._scheduler._policy is policy
        sizes: list[int] = []
        tokenizer = embedder._tokenizer
        embedder._tokenizer = _noting(tokenizer, sizes)
        embedder.encode(["a"] * 5)
        assert sizes == [2, 2, 1]


def _noting(tokenizer: Any, sizes: list[int]) -> Any:
    class Noting:
        max_seq_tokens = tokenizer.max_seq_tokens

        def __call__(self, job: Any, first_row: int, texts: Any, prompt: Any) -> Any:
            sizes.append(len(texts))
            return tokenizer(job, first_row, texts, prompt)

    return Noting()


HANGING = """
import sys, threading
from embedlib import Embedder
from embedlib.threads.closing import WorkerThread
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec

class NeverAnswers(FakeEngine):
    def close(self):
        threading.Event().wait()

class Quick(Embedder):
    _close_seconds = 0.0

engine = NeverAnswers()
engine.hold()
embedder = Quick.from_engine(engine, fake_spec(), byte_tokenizer())
futures = [embedder.submit("a"), embedder.submit_batch(["b" * 30] * 100)]
engine.wait_submitted(2)

from embedlib.session import ending

ending.INTERRUPTED_SECONDS = 0.05
"""
ENDINGS = {
    "at the end": ("", 0),
    "garbage collection": (
        """
        import gc
        embedder.me = embedder
        del embedder
        gc.collect()
        """,
        0,
    ),
    "with left by exception": (
        """
        with embedder:
            sys.exit(5)
        """,
        5,
    ),
    "close refused": (
        """
        try:
            embedder.close(timeout=0)
        except Exception as error:
            print(type(error).__name__, file=sys.stderr)
        """,
        0,
    ),
    "in a signal's handler": (
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: embedder.close(timeout=0))
        class Interrupting:
            def __call__(self, *arguments):
                if threading.current_thread() is threading.main_thread():
                    signal.raise_signal(signal.SIGTERM)
        embedder._pipeline._manager._accept = Interrupting()
        embedder.submit("c")
        """,
        0,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_although_its_engine_hangs(run: Run, ending: str) -> None:
    program, code = ENDINGS[ending]
    done = run(HANGING, program)
    expected = "CloseTimeoutError" if ending == "close refused" else STILL_RUNS
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(expected, done.stderr.strip())


def test_the_end_of_a_program_goes_on_with_a_close_that_timed_out(run: Run) -> None:
    program = """
    engine.close = lambda: print("freed", flush=True)
    try:
        embedder.close(timeout=0)
    except Exception as error:
        print(type(error).__name__, flush=True)
    embedder._ending.add(lambda timeout: engine.release())
    ending.INTERRUPTED_SECONDS = 30
    """
    done = run(HANGING, program)
    assert (done.stdout.split(), done.stderr) == (["CloseTimeoutError", "freed"], "")


DAEMONS = """
import asyncio, threading
from embedlib import Document, aindex
from embedlib.testing import FakeSink, FakeStore, fake_embedder

embedder = fake_embedder()
documents = [Document(id=str(number), text="a" * 20) for number in range(600)]
ready = []

def stream():
    for _ in embedder.encode_stream(["a" * 20] * 600):
        pass

async def astream():
    async for _ in embedder.aencode_stream(["a" * 20] * 600):
        pass

async def gathered():
    await asyncio.gather(embedder.aencode("q"), embedder.aencode(["b"] * 30))

async def load():
    await aindex(documents, FakeSink(FakeStore()), embedder=embedder, chunk=False)

def repeat(call):
    event = threading.Event()
    ready.append(event)

    def run():
        call()
        event.set()
        while True:
            call()

    threading.Thread(target=run, daemon=True).start()

repeat(lambda: embedder.encode(["a" * 20] * 5000))
repeat(lambda: embedder.encode("q"))
repeat(stream)
repeat(lambda: embedder.submit("q").result())
repeat(lambda: asyncio.run(gathered()))
repeat(lambda: asyncio.run(astream()))
repeat(lambda: asyncio.run(load()))
for event in ready:
    assert event.wait(300)
"""


def test_daemons_that_the_program_leaves_behind_print_nothing(run: Run) -> None:
    done = run(DAEMONS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_model_that_was_closed_earlier_still_tells_daemons(run: Run) -> None:
    done = run(
        """
import threading
from embedlib.testing import fake_embedder

embedder = fake_embedder()
embedder.close()
thread = threading.Thread(target=embedder.encode, args=("q",), daemon=True)
thread.start()
thread.join()
"""
    )
    assert "ClosedError: this model is closed; load it again" in done.stderr


def test_a_function_at_exit_is_told_that_the_end_closed_the_model(run: Run) -> None:
    before = """
    import atexit
    def ask():
        try:
            embedder.encode("a")
        except Exception as error:
            print(error)
    """
    program = """
    import weakref
    from embedlib.testing import fake_embedder
    embedder = fake_embedder()
    atexit._clear()
    atexit.register(ask)
    atexit.register(weakref.finalize._exitfunc)
    """
    assert "closed because the program ends" in run(before, program).stdout


def test_nothing_keeps_what_was_closed() -> None:
    ending = Ending(Callers())
    ending.add(lambda timeout: None)
    ending.close(1.0)
    left = weakref.ref(ending)
    del ending
    gc.collect()
    assert left() is None, "the end of the program has nothing to close, and memory is free before"
