"""Runs a model on the CPU with OpenVINO: one compiled model for each lane.

The bulk lane is compiled for throughput: one stream per core, each computing its own batch on one
thread. The query lane is compiled for latency: all cores compute one batch. Both are compiled from
the same graph and may run at the same time. The operating system then divides the cores between
them, so a query never waits for a bulk batch to end; bulk threads have the lower priority.

Each compiled model packs the weights for itself. Where two copies would take much more memory than
the weights, both lanes share the one for latency. It is compiled in stages, and a bulk batch waits
between two of them while a query is computed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from mmap import PAGESIZE, PROT_EXEC, PROT_READ, PROT_WRITE, mmap
from queue import SimpleQueue
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, InFlight, Lane
from embedlib.engines.openvino.bulk_threads import BulkThreads
from embedlib.engines.openvino.core import loaded_core
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.stages import Request
from embedlib.engines.openvino.kept.model_cache import ModelCache
from embedlib.engines.openvino.lanes import Lanes
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running.compiled import CompiledModels
from embedlib.engines.openvino.running.compiling import Loaded, load_models
from embedlib.engines.openvino.running.inputs import last_line
from embedlib.engines.openvino.sizes.mlp_sizes import copied_bytes
from embedlib.errors import EngineBuildError, EngineRunError
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.threads.closing import CLOSE_SECONDS, WorkerThread, check_ended
from embedlib.threads.starting import check_threads, starting_threads

LOADING_THREADS: Final = 5
"""The library has one for each of the layout's threads and lane, and some while it compiles. Where
it cannot start one of them it calls std::terminate, or says "Resource temporarily unavailable"."""
CALLERS_REQUEST: Final = 0
"""The request of queries that are computed on their callers' threads; then those of our threads."""


class OpenVINOEngine:
    """A model on the CPU. See `embedlib.engines.base.Engine`."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ArraysByRole,
        layout: Layout,
        cache: ModelCache | None = None,
    ) -> None:
        """Build and compile the graph.

        Args:
            spec: the model.
            weights: its weights; most are used in place, so their file must not change.
            layout: how they are laid out.
            cache: where compiled models are kept; None: nowhere.

        Raises:
            EngineBuildError: OpenVINO could not compile the graph.
        """
        check_threads(2 * layout.threads + LOADING_THREADS)
        self.limits = layout.limits(spec)
        lanes = [Lane.BULK] * layout.streams + [Lane.QUERY]
        bulk_threads = BulkThreads()
        try:
            with starting_threads():
                loaded = _load(spec, weights, layout, cache, bulk_threads)
            # The last compiled model is the one for queries; the first request is the callers'.
            self._models = CompiledModels(
                loaded,
                [-1, *(0 if lane is Lane.BULK else -1 for lane in lanes)],
                is_per_token=self.limits.is_per_token,
                padding=layout.padding(spec.encoder),
            )
        except RuntimeError as error:
            raise EngineBuildError(
                f"engine openvino: compiling failed: {last_line(error)}{_no_code()}"
            ) from error
        self._jobs: dict[Lane, _BatchQueue] = {lane: SimpleQueue() for lane in Lane}
        self._lanes = Lanes(bulk_threads.lower)
        self._threads = [
            WorkerThread(
                partial(_work, self._models, self._jobs[lane], number, self._lanes),
                f"embedlib-openvino-{lane.value}",
            )
            for number, lane in enumerate(lanes, CALLERS_REQUEST + 1)
        ]
        # Not `self`: the engine must be free to be collected.
        self._end = weakref.finalize(
            self, _end, self._models, list(self._jobs.values()), len(self._threads)
        )
        self._start()

    def _start(self) -> None:
        """Start the threads; if one cannot be started, let the others end."""
        for thread in self._threads:
            self._models.enter()
            try:
                thread.start()
            except BaseException:
                self._models.leave()
                self._end()
                raise

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> _BatchInFlight:
        """Start a batch and return at once."""
        job = _BatchInFlight(batch, on_done)
        self._jobs[batch.lane].put(job)
        return job

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch of the query lane on the calling thread, with the help of all cores."""
        with self._lanes.query():
            return self._models.compute(CALLERS_REQUEST, batch)

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Wait for what is in flight and free the compiled models and the weights.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds; it frees what it uses
                when it ends.
        """
        self._end()
        check_ended("engine openvino", self._threads, timeout)


def _load(
    spec: ModelSpec,
    weights: ArraysByRole,
    layout: Layout,
    cache: ModelCache | None,
    bulk_threads: BulkThreads,
) -> Loaded:
    """Return the compiled models: one for each of the layout's settings."""
    core = loaded_core()
    is_whole = cache is not None and cache.file is None
    options = layout.graph_options(core, spec.encoder, is_whole=is_whole)
    return load_models(
        core,
        spec,
        lambda: (build_stages(spec, weights, options), weights),
        layout.settings(spec),
        cache,
        asdict(options),
        mark=bulk_threads.mark,
        is_large=layout.is_large,
        copied_bytes=copied_bytes(spec.encoder) if options.mlp_parts > 1 else 0,
    )


_BatchQueue: TypeAlias = "SimpleQueue[_BatchInFlight | None]"
"""The batches of a lane; None ends a thread."""


class _BatchInFlight(InFlight):
    """A batch that can be cancelled."""

    def __init__(self, batch: Batch, on_done: Callable[[], None]) -> None:
        super().__init__(batch, on_done)
        self._changing = threading.Lock()
        """Guards the two fields below: the same request later computes another batch."""
        self._request: Request | None = None
        self._is_cancelled = False

    @contextmanager
    def computed_by(self, models: CompiledModels, number: int) -> Iterator[None]:
        """Hold the request of a number while it computes this batch, so that `cancel` can stop it.

        Raises:
            EngineRunError: if the batch was cancelled before it started.
        """
        with self._changing:
            if self._is_cancelled:
                raise EngineRunError("engine openvino: the batch was cancelled")
            self._request = models.request(number)  # no variable: a caller may keep the error
            self._request.begin()
        try:
            yield
        finally:
            with self._changing:
                self._request = None

    def cancel(self) -> None:
        """Stop after the operator that is running; see `CancellablePending`."""
        with self._changing:
            self._is_cancelled = True
            if self._request is not None:
                self._request.cancel()


def _work(models: CompiledModels, jobs: _BatchQueue, number: int, lanes: Lanes) -> None:
    """Compute batches one after the other with the request of this number.

    Takes no reference to the engine, so that the engine can be garbage-collected. OpenVINO's own
    callbacks are not used: from Python, they are not called when a batch fails.
    """
    while (job := jobs.get()) is not None:
        try:
            with job.computed_by(models, number):
                job.vectors = _compute(models, number, job.batch, lanes)
        except BaseException as error:  # for the caller of `result`
            job.error = error
        job.on_done()
        del job  # or the last batch would live until the next one
    models.leave()


def _compute(
    models: CompiledModels, number: int, batch: Batch, lanes: Lanes
) -> NDArray[np.float32]:
    """Return the vectors of a batch; one of the bulk lane gives way to queries."""
    if batch.lane is Lane.QUERY:
        with lanes.query():
            return models.compute(number, batch)
    with lanes.bulk():
        return models.compute(number, batch, lanes.give_way)


def _end(models: CompiledModels, queues: Iterable[_BatchQueue], num_threads: int) -> None:
    """Let every thread end after what is in its queue; the engine itself computes no more."""
    for jobs in queues:
        for _ in range(num_threads):
            jobs.put(None)
    models.leave()


def _no_code() -> str:
    """Return what to do where this process may write no machine code; empty where it may."""
    try:
        mmap(-1, PAGESIZE, prot=PROT_READ | PROT_WRITE | PROT_EXEC).close()
    except OSError as error:
        if isinstance(error, PermissionError):  # and no lack of memory
            return (
                "; the engine writes machine code, which this process may not run: allow it "
                "(MemoryDenyWriteExecute of systemd, execmem of SELinux)"
            )
    return ""
