"""Runs batches of a model on an NVIDIA GPU; see the package's docstring for how.

It is long because its threads are one subject: they hand batches over and end together, under one
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from embedlib.engines.base import Batch, EngineLimits, Lane
from embedlib.engines.cuda.attention import AttentionName
from embedlib.engines.cuda.device import Event
from embedlib.engines.cuda.device_weights import HostWeights
from embedlib.engines.cuda.inputs import check
from embedlib.engines.cuda.jobs import BatchInFlight
from embedlib.engines.cuda.launcher import Launcher
from embedlib.engines.cuda.limits import default_batch_tokens
from embedlib.engines.cuda.loaded_model import CudaPrecision, LoadedModel
from embedlib.engines.cuda.prefixes import Prefixes
from embedlib.engines.cuda.turns import Turn, Turns
from embedlib.engines.first_tokens import batch_of_one, without_first
from embedlib.engines.gpu_errors import loss_of
from embedlib.errors import EngineRunError
from embedlib.models.spec import ModelSpec
from embedlib.threads.closing import CLOSE_SECONDS, WorkerThread, check_ended
from embedlib.threads.interrupts import SafeCondition, is_of_handler

MAX_INFLIGHT_BULK: Final = 2
"""One computing, one ready."""
MAX_INFLIGHT_QUERIES: Final = 2


class CudaEngine:
    """A model on an NVIDIA GPU. See `embedlib.engines.base.CallerEngine`.

    Three threads: one launches, one waits for the device so that more can be launched, one waits
    for vectors and calls back. `submit` and all of them share the `Turns` and nothing else. A query
    on its caller's thread is launched there, between two turns, and needs none of them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: HostWeights,
        *,
        precision: CudaPrecision,
        excluded: Collection[str] = (),
        device: str = "cuda",
        max_batch_tokens: int | None = None,
        max_inflight_bulk: int | None = None,
        memory_fraction: float = 0.9,
        attention: AttentionName = "auto",
        keeps_prefix: bool = True,
        bucket_tokens: Sequence[int] | None = None,
    ) -> None:
        """Load the weights and record the short batches.

        Args:
            spec: the model.
            weights: its weights by role, or those of an engine directory (`engine_directory`).
            precision: of the linear layers; with "fp8" everything else is bfloat16.
            excluded: roles of linear layers that "fp8" leaves in bfloat16. "pooled_rows" stands for
                the pooled rows of all layers (`models.compiled.pooled_rows`); it requires the
                weights of the original model.
            device: cuda, cuda:N, or cpu, where plain torch emulates the kernels, for tests.
            max_batch_tokens: token budget of a batch; None: by the size of the model, see `limits`.
            max_inflight_bulk: maximum bulk batches in flight; None: one computing and one ready.
            memory_fraction: share of the GPU's memory that may be used.
            attention: which kernel computes the attention of long batches, see `attention`; "own":
                our kernel.
            keeps_prefix: keep the keys of a prefix that many sequences share, see `prefixes`; turn
                it off in a benchmark that embeds the same text repeatedly.
            bucket_tokens: sizes of short batches to record; None: those of `short_batches`.

        Raises:
            EngineUnavailableError: the device does not exist.
            EngineUnsupportedError: the engine or the device cannot run this model or precision.
            EngineBuildError: the model does not fit into memory, or its first computation fails.
        """
        num_bulk = max_inflight_bulk or MAX_INFLIGHT_BULK
        max_tokens = max_batch_tokens or default_batch_tokens(spec.encoder)
        self.limits = EngineLimits(
            embedding_dim=spec.embedding_dim,
            is_per_token=not spec.has_pooling,
            is_padded=False,
            max_batch_tokens=max_tokens,
            num_parallel_batches=1,
            max_inflight_batches=num_bulk + MAX_INFLIGHT_QUERIES,
            max_inflight_bulk=num_bulk,
        )
        self._spec = spec
        with torch.inference_mode():  # as on the launching thread, whatever the caller's mode
            self._model = LoadedModel(
                spec,
                weights,
                precision=precision,
                excluded=excluded,
                device=device,
                max_batch_tokens=max_tokens,
                memory_fraction=memory_fraction,
                attention=attention,
                keeps_prefix=keeps_prefix,
                bucket_tokens=bucket_tokens,
            )
        self._prefixes = Prefixes(self._model.prefix_tokens)
        self._turns: Turns[BatchInFlight] = Turns()
        self._changed = SafeCondition()
        """Guards the turns, `_num_open` and `_is_closing`."""
        self._is_closing = False
        self._is_closed = False
        self._lost: str | None = None
        self._num_open = 0
        """Number of batches submitted and not done."""
        self._computing = threading.RLock()
        """Held by the thread whose query is computed there; `close` waits for it. Guards
        `_is_closed`. `with` on it is safe from Ctrl-C, as it is on no other lock."""
        self._launcher = Launcher(self._model)
        self._launched: SimpleQueue[tuple[Turn[BatchInFlight], Event] | None] = SimpleQueue()
        """Groups of long batches that the device has not finished."""
        self._leaving: SimpleQueue[BatchInFlight | None] = SimpleQueue()
        """Completely launched batches whose vectors are being copied."""
        self._warm: Future[None] = Future()
        """Resolves when the launching thread has warmed up, or with its error."""
        self._threads = [
            WorkerThread(target, f"embedlib-cuda-{name}")
            for name, target in (
                ("launch", self._launch_all),
                ("wait", self._wait_all),
                ("end", self._end_all),
            )
        ]
        try:
            for thread in self._threads:
                thread.start()
            self._warm.result()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> str | None:
        """Why no batch will be computed any more, and what to do; None while batches may be."""
        return self._lost

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> BatchInFlight:
        """Start a batch and return without waiting for it.

        Raises:
            EngineRunError: the GPU is lost, or the batch is not one of this model.
            EngineOutOfMemoryError: the batch is larger than the allocated memory.
        """
        job = self._job(batch, on_done)
        self._add(job)
        self._propose_prefix(batch)
        return job

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute a batch of the query lane on the calling thread, if it fits a recording.

        It waits for at most two groups of a long batch, as every query does (`turns`).

        Raises:
            EngineRunError: the GPU is lost, or the batch is not one of this model.
            EngineOutOfMemoryError: the batch is larger than the allocated memory.
        """
        done = threading.Event()
        with self._computing:
            job = self._job(batch, done.set)
            if job.prepared is None:
                try:
                    self._compute(job)
                finally:  # here, since Ctrl-C may come before the first line of `_compute`
                    self._prefixes.end_use(job.num_kept)
            else:
                self._add(job)
                done.wait()
            self._propose_prefix(batch)
            return job.result()

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Wait for what is in flight, then free the device.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds. The device is not freed,
                since the thread may use its memory; calling this again waits again.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        check_ended("engine cuda", self._threads, timeout)
        with self._computing:
            was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                self._model.close()

    def _job(self, batch: Batch, on_done: Callable[[], None]) -> BatchInFlight:
        """Return the job of a batch, prepared if it fits no recording.

        Raises:
            what `submit` raises.
        """
        if self._lost is not None:
            raise EngineRunError(f"engine cuda: {self._lost}")
        check(batch, self._spec)
        num_kept = self._prefixes.begin_use(batch)
        try:
            rest = without_first(batch, num_kept)
            self._model.check_room(rest)
            is_short = self._model.short.fits(rest)
            prepared = None if is_short else self._model.prepare(rest, num_kept)
            return BatchInFlight(rest, num_kept, on_done, prepared)
        except BaseException:
            self._prefixes.end_use(num_kept)
            raise

    def _propose_prefix(self, batch: Batch) -> None:
        """Compute and keep the prefix that a batch's vote has decided for, if it has."""
        ids = self._prefixes.propose(batch)
        if ids is None:
            return

        def keep() -> None:
            self._prefixes.keep(ids if job.error is None else ids[:0])

        prefix, num_kept = batch_of_one(ids), np.zeros(1, np.int32)
        prepared = self._model.prepare(prefix, num_kept, is_prefix=True)
        job = BatchInFlight(prefix, num_kept, keep, prepared, has_vectors=False)
        self._add(job)

    def _add(self, job: BatchInFlight) -> None:
        with self._changed:
            if job.prepared is None:
                self._turns.add_short(job)
            else:
                num_groups = len(job.prepared.groups)
                self._turns.add_long(job, num_groups, is_query=job.batch.lane is Lane.QUERY)
            self._num_open += 1
            self._changed.notify()

    # On a caller's thread.

    def _compute(self, job: BatchInFlight) -> None:
        """Launch a short batch and wait for it."""
        try:
            self._launcher.launch_here(job)
            assert job.arrival is not None, "it was launched; this is a bug in embedlib"
            job.arrival.synchronize()
        except Exception as error:  # raised by `result`
            if is_of_handler(error):
                raise
            job.error = error
            self._check_lost()

    # On the launching thread.

    def _launch_all(self) -> None:
        with torch.inference_mode():
            try:
                self._model.warm_up()
            except BaseException as error:  # for the thread that makes the engine
                self._warm.set_exception(error)
            else:
                self._warm.set_result(None)
                self._launch_turns()
        self._launched.put(None)
        self._leaving.put(None)

    def _launch_turns(self) -> None:
        while (turn := self._next_turn()) is not None:
            try:
                self._launcher.launch(turn)
                if turn.group is not None:
                    self._launched.put((turn, self._model.device.mark()))
            except BaseException as error:  # for the caller of `result`
                self._fail(turn, error)
            else:
                if turn.is_last:
                    self._leaving.put(turn.job)
            del turn  # or the last batch would live until the next one

    def _next_turn(self) -> Turn[BatchInFlight] | None:
        with self._changed:
            while (turn := self._turns.next()) is None:
                if self._is_closing and not self._num_open:
                    return None
                self._changed.wait()
            return turn

    def _fail(self, turn: Turn[BatchInFlight], error: BaseException) -> None:
        turn.job.error = error
        self._check_lost()
        with self._changed:
            self._turns.drop(turn)
        self._end(turn.job)

    # On the waiting thread.

    def _wait_all(self) -> None:
        while (item := self._launched.get()) is not None:
            turn, event = item
            try:
                event.synchronize()
            except BaseException as error:
                turn.job.error = error
                self._lose(error)
            with self._changed:
                self._turns.finish(turn)
                self._changed.notify()
            del item, turn  # or the last batch would live until the next one

    # On the ending thread.

    def _end_all(self) -> None:
        while (job := self._leaving.get()) is not None:
            assert job.arrival is not None, "all of it was launched; this is a bug in embedlib"
            try:
                job.arrival.synchronize()
            except BaseException as error:
                job.error = error
                self._lose(error)
            self._end(job)
            del job  # or the last batch would live until the next one

    # On any thread.

    def _check_lost(self) -> None:
        try:
            self._model.device.mark().synchronize()
        except Exception as lost:  # then the launch was not what failed
            if is_of_handler(lost):
                raise
            self._lose(lost)

    def _lose(self, error: BaseException) -> None:
        """Give the GPU up, if this error of waiting for it says that it is lost."""
        self._lost = self._lost or loss_of(error)

    # On the launching or the ending thread.

    def _end(self, job: BatchInFlight) -> None:
        job.on_device = None
        self._prefixes.end_use(job.num_kept)
        job.on_done()
        with self._changed:
            self._num_open -= 1
            self._changed.notify()
