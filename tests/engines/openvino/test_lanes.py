"""Queries do not wait long for bulk batches: a graph in stages, and the priority of threads."""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from embedlib.engines.base import Lane
from embedlib.engines.openvino import bulk_threads, pages
from embedlib.engines.openvino import lanes as lanes_module
from embedlib.engines.openvino.bulk_threads import BulkThreads
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import stages
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.graphs.stages import Request
from embedlib.engines.openvino.lanes import Lanes
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running.inputs import infer_batch
from embedlib.errors import EngineRunError
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch
from tests.comparing import relative_errors
from tests.waiting import WAIT_SECONDS

HIDDEN_SIZE = 32
IDS = [[5, 6, 7, 8, 9, 10, 11, 12, 5], [8], [9, 10]]


@pytest.fixture(scope="module")
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


@pytest.fixture(autouse=True)
def _waits_longer_than_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "MOST_SECONDS", 9 * WAIT_SECONDS)


@pytest.mark.parametrize(("max_stages", "num_stages"), [(1, 1), (2, 2), (99, 2)])
def test_a_graph_is_cut_between_layers(max_stages: int, num_stages: int, files: ModelFiles) -> None:
    assert files.spec.encoder.num_layers == 2
    graphs = build_stages(files.spec, load_weights(files), GraphOptions(max_stages=max_stages))
    inputs = [{node.get_node().get_friendly_name() for node in graph.inputs} for graph in graphs]
    assert inputs[0] == {"token_ids", "seq_lens", "indices"}
    assert len(graphs) == num_stages
    assert all("hidden" in names for names in inputs[1:])


def test_a_bulk_batch_waits_between_two_stages_for_a_query(files: ModelFiles) -> None:
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1, shares_lanes=True))
    waits, done = threading.Event(), threading.Event()
    give_way = engine._lanes.give_way

    def note() -> None:
        waits.set()
        give_way()

    engine._lanes.give_way = note  # type: ignore[method-assign]
    expected = engine.compute(make_batch(IDS, Lane.QUERY))
    with engine._lanes.query():
        pending = engine.submit(make_batch(IDS), done.set)
        assert waits.wait(WAIT_SECONDS)
        # The same compiled model computes a query meanwhile.
        found = engine._models.compute(0, make_batch(IDS, Lane.QUERY))
        assert not done.is_set()
    assert done.wait(WAIT_SECONDS)
    assert relative_errors(pending.result(), expected).max() < 2e-5
    assert relative_errors(found, expected).max() < 2e-5
    engine.close()


@pytest.mark.parametrize("max_stages", [1, 2])
@pytest.mark.parametrize(("num_texts", "is_long"), [(31, False), (32, True)])
def test_stages_let_go_of_the_memory_of_a_long_batch_alone(
    num_texts: int,
    is_long: bool,
    max_stages: int,
    files: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "MIN_TRIMMED_ROWS", 32 * len(IDS[0]))
    released: list[ov.CompiledModel] = []

    def release(stage: ov.CompiledModel) -> None:
        released.append(stage)
        raise RuntimeError("another request computes in it")

    monkeypatch.setattr(ov.CompiledModel, "release_memory", release)
    returned: list[int] = []
    monkeypatch.setattr(pages, "return_freed", lambda: returned.append(len(released)))
    bounded: list[int] = []
    monkeypatch.setattr(pages.FreedMemory, "bound", lambda _: bounded.append(len(released)))
    graphs = build_stages(files.spec, load_weights(files), GraphOptions(max_stages=max_stages))
    core = ov.Core()
    request = Request([core.compile_model(graph, "CPU") for graph in graphs])
    infer_batch(request, make_batch([IDS[0]] * num_texts), {})
    lets_go = is_long and max_stages > 1
    assert len(released) == (2 if lets_go else 0)
    assert bounded == ([1, 2] if lets_go else [])
    assert returned == ([2] if lets_go else [])
    # A long batch leaves no memory of its size in what goes from stage to stage.
    sizes = {(1 if lets_go else num_texts * len(IDS[0])) * HIDDEN_SIZE} if max_stages > 1 else set()
    assert {tensor.size for tensor in request._between} == sizes


def test_a_batch_that_waits_between_two_stages_can_be_cancelled(files: ModelFiles) -> None:
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1, shares_lanes=True))
    waits, done = threading.Event(), threading.Event()
    engine._lanes.give_way = waits.wait  # type: ignore[method-assign, assignment]
    pending = engine.submit(make_batch(IDS), done.set)
    pending.cancel()
    waits.set()
    assert done.wait(WAIT_SECONDS)
    with pytest.raises(Exception, match="cancel"):
        pending.result()
    engine.close()


def test_a_batch_that_is_cancelled_before_its_first_stage_is_not_computed(
    files: ModelFiles,
) -> None:
    """It is handed to a thread, which is about to pack it."""
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1, shares_lanes=True))
    may_go_on, done = threading.Event(), threading.Event()
    compute = engine._models.compute

    def compute_later(*arguments: Any) -> Any:
        assert may_go_on.wait(WAIT_SECONDS)
        return compute(*arguments)

    engine._models.compute = compute_later  # type: ignore[method-assign]
    pending = engine.submit(make_batch(IDS), done.set)
    while pending._request is None:
        pass
    pending.cancel()
    may_go_on.set()
    assert done.wait(WAIT_SECONDS)
    with pytest.raises(EngineRunError, match="cancelled"):
        pending.result()
    done.clear()
    pending = engine.submit(make_batch(IDS), done.set)  # the next one is not
    assert done.wait(WAIT_SECONDS)
    assert len(pending.result()) == len(IDS)
    engine.close()


def test_bulk_waits_for_one_query_at_most_between_two_stages() -> None:
    lanes = Lanes()
    lanes.give_way()  # nobody asks
    first, second, gone = lanes.query(), lanes.query(), threading.Event()
    first.__enter__()

    def wait() -> None:
        lanes.give_way()
        gone.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not gone.is_set()
    second.__enter__()  # the next query is here before the first is answered
    first.__exit__(None, None, None)
    assert gone.wait(WAIT_SECONDS)
    waiting.join()
    second.__exit__(None, None, None)


def test_bulk_goes_on_beside_a_query_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose thread runs a signal handler that embeds texts."""
    monkeypatch.setattr(lanes_module, "MOST_SECONDS", 0)
    lanes, gone = Lanes(), threading.Event()

    def wait() -> None:
        lanes.give_way()
        lanes.give_way()
        gone.set()

    with lanes.query():
        threading.Thread(target=wait, daemon=True).start()
        assert gone.wait(WAIT_SECONDS)
        assert not lanes._queries, "nor does the next batch wait for it"


def test_bulk_waits_for_queries_that_came_while_it_waited_in_vain() -> None:
    lanes = Lanes()
    began: list[AbstractContextManager[None]] = []

    def in_vain(*_: object) -> bool:
        began.append(lanes.query())
        began[0].__enter__()
        return False

    lanes._changed.wait_for = in_vain  # type: ignore[method-assign,assignment]
    with lanes.query():
        lanes.give_way()
        assert len(lanes._queries) == 1
    began[0].__exit__(None, None, None)


def test_bulk_waits_for_queries_behind_one_that_was_interrupted_before_it_counted() -> None:
    lanes = Lanes()
    changed, lanes._changed = lanes._changed, MagicMock()
    lanes._changed.__enter__.side_effect = [KeyboardInterrupt, None]
    with pytest.raises(KeyboardInterrupt), lanes.query():
        pass
    lanes._changed = changed
    may_go_on: list[bool] = []
    lanes._changed.wait_for = lambda found, _=None: [may_go_on.append(found())]  # type: ignore
    with lanes.query():
        lanes.give_way()
    lanes.give_way()
    assert may_go_on == [False, True]


def test_freed_memory_is_returned_once_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    resident, returned = [0], list[int]()
    monkeypatch.setattr(pages, "_resident_bytes", lambda: resident[0])
    monkeypatch.setattr(pages, "return_freed", lambda: returned.append(resident[0]))
    freed, much = pages.FreedMemory(), pages.MAX_FREED_BYTES
    for resident[0] in (much, much + 1, 2 * much, 2 * much + 2):
        freed.bound()
    assert returned == [much + 1, 2 * much + 2]


@pytest.mark.parametrize(
    ("group", "num_layers", "num_stages"), [(None, 28, 28), (32, 28, 8), (32, 7, 7)]
)
def test_float32_has_more_stages(
    group: int | None, num_layers: int, num_stages: int, files: ModelFiles
) -> None:
    layout = Layout(threads=1, shares_lanes=True, is_large=True, activation_group=group)
    encoder = replace(files.spec.encoder, num_layers=num_layers)
    assert layout.graph_options(ov.Core(), encoder).max_stages == num_stages
    whole = layout.graph_options(ov.Core(), encoder, is_whole=True)
    assert whole.max_stages == 1


@pytest.mark.parametrize(("max_stages", "num_waits"), [(1, 0), (2, 2)])
def test_a_bulk_batch_waits_before_its_first_stage_for_a_query_if_there_are_several(
    max_stages: int, num_waits: int, files: ModelFiles
) -> None:
    graphs = build_stages(files.spec, load_weights(files), GraphOptions(max_stages=max_stages))
    core, waits = ov.Core(), list[str]()
    request = Request([core.compile_model(graph, "CPU") for graph in graphs])
    infer_batch(request, make_batch(IDS), {}, before=lambda: waits.append("stage"))
    assert waits == ["stage"] * num_waits


def test_lanes_tell_when_a_query_meets_bulk() -> None:
    met: list[str] = []
    lanes = Lanes(lambda: met.append("met"))
    with lanes.query():
        pass
    with lanes.bulk():
        assert met == []
        with lanes.query():
            assert met == ["met"]
    with lanes.query():
        assert met == ["met"]


needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has a priority for each thread"
)


def policies(*numbers: int) -> set[int]:
    return {os.sched_getscheduler(number) for number in numbers}


@needs_linux
def test_the_threads_that_a_marked_thread_starts_get_a_lower_priority() -> None:
    bulk, started, end = BulkThreads(), threading.Barrier(3), threading.Event()
    numbers: dict[str, int] = {}

    def run(name: str) -> None:
        numbers[name] = threading.get_native_id()
        started.wait(WAIT_SECONDS)
        end.wait()

    other = threading.Thread(target=run, args=("other",))
    ended = threading.Event()

    def run_bulk() -> None:
        run("bulk")
        ended.set()

    def mark_and_start() -> None:
        bulk.mark()
        # As the library starts one: from Python 3.14 on, threading names the system's thread too.
        _thread.start_new_thread(run_bulk, ())

    marking = threading.Thread(target=mark_and_start)
    other.start()
    marking.start()
    marking.join()
    started.wait(WAIT_SECONDS)
    before = policies(0)
    assert policies(*numbers.values()) == before
    assert numbers["bulk"] in bulk.numbers()
    assert numbers["other"] not in bulk.numbers()
    for _ in range(2):
        bulk.lower()
        assert policies(numbers["bulk"]) == {os.SCHED_IDLE}
        assert policies(numbers["other"], 0) == before
    end.set()
    other.join()
    ended.wait(WAIT_SECONDS)


@needs_linux
def test_what_the_system_does_not_tell_of_threads_or_forbids_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk, asked = BulkThreads(), list[int]()
    for number, name in ((11, bulk._name), (12, bulk._name), (13, "another"), (14, None)):
        (tmp_path / str(number)).mkdir()
        if name is not None:  # or it ends
            (tmp_path / str(number) / "comm").write_text(f"{name}\n")

    def refuse(number: int, *_: object) -> None:
        asked.append(number)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(bulk_threads, "_TASKS", tmp_path)
    for _ in range(2):
        bulk.lower()
    assert sorted(asked) == [11, 12], "once each"
    monkeypatch.setattr(bulk_threads, "_TASKS", tmp_path / "no proc")
    bulk.mark()
    assert bulk.numbers() == []


@needs_linux
@pytest.mark.parametrize("is_large", [False, True])
def test_the_library_computes_bulk_on_threads_that_are_found(
    is_large: bool, files: ModelFiles
) -> None:
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=2, is_large=is_large))
    bulk: BulkThreads = engine._lanes._when_met.__self__  # type: ignore[attr-defined]
    numbers = bulk.numbers()
    assert len(numbers) >= engine.limits.num_parallel_batches
    before = policies(0)
    assert policies(*numbers) == before
    with engine._lanes.bulk():
        engine.compute(make_batch(IDS, Lane.QUERY))
    assert policies(*bulk.numbers()) == {os.SCHED_IDLE}
    assert policies(0) == before
    engine.close()
