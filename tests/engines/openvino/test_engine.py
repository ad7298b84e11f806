from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.base import Batch, Lane
from embedlib.engines.machine import Machine
from embedlib.engines.openvino import core
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.kept.model_cache import ModelCache
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running import compiled as compiled_models
from embedlib.engines.openvino.running.compiled import CompiledModels, run_error
from embedlib.engines.openvino.running.compiling import Loaded
from embedlib.engines.openvino.running.inputs import infer_batch, pad
from embedlib.engines.openvino.sizes.operator_sizes import PREPARED, PREPARED_FOR_QUERIES
from embedlib.engines.openvino.sizes.padding import Padding
from embedlib.errors import (
    CloseTimeoutError,
    EngineBuildError,
    EngineOutOfMemoryError,
    EngineRunError,
    EngineUnavailableError,
)
from embedlib.measuring.openvino_products import openvino_multiply
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import TINY_VARIANTS, check_engine, fake_spec, make_batch
from embedlib.vectors.similarity import normalize
from tests.comparing import relative_errors
from tests.tiny_encoders import computed as run
from tests.tiny_models.groups import ALIKE
from tests.waiting import WAIT_SECONDS

LOAD_PLUGIN = core._load_plugin


@pytest.fixture(scope="module")
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


def make(files: ModelFiles, *, cache_dir: Path | None = None, **options: Any) -> OpenVINOEngine:
    cache = None if cache_dir is None else ModelCache(cache_dir, "these weights")
    layout = Layout(**{"threads": 2, **options})
    return OpenVINOEngine(files.spec, load_weights(files), layout, cache)


def broken(*_: object) -> None:
    raise RuntimeError("Exception from src/core.cpp:79:\nCheck 'x' failed\nno such thing\n\n")


@pytest.mark.parametrize("variant", TINY_VARIANTS)
def test_vectors_are_those_of_sentence_transformers(
    variant: str,
    tiny_folder: Callable[[str], Path],
    golden: Callable[[str], Any],
    new_cache: Path,
    calls: list[str],
) -> None:
    """The graph is imported from the cache: OpenVINO's has lost parts of one before."""
    stored = golden(variant)
    config = Config(threads=1, on_truncate="ignore", engine_cache_dir=new_cache)
    with Embedder(tiny_folder(variant), config=config) as embedder:
        # What is imported otherwise than it was compiled is compiled again.
        assert calls[-1] == "import"
        spec = embedder.spec
        for case in stored.cases:
            has_prompt = case.prompt_name or spec.default_prompt_name
            named = {"prompt_name": case.prompt_name} if has_prompt else {"prompt": ""}
            vectors = embedder.encode(stored.texts, **named)
            expected = case.vectors
            if spec.truncate_dim and spec.is_normalized:
                # sentence-transformers does not normalize again after truncating a normalized
                # vector; embedlib does.
                assert (np.linalg.norm(expected, axis=1) < 0.999).any()
                expected = normalize(expected)
            # 1e-4 is promised. The two forms of gelu differ by 2e-4, so 2e-5 detects a mix-up.
            assert relative_errors(vectors, expected).max() <= 2e-5
        if variant in ALIKE:
            return
        # In the same test, because compiling takes longer than all of this.
        engine = cast(OpenVINOEngine, embedder._model.engine)
        engine._models._note_failure(0, RuntimeError("of a batch"))
        for case in stored.cases:
            batch = make_batch(case.ids, num_prompt_tokens=case.num_prompt_tokens)
            vectors = run(engine, batch)[:, : spec.truncate_dim]
            assert relative_errors(vectors, case.vectors).max() <= 2e-5
        check_engine(engine, spec)


def test_a_lone_query_is_padded_to_whole_rows_in_lower_precisions(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[tuple[int, ...]] = []

    def note(request: Any, batch: Batch, prefix: Any, min_rows: int, between: Any) -> Any:
        found = infer_batch(request, batch, prefix, min_rows, between)
        computed.append(pad(batch, min_rows).shape)
        return found

    monkeypatch.setattr(compiled_models, "infer_batch", note)
    files = read_model_files(tiny_folder("bert"))
    exact, padding = make(files), make(files, activation_group=32)  # float32: it has no int8 matrix
    for length, expected in ((9, 12), (4, 4), (3, 4), (5, 8)):
        batch = make_batch([list(range(5, 5 + length))], Lane.QUERY)
        vectors = exact.compute(batch)
        assert computed.pop() == (1, length)
        assert relative_errors(padding.compute(batch), vectors).max() < 1e-5
        assert computed.pop() == (1, expected)
    run(padding, make_batch([[5, 6]], Lane.BULK))
    run(padding, make_batch([[5, 6], [7]], Lane.QUERY))
    assert computed == [(1, 2), (2, 2)], "only lone queries are padded"
    exact.close()
    padding.close()


def test_padding_is_on_the_right() -> None:
    assert pad(make_batch([[1], [2, 3, 4], [5, 6]])).tolist() == [[1, 0, 0], [2, 3, 4], [5, 6, 0]]
    assert pad(make_batch([[1, 2]]), 8).tolist() == [[1, 2, 0, 0, 0, 0, 0, 0]]
    assert pad(make_batch([[1], [2, 3]]), 8).shape == (2, 4)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the list of models that OpenVINO compiles or imports."""
    models: list[Any] = []
    compile_model, import_model = ov.Core.compile_model, ov.Core.import_model

    def spy(*args: Any) -> Any:
        models.append(compile_model(*args))
        return models[-1]

    def spy_import(*args: Any) -> Any:
        models.append(import_model(*args))
        return models[-1]

    monkeypatch.setattr(ov.Core, "compile_model", spy)
    monkeypatch.setattr(ov.Core, "import_model", spy_import)
    yield models
    models.clear()


@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_openvino_was_asked_for(
    files: ModelFiles, compiled: list[Any], threads: int, has_cache: bool, tmp_path: Path
) -> None:
    make(files, threads=threads, cache_dir=tmp_path if has_cache else None)
    assert len(compiled) == 2 + has_cache
    for model, streams in zip(compiled[-2:], (1, threads), strict=True):  # queries first
        # float32 even if the CPU has matrix units for bfloat16.
        assert model.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32
        assert model.get_property("INFERENCE_NUM_THREADS") == threads
        assert model.get_property("NUM_STREAMS") == streams
        assert model.get_property("ENABLE_CPU_PINNING") is False


def test_limits(files: ModelFiles) -> None:
    limits = make(files, threads=3).limits
    assert limits.is_padded
    assert limits.embedding_dim == 32
    assert limits.num_parallel_batches == 3
    assert limits.max_inflight_bulk == 4
    assert limits.max_inflight_batches > limits.max_inflight_bulk
    limits = make(files, max_batch_tokens=5, max_inflight_bulk=1).limits
    assert (limits.max_batch_tokens, limits.max_inflight_bulk) == (5, 1)


def test_either_lane_borrows_from_the_other(files: ModelFiles) -> None:
    engine = make(files, threads=1, max_inflight_bulk=2)
    num_batches = engine.limits.max_inflight_batches
    expected = run(engine, make_batch([[5, 6]]))

    def submit(lane: Lane) -> tuple[Any, threading.Event]:
        done = threading.Event()
        return engine.submit(make_batch([[5, 6]], lane), done.set), done

    def finish(started: tuple[Any, threading.Event]) -> None:
        pending, done = started
        assert done.wait(WAIT_SECONDS)
        np.testing.assert_allclose(pending.result(), expected, atol=1e-6)

    # Queries may use every slot, so bulk batches later get slots that queries used.
    queries = [submit(Lane.QUERY) for _ in range(num_batches)]
    for query in queries[:2]:
        finish(query)
    bulk = [submit(Lane.BULK) for _ in range(2)]
    for started in (*queries[2:], *bulk):
        finish(started)
    for lane in Lane:
        for started in [submit(lane) for _ in range(num_batches)]:
            finish(started)
    engine.close()


def test_what_cannot_be_compiled_is_told_in_one_line(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ov.Core, "compile_model", broken)
    with pytest.raises(
        EngineBuildError, match=r"^engine openvino: compiling failed: no such thing$"
    ):
        make(files)


HARDENED = """
import ctypes, sys
sys.exit(3) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else None  # PR_SET_MDWE, from Linux 6.3 on
from embedlib import Embedder
from embedlib.errors import EngineBuildError
try:
    Embedder(sys.argv[1], precision="float32", engine_cache_dir=sys.argv[2])
except EngineBuildError as error:
    print(error)
"""


def test_a_process_that_may_write_no_machine_code(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", HARDENED, str(tiny_folder("bert")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    if done.returncode == 3:
        pytest.skip("this kernel does not refuse to run what was written")
    assert (done.returncode, done.stderr) == (0, "")
    assert "may not run: allow it (MemoryDenyWriteExecute of systemd" in done.stdout


def test_a_root_folder_without_proc_and_sys(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "CPU_FILES", ("/no/proc", "/no/sys"))
    with pytest.raises(EngineUnavailableError, match=r"neither /no/proc nor /no/sys; mount /proc"):
        make(files)
    with pytest.raises(EngineUnavailableError, match="mount /proc"):
        openvino_multiply("float32", [(4, 8)])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("at x.cpp:1\nstd::bad_alloc"), EngineOutOfMemoryError),
        (RuntimeError("at x.cpp:1\ncould not allocate memory"), EngineOutOfMemoryError),
        (RuntimeError("[CPU] Less node with name 'Less_7' can't alloc"), EngineOutOfMemoryError),
        (RuntimeError("at x.cpp:1\nOut of memory"), EngineOutOfMemoryError),
        (MemoryError(), EngineOutOfMemoryError),
        (RuntimeError("at x.cpp:1\nshapes do not match"), EngineRunError),
        (RuntimeError(""), EngineRunError),
    ],
)
def test_errors_of_openvino(error: RuntimeError | MemoryError, kind: type[Exception]) -> None:
    assert type(run_error(error)) is kind


def test_an_id_beyond_the_vocabulary_is_an_error_or_finite(files: ModelFiles) -> None:
    # The tokenizer cannot produce such an id; even so, the process must not crash.
    engine = make(files)
    expected = run(engine, make_batch([[5]]))
    with suppress(EngineRunError):
        assert run(engine, make_batch([[10**6]])).shape == (1, 32)
    np.testing.assert_array_equal(run(engine, make_batch([[5]])), expected)
    engine.close()


def test_batches_that_fail_are_told_and_the_next_ones_run(
    files: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1, max_inflight_bulk=1))
    for lane in Lane:
        batch = make_batch([[5]], lane)
        expected = run(engine, batch)
        for _ in range(2 * engine.limits.max_inflight_batches):
            with pytest.raises(EngineRunError, match="engine openvino: "):
                run(engine, replace(batch, token_ids=batch.token_ids.astype(np.float64)))
        assert (run(engine, batch) == expected).all()
    assert not caplog.records, "memory is not short"
    engine.close()


def test_a_batch_without_memory_is_halved(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    infer, sizes = ov.InferRequest.infer, []

    def infer_few(request: ov.InferRequest, **options: Any) -> Any:
        sizes.append(request.get_input_tensor(0).size)
        if sizes[-1] > 40:
            raise RuntimeError("Exception from src/memory.cpp:2:\nFailed to allocate 5 bytes\n")
        return infer(request, **options)

    with Embedder(tiny_folder("bert"), threads=1) as embedder:
        # Different, since equal ones are computed once.
        texts = [f"a river runs through a large city {index}" for index in range(20)]
        expected = embedder.encode(texts)
        monkeypatch.setattr(ov.InferRequest, "infer", infer_few)
        np.testing.assert_allclose(embedder.encode(texts), expected, atol=1e-6)
    assert max(sizes) > 40
    assert sum(size for size in sizes if size <= 40) >= 20 * 5


def test_a_batch_is_cancelled_before_it_begins_or_while_it_computes(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, is_cancelled = threading.Event(), threading.Event()
    infer, cancel = ov.InferRequest.infer, ov.InferRequest.cancel
    cancelled: list[ov.InferRequest] = []

    def infer_when_cancelled(request: ov.InferRequest, **options: Any) -> Any:
        begun.set()
        assert is_cancelled.wait(WAIT_SECONDS)
        raise RuntimeError("Infer Request was canceled")

    def cancel_and_tell(request: ov.InferRequest) -> None:
        cancel(request)
        cancelled.append(request)
        is_cancelled.set()

    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1))
    batch = make_batch([[5] * 9])
    expected = run(engine, batch)
    monkeypatch.setattr(ov.InferRequest, "cancel", cancel_and_tell)
    monkeypatch.setattr(ov.InferRequest, "infer", infer_when_cancelled)
    done: list[int] = []
    computing = engine.submit(batch, lambda: done.append(1))
    waiting = engine.submit(batch, lambda: done.append(2))
    assert begun.wait(WAIT_SECONDS)
    waiting.cancel()
    assert not is_cancelled.is_set()  # the batch being computed is another one
    computing.cancel()
    monkeypatch.setattr(ov.InferRequest, "infer", infer)
    assert (run(engine, batch) == expected).all()
    computing.cancel()
    assert len(cancelled) == 1  # too late: the request no longer belongs to this batch
    assert done == [1, 2]
    for pending in (computing, waiting):
        with pytest.raises(EngineRunError, match="cancel"):
            pending.result()
    engine.close()


def test_a_query_that_fails_on_its_callers_thread_does_not_fail_the_next(files: ModelFiles) -> None:
    engine = make(files)
    batch = make_batch([[5]], Lane.QUERY)
    expected = engine.compute(batch)
    with pytest.raises(EngineRunError, match="engine openvino: "):
        engine.compute(replace(batch, token_ids=batch.token_ids.astype(np.float64)))
    assert (engine.compute(batch) == expected).all()
    engine.close()


@pytest.mark.parametrize("variant", ["bert", "bert-cls-dense", "gemma2", "qwen3"])
def test_who_multiplies_does_not_change_the_vectors(
    tiny_folder: Callable[[str], Path], variant: str
) -> None:
    files = read_model_files(tiny_folder(variant))
    found = []
    for name in ("any", "onednn", "mlas"):
        engine = make(files, library=name)
        found.append(run(engine, make_batch([[5, 6, 7], [8]])))
        engine.close()
    assert relative_errors(found[0], found[1]).max() < 2e-5
    assert relative_errors(found[0], found[2]).max() < 2e-5


@pytest.mark.parametrize(
    ("name", "features", "expected"),
    [
        ("Intel(R) Xeon(R) Processor", {"avx2"}, "onednn"),
        ("AMD EPYC", {"avx2", "avx512f"}, "any"),
        ("AMD EPYC", {"avx2"}, "mlas"),
        ("ARM Neoverse-N1", {"asimd"}, "any"),
    ],
)
def test_who_multiplies(
    name: str, features: set[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "cpu_features", lambda _: frozenset(features))

    class Core:
        def get_property(self, device: str, key: str) -> str:
            return {("CPU", "FULL_DEVICE_NAME"): name}[device, key]

    def found(**choices: Any) -> str:
        layout = Layout(threads=1, **choices)
        return layout.multiplier(cast("ov.Core", Core()))

    assert found() == expected
    # int8 and 16 bits are oneDNN's, with the activation fused.
    assert found(activation_group=64) == ("any" if expected == "mlas" else expected)
    assert found(is_narrow=True) == ("any" if expected == "mlas" else expected)
    assert found(is_large=True) == "mlas"
    assert found(is_large=True, library="any") == "any"
    # All of it is oneDNN's there, packed once, with the activation fused.
    assert found(is_large=True, precision="bf16") == "any"
    # Whatever a profile says: what is not told to oneDNN ends the process.
    features |= {"amx_bf16"}
    for library in ("auto", "any", "mlas"):
        assert found(precision="bf16", library=library) == "onednn"
    assert found(library="any") == "any"


def test_graph_inputs(tiny_folder: Callable[[str], Path]) -> None:
    for variant, names in (
        ("bert", ["token_ids", "seq_lens", "indices"]),
        ("bert-prompt", ["token_ids", "seq_lens", "indices", "num_prompt_tokens"]),
    ):
        files = read_model_files(tiny_folder(variant))
        [graph] = build_stages(files.spec, load_weights(files), GraphOptions())
        assert [item.get_node().get_friendly_name() for item in graph.inputs] == names


def test_weights_are_not_copied(files: ModelFiles) -> None:
    weights = {role: np.array(values) for role, values in load_weights(files).items()}
    [graph] = build_stages(files.spec, weights, GraphOptions())
    constants = [node for node in graph.get_ordered_ops() if node.get_type_name() == "Constant"]
    shared = [node for node in constants if np.shares_memory(node.data, weights["tokens"])]
    assert len(shared) == 1


def test_32_threads_get_their_own_rows(tiny_folder: Callable[[str], Path]) -> None:
    """With the real engine; tests/test_embedder.py does the same with a fake one."""
    num_threads, num_calls = 32, 6
    with Embedder(tiny_folder("bert"), on_truncate="ignore") as embedder:
        texts = [f"text {row} of {'words ' * (row % 9)}" for row in range(num_threads * num_calls)]
        expected = embedder.encode(texts)
        wrong: list[str] = []

        def call(thread: int) -> None:
            for row in range(thread, len(texts), num_threads):
                mine = texts[row:] if row % 3 == 0 else texts[row : row + 1]
                if row % 3 == 1:
                    vectors = [embedder.encode_query(mine[0])]
                elif row % 3 == 2:
                    vectors = [asyncio.run(embedder.aencode(mine[0]))]
                else:
                    vectors = embedder.encode(mine)
                if np.abs(vectors - expected[row : row + len(mine)]).max() > 1e-5:
                    wrong.append(mine[0])

        threads = [threading.Thread(target=call, args=(number,)) for number in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
    assert wrong == []


def test_close_waits_for_a_limited_time_and_the_thread_frees_the_rest(files: ModelFiles) -> None:
    engine, may_end, begun = make(files), threading.Event(), threading.Event()

    def on_done() -> None:
        begun.set()
        assert may_end.wait(WAIT_SECONDS)

    engine.submit(make_batch([[5]]), on_done)
    assert begun.wait(WAIT_SECONDS)
    with pytest.raises(CloseTimeoutError, match=r"'embedlib-openvino-bulk'.* still runs"):
        engine.close(timeout=0.01)
    models = engine._models
    assert models._reads, "the thread may read them"
    may_end.set()
    engine.close()
    assert models._reads == []


class Tracked:
    """An object whose end is noted, and what makes others."""

    inputs = ()

    def __init__(self, log: list[str], name: str) -> None:
        self._log = log
        weakref.finalize(self, log.append, name)

    def create_infer_request(self) -> Tracked:
        return Tracked(self._log, "request")


@pytest.mark.parametrize("num_threads", [0, 2])
def test_what_reads_the_weights_is_freed_before_them(num_threads: int) -> None:
    log: list[str] = []
    compiled = [[cast(Any, Tracked(log, "compiled"))] for _ in range(2)]
    reads: list[Any] = [Tracked(log, "graph"), Tracked(log, "weights")]
    models = CompiledModels(Loaded(compiled, reads), [0, 1], is_per_token=False, padding=Padding(8))
    del compiled, reads
    for _ in range(num_threads):
        models.enter()
    for _ in range(num_threads):
        models.leave()
        assert log == [], "the engine is there"
    models.leave()
    assert log == ["request"] * 3 + ["compiled"] * 2 + ["graph", "weights"]


def test_files_are_watched_until_a_batch_has_had_many_rows() -> None:
    log, file = list[str](), cast(Any, "a mapped file")
    loaded = Loaded([[cast(Any, Tracked(log, "compiled"))]], [], [file])
    models = CompiledModels(loaded, [0], is_per_token=False, padding=Padding(8))
    few, many = compiled_models.MAX_FEW_ROWS, compiled_models.MIN_MANY_ROWS
    found = []
    for length in (few, few + 1, few, many - 1, many, 9 * many):
        found.append(list(models._files_to_pack(make_batch([[5] * length]))))
    assert found == [[], [file], [], [file], [file], []]
    models.leave()
    assert not models._files, "a model that is closed maps no file"


def test_weights_are_freed_with_an_engine_in_a_cycle(files: ModelFiles) -> None:
    class Weights(dict[str, Any]):
        """A dict that can be referred to weakly."""

    weights = Weights(load_weights(files))
    engine = OpenVINOEngine(files.spec, weights, Layout(threads=2))
    freed = weakref.finalize(weights, lambda: None)
    threads = engine._threads
    engine.me = engine  # type: ignore[attr-defined]
    del engine, weights
    gc.collect()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert not freed.alive


def test_weights_are_freed_when_a_request_cannot_be_made(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[CompiledModels] = []
    free = CompiledModels.free

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    def note(models: CompiledModels) -> None:
        free(models)
        freed.append(models)

    monkeypatch.setattr("embedlib.engines.openvino.running.compiled.Request", broken)
    monkeypatch.setattr(CompiledModels, "free", note)
    with pytest.raises(EngineBuildError, match="no memory"):
        make(files)
    assert [(models._reads, models._compiled) for models in freed] == [([], [])]


CLOSED_ELSEWHERE = """
import mmap, os, signal, sys, threading, time
from embedlib import Embedder

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it
embedders = [Embedder(sys.argv[1], threads=1)]

def end():
    embedders.pop().close()

closing = threading.Thread(target=end)
closing.start()
closing.join()
maps = [mmap.mmap(-1, 12_288) for _ in range(20)]
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)
except KeyboardInterrupt:
    print(sum(any(bytes(memory)) for memory in maps), "maps were written to")
"""


def test_ctrl_c_after_another_thread_closed_the_model(tiny_folder: Callable[[str], Path]) -> None:
    """OpenVINO frees a signal stack there: that of the thread that loaded its plugin."""
    program = [sys.executable, "-W", "error", "-c", CLOSED_ELSEWHERE, str(tiny_folder("bert"))]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 maps were written to\n", "")


def test_a_model_of_queries_alone_keeps_more_sizes_ready() -> None:
    def kept(*, shares_lanes: bool) -> list[int]:
        settings = Layout(threads=2, shares_lanes=shares_lanes).settings(fake_spec())
        return [one["CPU_RUNTIME_CACHE_CAPACITY"] for one in settings]

    assert kept(shares_lanes=False) == [PREPARED, PREPARED_FOR_QUERIES]
    assert kept(shares_lanes=True) == [PREPARED]


@pytest.mark.parametrize("given", [None, "7"])
def test_onednn_reads_its_capacity_while_the_plugin_is_loaded(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    read: list[bytes | None] = []

    class Core(core.ov.Core):  # type: ignore[name-defined, misc]
        def compile_model(self, model: Any, device: str, settings: dict[str, Any]) -> Any:
            read.append(getenv(core.CAPACITY_VARIABLE.encode()))
            assert os.environ.get(core.CAPACITY_VARIABLE) == given
            assert settings["ENABLE_CPU_PINNING"] is False
            return super().compile_model(model, device, settings)

    monkeypatch.setattr(core, "_load_plugin", LOAD_PLUGIN)
    monkeypatch.delenv(core.CAPACITY_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(core.CAPACITY_VARIABLE, given)
    monkeypatch.setattr(core.ov, "Core", Core)
    core.loaded_core()
    read.append(getenv(core.CAPACITY_VARIABLE.encode()))
    assert read == [b"16", None] if given is None else read == [b"7", b"7"]


@pytest.mark.parametrize("isa", ["SSE41", "AVX2", "ALL"])
def test_onednn_makes_an_operator_while_the_plugin_is_loaded(isa: str) -> None:
    """Else it would read its capacity later, when the variable is removed."""
    program = "from embedlib.engines.openvino.core import loaded_core; loaded_core()"
    told = {"ONEDNN_VERBOSE": "2", "ONEDNN_MAX_CPU_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | told,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert ",create:cache_miss,cpu,softmax," in done.stdout
