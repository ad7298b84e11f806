"""The batch manager: one thread that keeps the engine busy and gives every job its rows.

It alone owns the scheduler and calls the engine. New sequences and finished batches arrive in the
same inbox, so it waits in one place and never polls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.results import check_shape, fail, resolve
from embedlib.batching.scheduler import Scheduler
from embedlib.batching.sequence import TokenizedText, pack
from embedlib.batching.stats import Meter
from embedlib.batching.twins import Distinct
from embedlib.engines.base import CancellablePending, Engine, Lane, Pending
from embedlib.errors import (
    ClosedError,
    EngineOutOfMemoryError,
    QueueFullError,
)
from embedlib.threads.closing import WorkerThread, closed_early_error, closed_error
from embedlib.threads.interrupts import SafeCondition


class _InFlight:
    """A batch that was submitted, and the sequences that its result belongs to."""

    pending: Pending

    def __init__(self, sequences: list[TokenizedText], lane: Lane, submitted_at: float) -> None:
        self.sequences = sequences
        self.distinct = Distinct.of(sequences)
        self.lane = lane
        self.submitted_at = submitted_at
        self.finished_at = submitted_at

    def forget(self) -> None:
        """Drop the sequences, and the engine's batch, whose callback holds this one."""
        self.sequences = []
        self.distinct = Distinct((), ())
        del self.pending


class _Stop:
    """Put into the inbox by `stop`."""


class _Cancelled:
    """Put into the inbox when queries were cancelled; the inbox holds it at most once."""

    is_in_inbox = False

    def notify(self, inbox: SimpleQueue[Any]) -> None:
        """Put this into the inbox: a query was cancelled."""
        if not self.is_in_inbox:
            self.is_in_inbox = True
            inbox.put(self)


class BatchManager:
    """Batches sequences and runs them on an engine, queries first."""

    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        *,
        max_queued_texts: int,
        policy: BatchingPolicy = DEFAULT_POLICY,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            engine: computes the batches.
            meter: collects the statistics.
            max_queued_texts: limit of each lane's queue.
            policy: the numbers of the scheduler.
            at_end: called last on the manager's thread, once nothing is in flight. It frees the
                engine there: then `close` can have a time limit even if the engine's `close` has
                none, and needs no new thread, which could not start at the end of the program.
        """
        self._engine = engine
        self._limits = engine.limits
        self._meter = meter
        self._scheduler = Scheduler(engine.limits, policy)
        self._inflight: list[_InFlight] = []
        self._inbox: SimpleQueue[list[TokenizedText] | _InFlight | _Cancelled | _Stop] = (
            SimpleQueue()
        )
        self._cancelled = _Cancelled()
        self._max_queued = max_queued_texts
        self._num_inbox = dict.fromkeys(Lane, 0)
        self._num_scheduled = dict.fromkeys(Lane, 0)
        self._num_computing_queries = 0
        self._refusal: ClosedError | None = None
        """Raised for every new sequence; None: sequences are accepted."""
        self._changed = SafeCondition()
        """Guards the counts and `_refusal`, and tells of changes of `_is_stopped`: all state that
        is shared with callers."""
        self._is_stopped = False
        """Whether `stop` was called; until then a thread that failed does not end."""
        self._at_end = at_end
        self._end_error: BaseException | None = None
        """What `at_end` raised; read once the thread has ended."""
        self.thread = WorkerThread(self._run, "embedlib-batches")
        self.thread.start()

    def add_bulk(self, sequences: Sequence[TokenizedText]) -> None:
        """Queue sequences of the bulk lane; blocks while the queue is full.

        Raises:
            ClosedError: closed, before or while waiting.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._refusal or self._num_queued(Lane.BULK) < self._max_queued
            )
            self._accept(Lane.BULK, sequences)

    def add_queries(self, sequences: Sequence[TokenizedText]) -> None:
        """Queue sequences of the query lane, of one job or several; never blocks.

        Raises:
            QueueFullError: the queue is full.
            ClosedError: closed.
        """
        # Without a reference to the manager: callers may keep futures.
        notify = partial(self._cancelled.notify, self._inbox)
        for sequence in sequences:
            sequence.job.future.if_cancelled(notify)
        # Last, since it wakes the manager, which wants the interpreter from this thread then.
        with self._changed:
            if self._refusal is None and not self.has_room(len(sequences)):
                raise QueueFullError(
                    f"{self._num_queued(Lane.QUERY)} queries wait already and max_queued_texts is "
                    f"{self._max_queued}, where a pair of rank counts as one; try again later, "
                    "send fewer at once or raise it"
                )
            self._accept(Lane.QUERY, sequences)

    def _accept(self, lane: Lane, sequences: Sequence[TokenizedText]) -> None:
        if self._refusal is not None:  # a new one: its traceback keeps what the caller holds
            raise ClosedError(str(self._refusal)) from self._refusal.__cause__
        self._num_inbox[lane] += len(sequences)
        self._inbox.put(list(sequences))

    def _num_queued(self, lane: Lane) -> int:
        return self._num_inbox[lane] + self._num_scheduled[lane]

    def has_room(self, num_queries: int) -> bool:
        """Return whether the queue of queries takes so many more; a moment later it may not."""
        num_queued = self._num_queued(Lane.QUERY)
        # An empty queue accepts a call of any size: trying again later would not help.
        return num_queued == 0 or num_queued + num_queries <= self._max_queued

    @property
    def failure(self) -> str | None:
        """Why the thread has ended before `stop`, which only a bug makes it do; None: it runs."""
        return None if self._refusal is None or self._is_stopped else str(self._refusal)

    @property
    def has_queries(self) -> bool:
        """Whether queries wait or are being computed."""
        # Without the lock: a signal handler may interrupt this and close the model.
        return self._num_queued(Lane.QUERY) + self._num_computing_queries > 0

    def stop(self) -> None:
        """Reject new sequences, wake blocked producers and let the thread end; never blocks.

        The thread fails queued jobs, and finishes the batches in flight that are still wanted.
        """
        self._is_stopped = True
        self._refuse(closed_error())  # wakes who waits for it
        self._inbox.put(_Stop())

    def raise_end_error(self) -> None:
        """Raise the error that `at_end` raised, if any; only the first call raises it."""
        error, self._end_error = self._end_error, None
        if error is not None:
            raise error

    def _refuse(self, refusal: ClosedError) -> None:
        with self._changed:
            if self._refusal is None:
                self._refusal = refusal
            self._changed.notify_all()

    # Everything below runs on the manager's thread.

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # a bug: every open future fails with it
            refusal = ClosedError(f"this model has stopped: {error}")
            refusal.__cause__ = error
            self._refuse(refusal)
            self._fail_everything(error)
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped)
        try:
            self._at_end()
        except BaseException as error:  # raised on the thread that closes the model
            self._end_error = error

    def _serve(self) -> None:
        is_stopping = False
        while self._inflight or not is_stopping:
            message = self._inbox.get()
            if isinstance(message, _Stop):
                is_stopping = True
                self._fail_waiting(closed_early_error())
                self._cancel_unwanted()
            elif isinstance(message, _InFlight):
                if message in self._inflight:  # an engine may call `on_done` twice
                    self._resolve(message)
                    self._inflight.remove(message)
                    message.forget()  # or an engine that keeps the callback keeps the jobs
            elif isinstance(message, _Cancelled):
                message.is_in_inbox = False
                self._scheduler.drop_cancelled_queries()
            else:
                self._hand(message, self._scheduler.add)
            if self._refusal is None:  # else it is closing and starts no batch
                self._fill_engine()
            elif is_stopping:
                self._fail_waiting(closed_early_error())  # halves of a batch that ran out of memory
            self._publish(message if isinstance(message, list) else [])
            del message  # or the last job, and its vectors, would live until the next one

    def _hand(self, sequences: list[TokenizedText], take: Callable[[Any], None]) -> None:
        try:
            take(sequences)
        except BaseException:  # a bug: they are nowhere else, and fail behind the refusal of more
            self._inbox.put(sequences)
            raise

    def _fail_waiting(self, error: BaseException) -> None:
        """Fail the jobs of all scheduled sequences."""
        for sequence in self._scheduler.clear():
            sequence.job.fail(error)

    def _fail_everything(self, error: BaseException) -> None:
        """Fail the jobs of all sequences: scheduled, in flight and in the inbox."""
        self._fail_waiting(error)
        left = [sequence for batch in self._inflight for sequence in batch.sequences]
        while not self._inbox.empty():
            message = self._inbox.get()
            left += message if isinstance(message, list) else []
        for sequence in left:
            sequence.job.fail(error)

    def _fill_engine(self) -> None:
        while True:
            num_queries = sum(batch.lane is Lane.QUERY for batch in self._inflight)
            sequences = self._scheduler.next_batch(num_queries, len(self._inflight) - num_queries)
            if not sequences:
                return
            self._hand(sequences, self._submit)

    def _cancel_unwanted(self) -> None:
        """Cancel batches whose jobs are all over: on a large model each takes seconds."""
        for batch in self._inflight:
            is_wanted = any(not sequence.job.is_over for sequence in batch.sequences)
            if isinstance(batch.pending, CancellablePending) and not is_wanted:
                batch.pending.cancel()

    def _publish(self, received: list[TokenizedText]) -> None:
        """Update the counts of queued sequences and wake blocked producers."""
        with self._changed:
            if received:
                self._num_inbox[received[0].job.lane] -= len(received)
            for lane in self._num_scheduled:
                self._num_scheduled[lane] = self._scheduler.num_waiting(lane)
            self._num_computing_queries = sum(batch.lane is Lane.QUERY for batch in self._inflight)
            self._changed.notify_all()

    def _submit(self, sequences: list[TokenizedText]) -> None:
        lane = sequences[0].job.lane
        now = self._meter.clock()

        def on_done() -> None:
            inflight.finished_at = self._meter.clock()
            self._inbox.put(inflight)

        queued_s = sum(now - sequence.queued_at for sequence in sequences)
        for sequence in sequences:
            sequence.job.note_submitted(now)
        self._meter.batch_submitted(queued_s, lane is Lane.QUERY)
        try:
            inflight = _InFlight(sequences, lane, now)
            engine_lane = self._scheduler.engine_lane_for(sequences, len(self._inflight))
            batch = pack(inflight.distinct.sequences, engine_lane)
            inflight.pending = self._engine.submit(batch, on_done)
        except BaseException as error:  # nothing an engine raises may end this thread
            self._meter.batch_over(0.0)
            self._recover(sequences, error)
        else:
            self._inflight.append(inflight)

    def _resolve(self, batch: _InFlight) -> None:
        self._meter.batch_over(batch.finished_at - batch.submitted_at)
        sequences, distinct = batch.sequences, batch.distinct
        try:
            vectors = batch.pending.result()
            check_shape(vectors, distinct.sequences, self._limits)
        except BaseException as error:  # nothing an engine raises may end this thread
            self._recover(sequences, error)
            return
        resolve(sequences, vectors, self._limits, self._meter, distinct)

    def _recover(self, sequences: list[TokenizedText], error: BaseException) -> None:
        """Split a batch that ran out of memory; fail the jobs of any other."""
        # The latter of numpy, where a batch or its result is laid out.
        if isinstance(error, (EngineOutOfMemoryError, MemoryError)) and len(sequences) > 1:
            self._scheduler.retry(sequences)
            return
        fail(sequences, error, self._meter)
