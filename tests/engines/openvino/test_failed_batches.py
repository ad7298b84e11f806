"""A batch that failed leaves nothing to the next ones."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.engines.base import Batch, Lane
from embedlib.engines.openvino import layerwise, pages
from embedlib.engines.openvino.engine import OpenVINOEngine, _BatchInFlight
from embedlib.engines.openvino.graphs.stages import HIDDEN, Request
from embedlib.engines.openvino.layerwise import LayerwiseEngine
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running import compiled as compiled_models
from embedlib.engines.openvino.running.inputs import infer_batch
from embedlib.errors import EngineError, EngineOutOfMemoryError, EngineRunError
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch
from tests.comparing import relative_errors

WAIT_SECONDS = 60
SHORT = [[5, 6, 7, 8, 9, 10, 11, 12]]
LONG = [[5] * 30] * 4

CHILD = """
import resource, sys, threading
from pathlib import Path
import numpy as np
from embedlib.engines.base import Lane
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import EngineError
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch

files = read_model_files(Path(sys.argv[1]))
lane = Lane(sys.argv[2])
engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=2))

def run(ids, times=1):
    events = [threading.Event() for _ in range(times)]
    pending = [engine.submit(make_batch(ids, lane), event.set) for event in events]
    assert all(event.wait(60) for event in events)
    return [one.result() for one in pending]

short, text = [[5, 6, 7, 8, 9, 10, 11, 12]], [9] * files.spec.max_seq_tokens
right = run(short)[0]
run([text] * 8, 4)  # packs matrices
none = resource.getrlimit(resource.RLIMIT_AS)
num_failed = 0
for step in range(1, 13):
    run(short, 4)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + step * (1 << 19), none[1]))
    try:
        run([text] * 64, 2)
    except (EngineError, MemoryError):
        num_failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, none)
    for found in run(short, 4):
        assert found.shape == right.shape and np.abs(found - right).max() < 1e-4, "other vectors"
engine.close()
print(num_failed, "failed")
"""


@pytest.fixture(scope="module")
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


@pytest.fixture
def engine(files: ModelFiles) -> Iterator[OpenVINOEngine]:
    made = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=2))
    yield made
    made.close()


def run(engine: OpenVINOEngine | LayerwiseEngine, ids: list[list[int]], lane: Lane) -> Any:
    is_done = threading.Event()
    pending = engine.submit(make_batch(ids, lane), is_done.set)
    assert is_done.wait(WAIT_SECONDS)
    return pending.result()


class Failing:
    """In the place of `infer_batch`: the batches with these numbers find no memory."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers
        self.num_batches = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """Called behind each batch."""

    def __call__(self, request: Any, batch: Batch, *others: Any) -> Any:
        self.num_batches += 1
        if self.num_batches in self._numbers:
            raise RuntimeError("at x.cpp:1\nFailed to allocate 5 bytes")
        found = infer_batch(request, batch, *others)
        self.meanwhile()
        return found


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds memory on Linux alone")
@pytest.mark.parametrize("lane", Lane)
def test_vectors_behind_a_lack_of_memory(lane: Lane, tiny_folder: Callable[[str], Path]) -> None:
    command = [sys.executable, "-c", CHILD, str(tiny_folder("bert")), lane.value]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith("0 ")


def test_bulk_leaves_a_model_with_several_streams_for_good(
    engine: OpenVINOEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = run(engine, SHORT, Lane.BULK)
    models = engine._models
    query = models.request(0)
    monkeypatch.setattr(compiled_models, "infer_batch", Failing(1))
    with caplog.at_level(logging.WARNING), pytest.raises(EngineOutOfMemoryError):
        run(engine, LONG, Lane.BULK)
    assert "the compiled model of queries computes all batches" in caplog.text
    assert models.request(0) is query
    stages = {id(stage) for one in models._requests for stage, _, _ in one._stages}
    assert stages == {id(stage) for stage in models._compiled[-1]}
    assert relative_errors(run(engine, SHORT, Lane.BULK), right).max() < 2e-5


@pytest.mark.parametrize("lane", Lane)
def test_the_next_batch_comes_behind_tiny_ones_of_which_one_may_fail(
    lane: Lane, engine: OpenVINOEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run(engine, SHORT, lane)
    sizes: list[tuple[int, ...]] = []

    def tiny(request: Any, batch: Batch, *others: Any) -> Any:
        sizes.append((batch.num_seqs, int(batch.seq_lens.max())))
        if len(sizes) == 1:
            raise RuntimeError("at x.cpp:1\ndim index: 1 mismatch")
        return infer_batch(request, batch, *others)

    monkeypatch.setattr("embedlib.engines.openvino.running.tiny_batches.infer_batch", tiny)
    monkeypatch.setattr(compiled_models, "infer_batch", Failing(1))
    with pytest.raises(EngineOutOfMemoryError):
        run(engine, LONG, lane)
    assert not sizes, "memory may still be short"
    for _ in range(2):
        assert relative_errors(run(engine, SHORT, lane), right).max() < 2e-5
        assert sizes == [(1, 2), (2, 3)]


def test_a_batch_beside_one_that_fails_is_computed_again(
    engine: OpenVINOEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run(engine, SHORT, Lane.QUERY)
    failing = Failing()
    failures = [lambda: engine._models._note_failure(0, RuntimeError("of another thread"))]
    failing.meanwhile = lambda: failures and failures.pop()()
    monkeypatch.setattr(compiled_models, "infer_batch", failing)
    assert relative_errors(run(engine, SHORT, Lane.QUERY), right).max() < 2e-5
    assert failing.num_batches == 2


@pytest.mark.parametrize(
    ("num_failing", "is_behind", "num_tries"), [(1, True, 2), (2, True, 2), (1, False, 1)]
)
def test_a_batch_that_fails_behind_another_one_is_tried_once_more(
    num_failing: int,
    is_behind: bool,
    num_tries: int,
    engine: OpenVINOEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = make_batch(SHORT, Lane.QUERY)
    right, tries = engine.compute(batch), list[int]()

    def infer(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) > num_failing:
            return infer_batch(*arguments)
        if is_behind:
            engine._models._note_failure(0, RuntimeError("of another thread"))
        raise RuntimeError("at x.cpp:1\ndim index: 1 mismatch")

    monkeypatch.setattr(compiled_models, "infer_batch", infer)
    if num_tries > num_failing:
        assert relative_errors(engine.compute(batch), right).max() < 2e-5
    else:
        with pytest.raises(EngineRunError, match="mismatch"):
            engine.compute(batch)
    assert len(tries) == num_tries


@pytest.mark.parametrize("why", ["it was cancelled", "a signal handler raised it"])
def test_a_batch_that_was_stopped_behind_another_one_is_not_tried_again(
    why: str, engine: OpenVINOEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def infer(request: Request, *_: Any) -> Any:
        tries.append(1)
        engine._models._note_failure(0, RuntimeError("of another thread"))
        if why == "it was cancelled":
            request.cancel()
        raise RuntimeError(why)

    monkeypatch.setattr(compiled_models, "infer_batch", infer)
    is_of_handler = why == "a signal handler raised it"
    monkeypatch.setattr(compiled_models, "is_of_handler", lambda _: is_of_handler)
    with pytest.raises(RuntimeError if is_of_handler else EngineRunError, match=why):
        engine.compute(make_batch(SHORT, Lane.QUERY))
    assert tries == [1]


def test_a_batch_that_failed_is_counted_before_its_memory_is_returned(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the stage that failed may compute a query."""
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1, shares_lanes=True))
    short, many = make_batch(SHORT, Lane.QUERY), LONG * 3
    right = engine.compute(short)
    infer, tiny, meanwhile = ov.InferRequest.infer, list[Any](), list[Any]()

    def infer_few(request: ov.InferRequest, **options: Any) -> Any:
        if request.get_input_tensor(0).size == len(many) * len(many[0]):
            raise RuntimeError("Failed to allocate 5 bytes")
        return infer(request, **options)

    monkeypatch.setattr(ov.InferRequest, "infer", infer_few)
    monkeypatch.setattr(compiled_models, "compute_tiny_batches", lambda *_: tiny.append(1))
    monkeypatch.setattr(pages, "return_freed", lambda: meanwhile.append(engine.compute(short)))
    with pytest.raises(EngineOutOfMemoryError):
        run(engine, many, Lane.BULK)
    engine.close()
    assert len(meanwhile) == len(tiny) == 1
    assert relative_errors(meanwhile[0], right).max() < 2e-5


def test_a_prefix_without_memory_is_told_as_a_batch_without_it(
    engine: OpenVINOEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._models._prefixes, "use", Mock(side_effect=MemoryError))
    with pytest.raises(EngineOutOfMemoryError):
        engine.compute(make_batch(SHORT, Lane.QUERY))


def test_an_error_that_is_kept_keeps_no_compiled_model(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1))
    models = engine._models
    requests = [weakref.ref(one) for one in (*models._requests, *models._behind_failure)]
    cancelled = _BatchInFlight(make_batch(SHORT), lambda: None)
    cancelled.cancel()
    engine._jobs[Lane.BULK].put(cancelled)
    monkeypatch.setattr(compiled_models, "infer_batch", Failing(1, 2))
    errors: list[EngineError] = []
    for ask in (
        lambda: run(engine, SHORT, Lane.BULK),
        lambda: engine.compute(make_batch(SHORT, Lane.QUERY)),
        cancelled.result,
    ):
        with pytest.raises(EngineError) as raised:
            ask()
        errors.append(raised.value)
    engine.close()
    assert not any(request() for request in requests)


@pytest.mark.parametrize(("number", "is_whole"), [(1, True), (3, False)])
def test_the_next_batch_of_a_layer(
    number: int, is_whole: bool, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two batches fails in the first layer, or in the second."""
    tiny, compile_model = list[Any](), layerwise.ov.Core.compile_model
    may_begin, events = threading.Event(), [threading.Event() for _ in range(2)]

    def note(request: Any, batch: Batch, given: Any) -> Any:
        tiny.append(None if is_whole else given[HIDDEN].shape[:2])
        return infer_batch(request, batch, given)

    def compile_later(*arguments: Any) -> Any:
        assert may_begin.wait(WAIT_SECONDS)
        return compile_model(*arguments)

    layout = Layout(threads=1, shares_lanes=True, is_large=True)
    engine = LayerwiseEngine(files.spec, load_weights(files), layout)
    right = run(engine, SHORT, Lane.BULK)
    monkeypatch.setattr("embedlib.engines.openvino.running.tiny_batches.infer_batch", note)
    monkeypatch.setattr(layerwise, "infer_batch", Failing(number))
    monkeypatch.setattr(layerwise.ov.Core, "compile_model", compile_later)
    long = engine.submit(make_batch(LONG), events[0].set)
    short = engine.submit(make_batch(SHORT), events[1].set)
    may_begin.set()
    assert all(event.wait(WAIT_SECONDS) for event in events)
    with pytest.raises(EngineOutOfMemoryError):
        long.result()
    assert relative_errors(short.result(), right).max() < 2e-5
    assert tiny == ([None, None] if is_whole else [(1, 2), (2, 3)])
    engine.close()


def test_a_batch_waits_for_no_other_where_none_has_failed() -> None:
    """It may be of a query that a signal handler makes, while the interrupted one has the lock."""
    models = Mock(_num_failed=3, _num_settled=3, _settling=Mock(__enter__=None))
    assert compiled_models.CompiledModels._settle(models) == 3
