"""Several engines as one: each batch goes to the engine with the fewest batches in flight.

One thread submits batches and collects results, so that every engine is called from one thread, and
a failed batch is tried on another engine before its caller gets an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

from embedlib.engines.base import (
    Batch,
    CancellablePending,
    Engine,
    InFlight,
    Lane,
    Pending,
    why_lost,
)
from embedlib.errors import CloseTimeoutError, EngineOutOfMemoryError, EngineRunError
from embedlib.threads.closing import CLOSE_SECONDS, WorkerThread, check_ended


class _BatchInFlight(InFlight):
    """A batch and its state."""

    pending: Pending

    def __init__(
        self, batch: Batch, on_done: Callable[[], None], cancel: Callable[[_BatchInFlight], None]
    ) -> None:
        super().__init__(batch, on_done)
        self._cancel = cancel
        self.is_cancelled = False
        self.failures: dict[_Device, BaseException] = {}
        """The errors of the engines that failed to compute it."""

    def cancel(self) -> None:
        """Stop computing as soon as possible."""
        self._cancel(self)


@dataclass(eq=False)
class _Device:
    """A device, its engine and the batches in flight there."""

    name: str
    engine: Engine
    is_dead: bool = False
    jobs: set[_BatchInFlight] = field(default_factory=set)

    def has_room(self, lane: Lane) -> bool:
        """Whether the engine accepts another batch of a lane now."""
        limits = self.engine.limits
        num_bulk = sum(job.batch.lane is Lane.BULK for job in self.jobs)
        if lane is Lane.BULK and num_bulk >= limits.max_inflight_bulk:
            return False
        return len(self.jobs) < limits.max_inflight_batches


class ManyEngines:
    """Engines of one model on several devices. See `embedlib.engines.base.Engine`.

    A batch that fails on one engine is tried on the others. If one of them computes it, the first
    engine is marked dead and gets no more batches. If none does, the batch is at fault and its
    caller gets an error: one batch cannot disable all engines, and the last is never marked dead.
    """

    def __init__(self, engines: Sequence[tuple[str, Engine]]) -> None:
        """Take over engines, which `close` closes.

        Args:
            engines: (device name, engine), all of one kind and one model.
        """
        limits = [engine.limits for _, engine in engines]
        assert len({limit.is_padded for limit in limits}) == 1, "engines of two kinds"
        self.limits = replace(
            limits[0],
            max_padding_tokens=min(limit.max_padding_tokens for limit in limits),
            max_batch_tokens=min(limit.max_batch_tokens for limit in limits),
            num_parallel_batches=sum(limit.num_parallel_batches for limit in limits),
            max_inflight_batches=sum(limit.max_inflight_batches for limit in limits),
            max_inflight_bulk=sum(limit.max_inflight_bulk for limit in limits),
            is_instant=False,
        )
        """What the scheduler plans with: the sum of all engines, dead or alive."""
        self._devices = [_Device(name, engine) for name, engine in engines]
        self._waiting: list[_BatchInFlight] = []
        self._is_stopping = False
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What the thread does next."""
        self._thread = WorkerThread(self._run, "embedlib-engines")
        self._thread.start()

    @property
    def lost(self) -> str | None:
        """Why no engine that still gets batches will compute any; None while one may."""
        alive = [device for device in self._devices if not device.is_dead]
        causes = [(device.name, why_lost(device.engine)) for device in alive]
        if any(cause is None for _, cause in causes):
            return None
        return "; ".join(f"{name}: {cause}" for name, cause in causes)

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Pending:
        """Start a batch and return at once."""
        job = _BatchInFlight(
            batch, on_done, lambda job: self._inbox.put(partial(self._cancel, job))
        )
        self._inbox.put(partial(self._waiting.append, job))
        return job

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Wait for the batches in flight and free all engines.

        Raises:
            CloseTimeoutError: a batch is still in flight after `timeout` seconds, or the `close` of
                an engine raises it.
        """
        self._inbox.put(self._stop)
        check_ended("the group of engines", [self._thread], timeout)
        late: CloseTimeoutError | None = None
        for device in self._devices:
            try:
                device.engine.close()
            except CloseTimeoutError as error:  # raised after the others are closed
                late = error
            except Exception as error:
                logging.getLogger(__name__).warning("closing %s failed: %s", device.name, error)
        if late is not None:
            raise late

    # Everything below runs on the thread.

    def _run(self) -> None:
        while not self._is_stopping or self._waiting or any(one.jobs for one in self._devices):
            self._inbox.get()()  # no variable: the last batch would stay in it until the next one
            self._hand_out()

    def _stop(self) -> None:
        self._is_stopping = True

    def _hand_out(self) -> None:
        """Start queued batches, queries first, while an engine has room."""
        while (job := self._next_job()) is not None:
            self._waiting.remove(job)
            able = self._able(job)
            if able:
                free = [device for device in able if device.has_room(job.batch.lane)]
                self._start(min(free, key=lambda device: len(device.jobs)), job)
            else:
                causes = "; ".join(
                    f"{device.name}: {error}" for device, error in job.failures.items()
                )
                self._end(job, EngineRunError(f"no engine could compute it: {causes}"))

    def _next_job(self) -> _BatchInFlight | None:
        """Return a batch that an engine can start, or that has no engine left to try."""
        for job in sorted(self._waiting, key=lambda job: job.batch.lane is Lane.BULK):
            able = self._able(job)
            if not able or any(device.has_room(job.batch.lane) for device in able):
                return job
        return None

    def _able(self, job: _BatchInFlight) -> list[_Device]:
        """Return the live engines that have not failed on this batch."""
        return [d for d in self._devices if not d.is_dead and d not in job.failures]

    def _start(self, device: _Device, job: _BatchInFlight) -> None:
        device.jobs.add(job)
        try:
            done = partial(self._collect, device, job)
            job.pending = device.engine.submit(job.batch, lambda: self._inbox.put(done))
        except BaseException as error:  # nothing an engine raises may end this thread
            device.jobs.remove(job)
            self._fail(device, job, error)

    def _collect(self, device: _Device, job: _BatchInFlight) -> None:
        if job not in device.jobs:  # an engine may call back twice
            return
        device.jobs.remove(job)
        try:
            job.vectors = job.pending.result()
        except BaseException as error:  # nothing an engine raises may end this thread
            self._fail(device, job, error)
            return
        finally:
            del job.pending  # whose callback holds this batch
        for failed, cause in job.failures.items():
            self._give_up(failed, cause)
        self._end(job, None)

    def _cancel(self, job: _BatchInFlight) -> None:
        job.is_cancelled = True
        if job in self._waiting:
            self._waiting.remove(job)
            self._end(job, EngineRunError("the batch was cancelled"))
        is_computing = any(job in device.jobs for device in self._devices)
        if is_computing and isinstance(job.pending, CancellablePending):
            job.pending.cancel()

    def _fail(self, device: _Device, job: _BatchInFlight, error: BaseException) -> None:
        """Queue a failed batch for the other engines; for out of memory its caller splits it."""
        if job.is_cancelled or isinstance(error, EngineOutOfMemoryError):
            self._end(job, error)
            return
        job.failures[device] = error
        self._waiting.append(job)

    def _end(self, job: _BatchInFlight, error: BaseException | None) -> None:
        job.error = error
        if error is not None and job.failures:
            error.__cause__ = next(iter(job.failures.values()))
        job.failures.clear()
        job.on_done()

    def _give_up(self, device: _Device, error: BaseException) -> None:
        alive = [other for other in self._devices if not other.is_dead]
        if device.is_dead or alive == [device]:
            return
        device.is_dead = True
        names = ", ".join(other.name for other in alive if other is not device)
        logging.getLogger(__name__).warning(
            "%s gets no more batches, it failed where another did not (%s); left: %s",
            device.name,
            error,
            names,
        )
