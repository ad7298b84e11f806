"""Runs a model on the CPU with OpenVINO: one compiled model for each lane.

Bulk wants throughput: one stream per core, each computing a batch of its own on one thread. A query
wants latency: all cores on one batch. Both models are compiled from the same graph and may run at
the same time; the operating system then shares the cores, so a query never waits for a bulk batch
to end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, EngineLimits, Lane
from embedlib.engines.openvino.graph import build_graph
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.matrices import DYNAMIC_GROUP
from embedlib.engines.openvino.weighted import Weights
from embedlib.errors import EngineBuildError, EngineOutOfMemoryError, EngineRunError
from embedlib.models.spec import ModelSpec, Pooling

MAX_BATCH_TOKENS = 512
"""Small batches stay in the cache of a core. Source: docs/benchmarks.md, token budget."""

MAX_INFLIGHT_QUERIES = 2
"""One computing, one ready."""


class OpenVINOEngine:
    """A model on the CPU. See `embedlib.engines.base.Engine`."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        threads: int,
        max_batch_tokens: int | None = None,
        max_inflight_bulk: int | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        """Build and compile the graph.

        Args:
            spec: the model.
            weights: its weights; float32 ones are used in place, so their file must not change.
            threads: cores to use.
            max_batch_tokens: token budget of a batch; None: the measured best.
            max_inflight_bulk: bulk batches taken at once; None: one per core and one ready.
            cache_dir: where OpenVINO keeps compiled models; None: nowhere.

        Raises:
            EngineBuildError: OpenVINO could not compile the graph.
        """
        num_bulk = threads + 1 if max_inflight_bulk is None else max_inflight_bulk
        self._limits = EngineLimits(
            embedding_dim=spec.embedding_dim,
            is_per_token=not any(isinstance(module, Pooling) for module in spec.modules),
            is_padded=True,
            max_batch_tokens=max_batch_tokens or MAX_BATCH_TOKENS,
            num_parallel_batches=threads,
            max_inflight_batches=num_bulk + MAX_INFLIGHT_QUERIES,
            max_inflight_bulk=num_bulk,
        )
        core = loaded_core()
        graph = build_graph(spec, weights, via_onednn=multiplies_via_onednn(core))
        shared = {
            # On a CPU with AMX OpenVINO would compute in bfloat16 unasked.
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            # Touches only what is multiplied with a matrix in int8.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": DYNAMIC_GROUP,
            "INFERENCE_NUM_THREADS": threads,
            # Pinned threads of two models, or two Embedders, would sit on the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        bulk_hints = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": threads}
        query_hints = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        try:
            with _kept_in(cache_dir) as cache:
                bulk = core.compile_model(graph, "CPU", {**shared, **cache, **bulk_hints})
                query = core.compile_model(graph, "CPU", {**shared, **cache, **query_hints})
        except RuntimeError as error:
            raise EngineBuildError(f"engine openvino: compiling failed: {_told(error)}") from error
        # Python lets go of an object's fields first to last, and of a tuple's items last to first:
        # here and in the threads' arguments the weights outlive what reads them.
        self._callers = query.create_infer_request()
        names = [node.get_node().get_friendly_name() for node in graph.inputs]
        self._infer = _Infer(names, self._limits.is_per_token, weights)
        self._jobs: dict[Lane, _Jobs] = {lane: SimpleQueue() for lane in Lane}
        streams = [(Lane.BULK, bulk)] * threads + [(Lane.QUERY, query)]
        self._threads = [
            threading.Thread(
                target=_work,
                args=(self._infer, self._jobs[lane], compiled.create_infer_request()),
                name=f"embedlib-openvino-{lane.value}",
                daemon=True,
            )
            for lane, compiled in streams
        ]
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, _end, list(self._jobs.values()), len(streams))

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler must know."""
        return self._limits

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> _Job:
        """Start a batch and return at once."""
        job = _Job(batch, on_done)
        self._jobs[batch.lane].put(job)
        return job

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch of the query lane on this thread, all cores helping."""
        return self._infer(self._callers, batch)

    def close(self) -> None:
        """Wait for what is in flight and free the compiled models."""
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread():  # the garbage collector works on any
                thread.join()
        self._threads = []
        self._callers = None


_Jobs: TypeAlias = "SimpleQueue[_Job | None]"
"""The batches of a lane; None: there will be no more."""


class _Job:
    """A batch on its way."""

    def __init__(self, batch: Batch, on_done: Callable[[], None]) -> None:
        self.batch = batch
        self.on_done = on_done
        self.vectors: NDArray[np.float32] | None = None
        self.error: BaseException | None = None
        self._changing = threading.Lock()
        """Guards what follows: a request goes on to the next batch."""
        self._request: ov.InferRequest | None = None
        self._is_cancelled = False

    @contextmanager
    def computed_by(self, request: ov.InferRequest) -> Iterator[None]:
        """Know the request while it computes.

        Raises:
            EngineRunError: cancelled before.
        """
        with self._changing:
            if self._is_cancelled:
                raise EngineRunError("engine openvino: the batch was cancelled")
            self._request = request
        try:
            yield
        finally:
            with self._changing:
                self._request = None

    def cancel(self) -> None:
        """Stop behind the operator that runs; see `CancellablePending`."""
        with self._changing:
            self._is_cancelled = True
            if self._request is not None:
                self._request.cancel()

    def result(self) -> NDArray[np.float32]:
        """Return float32[B, D], or float32[T, D] of every token."""
        if self.error is not None:
            raise self.error
        assert self.vectors is not None, "a batch has no result yet; this is a bug in embedlib"
        return self.vectors


def _work(infer: _Infer, jobs: _Jobs, request: ov.InferRequest) -> None:
    """Compute batches one after the other; the engine itself must be free to be collected.

    Not OpenVINO's own callbacks: from Python, they are not called when a batch has failed.
    """
    while (job := jobs.get()) is not None:
        try:
            with job.computed_by(request):
                job.vectors = infer(request, job.batch)
        except BaseException as error:  # whoever waits must hear of it
            job.error = error
        job.on_done()
        del job  # or the last batch would live until the next one


def _end(queues: Iterable[_Jobs], num_threads: int) -> None:
    """Let every thread end behind what is in its queue."""
    for jobs in queues:
        for _ in range(num_threads):
            jobs.put(None)


@dataclass(frozen=True)
class _Infer:
    """Computes a batch with a request of one of the compiled models."""

    input_names: Sequence[str]
    is_per_token: bool
    weights: Weights
    """The graph's constants are views onto these arrays."""

    def __call__(self, request: ov.InferRequest, batch: Batch) -> NDArray[np.float32]:
        """Return float32[B, D], or float32[T, D] of every token.

        Raises:
            EngineOutOfMemoryError: there is no room for it.
            EngineRunError: it failed.
        """
        arrays = {
            "token_ids": pad(batch),
            "seq_lens": batch.seq_lens,
            "num_first_tokens": batch.num_first_tokens,
            "num_prompt_tokens": batch.num_prompt_tokens,
        }
        try:
            for index, name in enumerate(self.input_names):
                # Read in place: the arrays live until the end of this function.
                request.set_input_tensor(index, ov.Tensor(arrays[name], shared_memory=True))
            request.infer()
        except RuntimeError as error:
            raise _run_error(error) from error
        # A copy, since a request writes into the same memory again.
        output: NDArray[np.float32] = request.get_output_tensor().data
        return output[is_token(batch)] if self.is_per_token else output.copy()


def loaded_core() -> ov.Core:
    """OpenVINO's core, its CPU plugin loaded by a thread that has ended.

    With AVX-512 the plugin gives the thread that loads it an alternate signal stack, which it frees
    where it ends, on whatever thread lets go of the model. Were the first thread still there, its
    next signal, Ctrl-C say, would be written to memory that is gone or somebody else's by then.
    """
    core = ov.Core()
    with ThreadPoolExecutor(1, "embedlib-openvino-load") as passing:
        passing.submit(core.get_property, "CPU", "FULL_DEVICE_NAME").result()
    return core


def multiplies_via_onednn(core: ov.Core) -> bool:
    """Whether oneDNN multiplies the few tokens of a query quicker than MLAS on this CPU.

    Source: docs/benchmarks.md, single queries; CPUs of other makers were not measured.
    """
    return "Intel" in core.get_property("CPU", "FULL_DEVICE_NAME")


def pad(batch: Batch) -> NDArray[np.int32]:
    """Lay a packed batch out as int32[B, L], padded on the right with id 0."""
    if batch.num_seqs == 1:
        return batch.token_ids[np.newaxis]
    places = is_token(batch)
    padded = np.zeros(places.shape, np.int32)
    padded[places] = batch.token_ids
    return padded


def is_token(batch: Batch) -> NDArray[np.bool_]:
    """bool[B, L]: where the tokens of a packed batch lie once it is padded on the right."""
    seq_lens = batch.seq_lens
    places: NDArray[np.bool_] = np.arange(int(seq_lens.max())) < seq_lens[:, None]
    return places


@contextmanager
def _kept_in(folder: Path | None) -> Iterator[dict[str, str]]:
    """Yield the setting that keeps compiled models in a folder; without, a start takes longer.

    One process at a time: OpenVINO maps a file that another one may still be writing, and dies.
    """
    if folder is None:
        yield {}
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass  # it can be written
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        logging.getLogger(__name__).warning("compiled models are not kept: %s", error)
        yield {}
        return
    try:
        yield {"CACHE_DIR": str(folder)}
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a fork may have another handle of it
        os.close(lock)


def _run_error(error: RuntimeError) -> EngineRunError:
    told = _told(error)
    if "bad_alloc" in told or "allocate" in told or "out of memory" in told.lower():
        return EngineOutOfMemoryError(f"engine openvino: out of memory: {told}")
    return EngineRunError(f"engine openvino: {told}")


def _told(error: RuntimeError) -> str:
    """The last line of an OpenVINO message; the ones before are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
