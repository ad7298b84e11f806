from __future__ import annotations

import gc
import re
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embedlib.engines.base import Lane, why_lost
from embedlib.engines.cuda import groups, launcher, loaded_model, reference, short_batches
from embedlib.engines.cuda.device import CpuDevice, Event
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.limits import (
    batch_room,
    default_batch_tokens,
    fitting_batch_tokens,
    most_short_tokens,
)
from embedlib.engines.cuda.reference_pooling import MASKED
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import (
    CloseTimeoutError,
    EngineBuildError,
    EngineOutOfMemoryError,
    EngineRunError,
    EngineUnavailableError,
    EngineUnsupportedError,
)
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import TINY_VARIANTS, check_engine, make_batch
from embedlib.testing.models.table import SCORING_VARIANTS
from tests.acceptance.gpu.models import shape_of
from tests.comparing import relative_errors
from tests.tiny_encoders import computed as run
from tests.tiny_models.groups import OPENVINO_ALONE
from tests.waiting import WAIT_SECONDS

GOLDENS = Path(__file__).parents[2] / "goldens"
POOLED = ("pooled_rows",)


@pytest.fixture(scope="module")
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("mistral"))


@pytest.fixture(autouse=True)
def _buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use two buckets, fast to record; longer batches run in groups, with split steps."""
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16, 48))
    monkeypatch.setattr(groups, "MAX_GROUP_WORK", 3e5)
    monkeypatch.setattr(groups, "CUT_ROWS", 8)


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close engines that a test left open: otherwise their threads outlive the test."""
    made: list[CudaEngine] = []
    start = CudaEngine.__init__

    def remember(engine: CudaEngine, *args: Any, **options: Any) -> None:
        start(engine, *args, **options)
        made.append(engine)

    monkeypatch.setattr(CudaEngine, "__init__", remember)
    yield
    for engine in made:
        engine.close()
    names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if name.startswith("embedlib-cuda")] == []


def make(files: ModelFiles, **options: Any) -> CudaEngine:
    given = {"precision": "float32", "device": "cpu", "max_batch_tokens": 256, **options}
    return CudaEngine(files.spec, load_weights(files), **given)


@pytest.mark.parametrize("variant", sorted(TINY_VARIANTS.keys() - OPENVINO_ALONE))
def test_vectors_are_those_of_sentence_transformers(
    variant: str, tiny_folder: Callable[[str], Path], golden: Callable[[str], Any]
) -> None:
    files = read_model_files(tiny_folder(variant))
    engine = make(files, max_batch_tokens=4096)
    for case in golden(variant).cases:
        vectors = run(engine, make_batch(case.ids, num_prompt_tokens=case.num_prompt_tokens))
        vectors = vectors[:, : files.spec.truncate_dim]
        assert relative_errors(vectors, case.vectors).max() <= 2e-5
    engine.close()


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # About four times the rounding error; a wrong step gives 1.
    [("bf16", 0.08), ("fp16", 0.01), ("fp8", 0.6)],
)
@pytest.mark.parametrize("variant", ["bert", "roberta", "mistral", "qwen2", "mpnet", "deberta-v2"])
def test_lower_precisions_are_near(
    variant: str,
    precision: str,
    tolerance: float,
    tiny_folder: Callable[[str], Path],
    golden: Callable[[str], Any],
) -> None:
    files = read_model_files(tiny_folder(variant))
    engine = make(files, precision=precision, max_batch_tokens=4096)
    case = golden(variant).cases[0]
    vectors = run(engine, make_batch(case.ids, num_prompt_tokens=case.num_prompt_tokens))
    errors = relative_errors(vectors[:, : files.spec.truncate_dim], case.vectors)
    assert 1e-5 < errors.max() <= tolerance
    engine.close()


@pytest.mark.parametrize(
    "variant",
    [
        *("bert-concat", "bert-prompt", "roberta", "mpnet", "modernbert", "mistral", "qwen2"),
        *("gemma2-bidirectional", "gemma3_text-causal", "deberta-v2", "nomic_bert-moe"),
        "lfm2",
    ],
)
def test_the_engine_keeps_its_promises(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder(variant))
    check_engine(make(files), files.spec)


@pytest.mark.parametrize(("precision", "excluded"), [("bf16", ()), ("fp8", ()), ("fp8", POOLED)])
def test_a_text_has_one_vector_in_any_batch(
    files: ModelFiles, precision: str, excluded: tuple[str, ...]
) -> None:
    engine = make(files, precision=precision, excluded=excluded)
    check_engine(engine, files.spec, tolerance=1e-3)


def test_the_vector_of_the_task_is_added_where_tokens_have_no_type(
    tiny_folder: Callable[[str], Path],
) -> None:
    files = read_model_files(tiny_folder("ernie-tasks"))
    spec = replace(files.spec, encoder=replace(files.spec.encoder, num_token_types=0))
    weights = load_weights(files)
    batch = make_batch([[5, 6, 7], [8]])
    engines = (
        CudaEngine(spec, weights, precision="float32", device="cpu", max_batch_tokens=256),
        OpenVINOEngine(spec, weights, Layout(threads=1)),
    )
    found, expected = (run(engine, batch) for engine in engines)
    assert relative_errors(found, expected).max() <= 2e-5
    for engine in engines:
        engine.close()


def test_what_no_step_computes_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(EngineUnsupportedError, match=r"cuda: layer_input_size .*'openvino'$"):
        make(read_model_files(tiny_folder("embedding_gemma2_text")))


@pytest.mark.parametrize("variant", sorted(SCORING_VARIANTS.keys() - OPENVINO_ALONE))
def test_scores_are_those_of_transformers(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    template = SCORING_VARIANTS[variant].template
    files = read_model_files(tiny_folder(variant), with_head=True, template=template)
    engine = make(files, max_batch_tokens=2048)
    with np.load(GOLDENS / "heads" / f"{variant}.npz") as stored:
        for kind in {key.partition(".")[0] for key in stored.files}:
            lengths = stored[f"{kind}.lengths"]
            batch = make_batch(
                np.split(stored[f"{kind}.ids"], np.cumsum(lengths)[:-1]),
                num_type0_tokens=stored.get(f"{kind}.num_first_tokens", lengths),
            )
            expected = stored[f"{kind}.numbers"]
            difference = np.linalg.norm(run(engine, batch) - expected)
            assert difference / np.linalg.norm(expected) <= 1e-4
    engine.close()


def test_without_pooling_there_is_a_row_for_every_token(files: ModelFiles) -> None:
    spec = replace(files.spec, modules=())
    for ids in ([[5, 6, 7], [8]], [[5] * 40, [6, 7]]):
        batch = make_batch(ids)
        engine = CudaEngine(
            spec, load_weights(files), precision="float32", device="cpu", max_batch_tokens=64
        )
        theirs = OpenVINOEngine(spec, load_weights(files), Layout(threads=1))
        vectors = run(engine, batch)
        assert engine.limits.is_per_token
        assert vectors.shape == (len(batch.token_ids), 32)
        np.testing.assert_allclose(vectors, run(theirs, batch), atol=1e-4)
        engine.close()


def test_the_same_vector_on_either_way(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [[5, 6, 7, 8, 9], [3, 4], [11] * 30]  # 37 tokens: the larger bucket
    for precision, excluded in (("float32", ()), ("bf16", ()), ("fp8", ()), ("fp8", POOLED)):
        options = {"precision": precision, "excluded": excluded}
        short = run(make(files, **options), make_batch(ids))
        with monkeypatch.context() as patch:
            patch.setattr(short_batches, "BUCKET_TOKENS", (16,))
            long = run(make(files, **options), make_batch(ids))
        np.testing.assert_allclose(short, long, atol=1e-6)


def test_a_sequence_longer_than_the_budget_is_a_batch(files: ModelFiles) -> None:
    engine = make(files, max_batch_tokens=8)
    assert engine.limits.max_batch_tokens == 8
    assert run(engine, make_batch([[5] * files.spec.max_seq_tokens])).shape == (1, 32)
    engine.close()


def test_a_batch_without_room_is_out_of_memory(files: ModelFiles) -> None:
    engine = make(files, max_batch_tokens=64)
    for ids, told in (([[5] * 13] * 5, "65 tokens in 5"), ([[5]] * 9, "9 tokens in 9")):
        with pytest.raises(EngineOutOfMemoryError, match=f"{told} sequences; .*64 tokens in 8"):
            engine.submit(make_batch(ids), lambda: None)
    run(engine, make_batch([[5] * 16] * 4))
    engine.close()


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([[10**6]], "ids from 1000000"),
        ([[-1, 5]], "ids from -1 to 5"),
        ([[5] * 57], "has 57 tokens"),
    ],
)
def test_what_would_read_other_memory_is_refused(
    files: ModelFiles, ids: list[list[int]], told: str
) -> None:
    engine = make(files)
    with pytest.raises(EngineRunError, match=told):
        engine.submit(make_batch(ids), lambda: None)
    engine.close()


def test_no_batch_leaves_memory_behind(files: ModelFiles) -> None:
    """The weights and the workspace are allocated at the start; batches add nothing."""

    def num_bytes() -> int:
        gc.collect()
        tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
        storages = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(storages.values())

    engine = make(files)
    random = np.random.default_rng(0)
    after = []
    for _ in range(2):
        for _ in range(40):  # recordings and long batches, whole and in groups, queries and bulk
            lengths = random.integers(1, 30, random.integers(1, 9))
            ids = [random.integers(5, 90, length).tolist() for length in lengths]
            run(engine, make_batch(ids, random.choice(list(Lane))))
        after.append(num_bytes())
    assert after[0] == after[1]
    engine.close()


def test_limits(files: ModelFiles) -> None:
    limits = make(files).limits
    assert (limits.is_padded, limits.embedding_dim, limits.max_batch_tokens) == (False, 32, 256)
    assert limits.max_inflight_batches > limits.max_inflight_bulk == 2
    assert make(files, max_inflight_bulk=5).limits.max_inflight_bulk == 5


@pytest.mark.parametrize(
    ("model", "budget"),
    [
        ("bge-large", 65_536),
        ("qwen3-embedding-0.6b", 32_768),
        ("bge-en-icl", 16_384),
    ],
)
def test_small_models_take_more_tokens_into_a_batch(model: str, budget: int) -> None:
    spec = replace(shape_of(model).spec, max_seq_tokens=512)
    assert default_batch_tokens(spec.encoder) == budget
    assert fitting_batch_tokens(spec, lambda tokens: tokens <= 40_000) == min(budget, 32_768)
    assert fitting_batch_tokens(spec, lambda _: False) == 16_384, "the check of memory refuses it"
    assert batch_room(spec, 100) == 512


@pytest.mark.parametrize(
    ("model", "precision", "room", "largest"),
    [
        ("bge-large", "fp8", 65_536, 4096),
        ("bge-large", "bf16", 700, 768),
        ("bge-en-icl", "fp8", 32_768, 1024),
        ("bge-en-icl", "bf16", 32_768, 512),
    ],
)
def test_what_a_gpu_computes_soon_is_recorded(
    model: str, precision: str, room: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of the few sizes of this file
    most = most_short_tokens(shape_of(model).spec.encoder, precision)
    sizes = short_batches.bucket_sizes(most, room)
    assert sizes[-1] == largest
    assert sizes == short_batches.BUCKET_TOKENS[: len(sizes)]


def test_a_long_batch_of_bulk_is_launched_in_groups_where_one_of_queries_is_recorded(
    tiny_folder: Callable[[str], Path],
) -> None:
    files = read_model_files(tiny_folder("bert"))
    engine = make(files, max_batch_tokens=1024, bucket_tokens=(16, 1024))
    for length, lanes in ((512, {*Lane}), (520, {Lane.QUERY})):
        for lane in Lane:
            batch = make_batch([[5] * 8] * (length // 8), lane)
            assert engine._model.short.fits(batch) == (lane in lanes)
    engine.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nto"), EngineOutOfMemoryError),
        (torch.OutOfMemoryError(), EngineOutOfMemoryError),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), EngineOutOfMemoryError),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), EngineOutOfMemoryError),
        (RuntimeError("device-side assert\nCUDA kernel errors"), EngineRunError),
        (RuntimeError(""), EngineRunError),
    ],
)
@pytest.mark.parametrize("num_tokens", [5, 50])
def test_a_batch_that_fails_is_told_and_the_next_one_runs(
    files: ModelFiles,
    error: Exception,
    kind: type[Exception],
    num_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make(files)
    batch = make_batch([[5] * num_tokens])
    expected = run(engine, batch)

    def broken(*_: object) -> None:
        raise error

    for place in ("run", "finish"):  # at the first group, and after the last one
        with monkeypatch.context() as patch:
            patch.setattr(engine._model.executor, place, broken)
            patch.setattr(engine._model.short, "launch", broken)
            for _ in range(3):
                with pytest.raises(kind) as caught:
                    run(engine, batch)
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(run(engine, batch), expected)
    engine.close()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_model_without_room_is_not_built(
    files: ModelFiles, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(EngineBuildError, match=r"batches of 256 tokens do not fit into 0\.9 of"):
        make(files)


@pytest.mark.parametrize("place", ["WeightLoader", "Workspace", "Executor", "warm_up"])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), EngineUnsupportedError("attention")]
)
def test_a_model_that_cannot_be_loaded_leaves_no_memory_behind(
    files: ModelFiles, place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while the error is kept; what is free then is what a smaller model may take."""
    left: list[int] = []

    class Watched(CpuDevice):
        def close(self) -> None:
            left.append(num_bytes())

    def fail(*_: object) -> None:
        taken = torch.empty(1 << 20)
        assert num_bytes() >= before + taken.nbytes
        raise error

    def num_bytes() -> int:
        return sum(x.nbytes for x in gc.get_objects() if type(x) is torch.Tensor)

    method = {"WeightLoader": "load", "Executor": "run", "Workspace": "__init__"}.get(place, place)
    owner = CpuDevice if place == "warm_up" else getattr(loaded_model, place)
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: Watched())
    monkeypatch.setattr(owner, method, fail)
    gc.collect()
    before = num_bytes()
    with pytest.raises((EngineBuildError, EngineUnsupportedError)):
        make(files)
    assert left == [before]


@pytest.mark.parametrize("num_tokens", [5, 50])
@pytest.mark.parametrize("is_here", [False, True])
def test_the_error_of_a_batch_leaves_no_memory_behind(
    files: ModelFiles, num_tokens: int, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while a program keeps it, which may load another model meanwhile."""

    def fail(*_: object) -> None:
        raise RuntimeError("no product today")

    def own(number: int) -> None:
        raise LookupError(number)

    engine = make(files)
    ask = engine.compute if is_here else partial(run, engine)
    with monkeypatch.context() as patch:
        patch.setattr(reference, "linear", fail)
        try:
            own(7)
        except LookupError as error:
            handled = error
            with pytest.raises(EngineRunError, match="no product today") as kept:
                ask(make_batch([[5] * num_tokens]))
    *_, (frame, _) = traceback.walk_tb(handled.__traceback__)
    assert frame.f_locals == {"number": 7}, "an error of the program keeps what it has"
    parts = [weakref.ref(getattr(engine._model, name)) for name in ("executor", "short")]
    engine.close()
    assert all(part() is None for part in parts)
    assert isinstance(kept.value.__cause__, RuntimeError)


def test_a_gpu_that_refuses_a_product_is_told_when_the_engine_is_made(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when\nhints")

    monkeypatch.setattr(reference, "linear", refuse)
    told = r"float32 failed on this device: RuntimeError: CUDA error: CUBLAS_\w+ when; use another"
    with pytest.raises(EngineBuildError, match=told) as caught:
        make(files)
    assert "\n" not in str(caught.value)


def test_the_thread_that_launches_has_done_so_before_anybody_waits(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA libraries create handles per thread, and allocate memory for them."""
    log: list[str] = []

    class Watched(CpuDevice):
        def enter(self) -> None:
            log.append("enter")

        def warm_up(self, launch: Callable[[], object]) -> None:
            log.append(threading.current_thread().name)
            launch()

    monkeypatch.setattr(loaded_model, "open_device", lambda *_: Watched())
    engine = make(files)
    assert log == ["enter", "embedlib-cuda-launch"]
    run(engine, make_batch([[5] * 50]))
    assert len(log) == 2


def test_a_launching_thread_that_cannot_begin_is_told_and_nothing_is_left(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, told in (
        (torch.OutOfMemoryError("CUDA out of memory"), "do not fit"),
        (RuntimeError("no handle"), "failed on this device: RuntimeError: no handle"),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(CpuDevice, "enter", fail)
        with pytest.raises(EngineBuildError, match=told):
            make(files)
        names = [thread.name for thread in threading.enumerate()]
        assert [name for name in names if name.startswith("embedlib-cuda")] == []


@pytest.mark.parametrize(("variant", "num_kinds"), [("mistral", 3), ("bert", 2)])
def test_kernels_of_long_batches_are_compiled_before_the_first_one(
    variant: str,
    num_kinds: int,
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel is compiled per tile size: for recordings, long batches and single queries."""

    class Compiling(CpuDevice):
        def warm_up(self, launch: Callable[[], object]) -> None:
            launch()

    kinds: set[tuple[int, bool]] = set()

    def attend(*args: Any) -> None:
        kinds.add((args[3], args[8] is None))
        original(*args)

    original = reference.attend
    monkeypatch.setattr(reference, "attend", attend)
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: Compiling())
    engine = make(read_model_files(tiny_folder(variant)), precision="bf16")
    compiled = set(kinds)
    run(engine, make_batch([[5] * 5]))
    run(engine, make_batch([[5] * 20] * 3))
    assert kinds == compiled
    assert len({tile_queries for tile_queries, _ in kinds}) == num_kinds


@pytest.mark.parametrize("precision", ["float32", "fp8"])
@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.enable_grad, partial(torch.device, "meta")]
)
def test_it_does_not_matter_how_its_maker_uses_torch(
    mode: Callable[[], AbstractContextManager[None]], precision: str, files: ModelFiles
) -> None:
    """The mode is per thread, and inference tensors cannot be written in another mode."""
    batches = [make_batch([[5] * 3]), make_batch([[5] * 20] * 3)]
    plain = make(files, precision=precision)
    weights = {
        role: torch.nn.Parameter(torch.from_numpy(values))
        for role, values in load_weights(files).items()
    }
    with mode():
        options: dict[str, Any] = {"precision": precision, "device": "cpu", "max_batch_tokens": 256}
        other = CudaEngine(files.spec, weights, **options)
    for batch in batches:
        assert np.array_equal(run(plain, batch), run(other, batch))


def test_close_waits_for_what_is_in_flight(files: ModelFiles) -> None:
    engine = make(files)
    done: list[int] = []
    jobs = [engine.submit(make_batch([[5] * 40]), lambda: done.append(1)) for _ in range(3)]
    engine.close()
    assert len(done) == 3
    assert all(job.result().shape == (1, 32) for job in jobs)
    assert not any(thread.is_alive() for thread in engine._threads)


@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_a_thread_that_cannot_be_started_leaves_none_and_frees_the_device(
    num_threads: int,
    files: ModelFiles,
    limit_threads: Callable[[int], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(loaded_model.LoadedModel, "close", lambda _: closed.append(1))
    started = limit_threads(num_threads)
    with pytest.raises(EngineBuildError, match="no more threads can be started"):
        make(files)
    assert len(closed) == 1
    assert len(started) == num_threads  # and `no_thread_is_left`


class HeldDevice(CpuDevice):
    """A device whose work finishes only when the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def mark(self) -> Event:
        return self

    def download(
        self, vectors: torch.Tensor, target: torch.Tensor, *, is_short: bool = False
    ) -> Event:
        super().download(vectors, target)
        return self

    def synchronize(self) -> None:
        assert self.gate.wait(WAIT_SECONDS)


class LostDevice(CpuDevice):
    """A device whose kernels fail from some point on, which is told whenever it is waited for."""

    error: Exception | None = None

    def mark(self) -> Event:
        return self

    def download(
        self, vectors: torch.Tensor, target: torch.Tensor, *, is_short: bool = False
    ) -> Event:
        super().download(vectors, target)
        return self

    def synchronize(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("num_tokens", [5, 50])
@pytest.mark.parametrize("at_launch", [False, True])
@pytest.mark.parametrize("is_here", [False, True])
def test_a_gpu_that_is_lost_is_given_up(
    files: ModelFiles,
    num_tokens: int,
    at_launch: bool,
    is_here: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = LostDevice()
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: device)
    engine = make(files)
    batch = make_batch([[5] * num_tokens])
    ask = engine.compute if is_here else partial(run, engine)
    ask(batch)
    assert why_lost(engine) is None
    device.error = RuntimeError("CUDA error: out of memory")
    with pytest.raises(EngineOutOfMemoryError):
        ask(batch)
    assert why_lost(engine) is None, "the next batch may have room"
    device.error = RuntimeError("an illegal memory access was encountered\nhints")

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    if at_launch:
        monkeypatch.setattr(engine._model.executor, "run", broken)
        monkeypatch.setattr(engine._model.short, "launch", broken)
    with pytest.raises(EngineRunError, match="launch failure" if at_launch else "illegal memory"):
        ask(batch)
    told = r"the GPU is lost \(an illegal memory access was encountered\); restart the process"
    assert re.fullmatch(told, why_lost(engine) or "")
    for submit in (engine.compute, lambda batch: engine.submit(batch, lambda: None)):
        with pytest.raises(EngineRunError, match=f"engine cuda: {told}"):
            submit(batch)
    engine.close()


def test_a_query_is_launched_by_its_caller_beside_a_long_batch(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(files)
    on: list[str] = []
    launch = engine._model.short.launch

    def spy(*args: Any) -> Any:
        on.append(threading.current_thread().name)
        return launch(*args)

    monkeypatch.setattr(engine._model.short, "launch", spy)
    query, bulk = make_batch([[5, 6, 7]], Lane.QUERY), make_batch([[5] * 50] * 2)
    expected = run(engine, query)
    done = threading.Semaphore(0)
    with ThreadPoolExecutor(1, "caller") as caller:
        jobs = []
        for _ in range(20):
            jobs.append(engine.submit(bulk, done.release))
            found = caller.submit(engine.compute, query)
            np.testing.assert_array_equal(found.result(WAIT_SECONDS), expected)
        closing = caller.submit(engine.close)
    closing.result()
    assert all(done.acquire(timeout=WAIT_SECONDS) for _ in jobs)
    assert on == ["embedlib-cuda-launch", *["caller_0"] * 20]


def test_ctrl_c_leaves_the_engine_usable(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, query = make(files), make_batch([[5, 6, 7]], Lane.QUERY)
    expected = engine.compute(query)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine._model.short, "launch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.compute(query)
    np.testing.assert_array_equal(engine.compute(query), expected)
    np.testing.assert_array_equal(run(engine, query), expected)
    engine.close()


def test_the_error_of_a_handler_reaches_the_program(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from the middle of a query, and must not be told as an error of the GPU."""
    engine, query = make(files), make_batch([[5, 6, 7]], Lane.QUERY)
    expected = engine.compute(query)

    def give_up(*_: object) -> None:
        raise TimeoutError("the time is over")

    def interrupt(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, give_up)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(engine._model.short, "launch", interrupt)
            with pytest.raises(TimeoutError, match="time is over"):
                engine.compute(query)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert why_lost(engine) is None
    np.testing.assert_array_equal(engine.compute(query), expected)
    engine.close()


def test_no_signal_leaves_a_lock_taken(files: ModelFiles) -> None:
    engine, query = make(files), make_batch([[5, 6, 7]], Lane.QUERY)
    expected = engine.compute(query)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    num_interrupted = 0
    try:
        for number in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 1e-5)
                engine.compute(query)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                num_interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert num_interrupted > 0
    np.testing.assert_array_equal(run(engine, query), expected)
    engine.close()


def test_a_handler_that_asks_while_its_thread_launches_gets_an_error(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "LAUNCH_SECONDS", 0.01)
    engine, query = make(files), make_batch([[5, 6, 7]], Lane.QUERY)
    launch = engine._model.short.launch
    told: list[str] = []

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(engine._model.short, "launch", launch)
        with pytest.raises(EngineRunError) as error:
            run(engine, query)
        told.append(str(error.value))
        return launch(*args)

    expected = run(engine, query)
    monkeypatch.setattr(engine._model.short, "launch", interrupted)
    np.testing.assert_array_equal(engine.compute(query), expected)
    assert told == ["engine cuda: a signal handler keeps a thread from launching its query"]
    np.testing.assert_array_equal(run(engine, query), expected)
    engine.close()


def test_a_query_goes_between_two_groups_and_close_waits_for_all(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = HeldDevice()
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: device)
    files = read_model_files(tiny_folder("gemma2"))
    engine = make(files)
    three = tuple(groups.whole(layer) for layer in engine._model.plan.layers)
    assert len(three) == 3
    monkeypatch.setattr(loaded_model, "groups_of", lambda *_: three)
    launched: list[str] = []
    changed = threading.Condition()

    def watch(owner: object, name: str) -> None:
        method = getattr(owner, name)

        def spy(*args: Any) -> Any:
            with changed:
                launched.append(name)
                changed.notify()
            return method(*args)

        monkeypatch.setattr(owner, name, spy)

    watch(engine._model.executor, "run")
    watch(engine._model.short, "launch")

    def wait_for(*names: str) -> None:
        with changed:
            assert changed.wait_for(lambda: len(launched) >= len(names), WAIT_SECONDS)
            assert launched[: len(names)] == list(names)

    done: list[str] = []
    bulk = engine.submit(make_batch([[5] * 50]), lambda: done.append("bulk"))
    wait_for("run", "run")  # two groups, and not the third
    query = engine.submit(make_batch([[5, 6]], Lane.QUERY), lambda: done.append("query"))
    wait_for("run", "run", "launch")
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    assert done == []
    device.gate.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    # On a CPU, replaying a recording is logged as a run too.
    assert launched == ["run", "run", "launch", "run", "run"]
    assert sorted(done) == ["bulk", "query"]
    assert bulk.result().shape == query.result().shape == (1, 32)


def test_close_waits_for_a_limited_time(files: ModelFiles) -> None:
    engine, may_end, begun = make(files), threading.Event(), threading.Event()

    def on_done() -> None:
        begun.set()
        assert may_end.wait(WAIT_SECONDS)

    pending = engine.submit(make_batch([[5, 6]]), on_done)
    assert begun.wait(WAIT_SECONDS)
    for _ in range(2):
        with pytest.raises(CloseTimeoutError, match="'embedlib-cuda-end' still runs"):
            engine.close(timeout=0.1)
    may_end.set()
    engine.close()
    assert pending.result().shape == (1, 32)


def test_a_close_that_ctrl_c_interrupts_is_done_by_the_next_one(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, closed = make(files), []
    close = engine._model.close

    def watched() -> None:
        closed.append(1)
        close()

    class Interrupted:  # while it waits for a query that another thread computes
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(engine._model, "close", watched)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_computing", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            engine.close()
    for _ in range(2):
        engine.close()
        assert closed == [1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(files: ModelFiles) -> None:
    with pytest.raises(EngineUnavailableError, match=r"sees no NVIDIA GPU; check nvidia-smi"):
        make(files, device="cuda")


def test_the_prompt_is_left_out(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("bert-prompt"))
    engine = make(files)
    ids = [[5, 6, 7, 8]]
    whole, part = (run(engine, make_batch(ids, num_prompt_tokens=count)) for count in (0, 2))
    assert relative_errors(whole, part).max() > 0.01
    engine.close()


def test_pooling_nothing_but_prompt_is_as_in_the_reference(
    tiny_folder: Callable[[str], Path],
) -> None:
    files = read_model_files(tiny_folder("bert-prompt"))
    pooling = replace(files.spec.pooling, modes=("max",))
    files = replace(files, spec=replace(files.spec, modules=(pooling,)))
    files = replace(files, module_dirs=files.module_dirs[:1])
    engine = make(files)
    vectors = run(engine, make_batch([[5, 6]], num_prompt_tokens=2))
    assert (vectors == np.float32(MASKED)).all()
    engine.close()
