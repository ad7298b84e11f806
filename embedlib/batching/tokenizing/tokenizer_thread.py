"""The thread that tokenizes bulk work ahead of the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from embedlib.batching.outcome import Outcome
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.threads.closing import WorkerThread, closed_early_error, closed_error
from embedlib.threads.interrupts import SafeCondition

Tokenize = Callable[[Job, int, Sequence[Any]], Sequence[TokenizedText]]
"""Makes the sequences of consecutive texts or pairs of a job; the int is the row of the first."""


@dataclass
class _MicroBatch:
    """Consecutive texts of a job, which are tokenized together."""

    job: Job
    first_row: int
    texts: Sequence[Any]
    tokenize: Tokenize
    tell: Callable[[], object] = lambda: None
    """Called when it was queued, if it had to wait for room."""
    is_queued: bool = False


class TokenizerThread:
    """Tokenizes bulk texts in the background, in the order in which they were queued.

    While `max_queued_texts` are queued, producers wait, so that none can outrun the engine. They
    get room in the order in which they came, and each for one micro-batch at a time.
    """

    def __init__(
        self,
        send: Callable[[Sequence[TokenizedText]], None],
        *,
        max_queued_texts: int,
    ) -> None:
        self._send = send
        self._max_queued_texts = max_queued_texts
        self._queued: deque[_MicroBatch] = deque()
        self._num_queued = 0
        self._offers: deque[_MicroBatch] = deque()
        """Those that wait for room; there is none while there is room."""
        self._is_closed = False
        self._changed = SafeCondition()
        self.thread = WorkerThread(self._run, "embedlib-tokenizer")
        self.thread.start()

    def put(
        self,
        job: Job,
        first_row: int,
        texts: Sequence[Any],
        tokenize: Tokenize,
        *,
        may_wait: bool = True,
    ) -> None:
        """Queue consecutive texts of a job; blocks while the queue is full, if `may_wait`.

        Drops the texts if the job is over; `release_when_over` wakes a caller that is blocked then.

        Raises:
            ClosedError: closed, before or while waiting.
        """
        with self._changed:
            self._check_open()
            offer = _MicroBatch(job, first_row, texts, tokenize)
            if not may_wait:
                self._queue(offer)
                return
            self._offer(offer)
            self._changed.wait_for(lambda: offer.is_queued or self._is_closed or job.is_over)
            if not offer.is_queued:
                self._check_open()

    def offer(
        self,
        job: Job,
        first_row: int,
        texts: Sequence[Any],
        tokenize: Tokenize,
        tell: Callable[[], object],
    ) -> bool:
        """Queue consecutive texts of a job as `put` does, and return at once.

        Args:
            job: of the texts.
            first_row: row of the first.
            texts: what to queue.
            tokenize: makes the sequences.
            tell: called once if they have to wait, when they are queued, on another thread. It
                must not raise. If they never will be, the job fails.

        Returns:
            Whether they are queued already.

        Raises:
            ClosedError: closed.
        """
        with self._changed:
            self._check_open()
            offer = _MicroBatch(job, first_row, texts, tokenize, tell)
            self._offer(offer)
            return offer.is_queued

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_error()

    def _offer(self, offer: _MicroBatch) -> None:
        if self._offers or self._num_queued >= self._max_queued_texts:
            self._offers.append(offer)
        else:
            self._queue(offer)

    def _queue(self, offer: _MicroBatch) -> None:
        offer.is_queued = True
        if not offer.job.is_over:
            self._queued.append(offer)
            self._num_queued += len(offer.texts)
        self._changed.notify_all()

    def release_when_over(self, job: Job) -> None:
        """Wake a caller that is blocked in `put` when its job fails or is cancelled."""
        # Without a reference to this object: callers may keep futures.
        job.future.add_done_callback(partial(_wake, self._changed))

    def stop(self) -> None:
        """Fail queued jobs, wake blocked callers and let the thread end; never blocks."""
        with self._changed:
            self._is_closed = True
            left = [*self._queued, *self._offers]
            self._queued.clear()
            self._offers.clear()
            self._changed.notify_all()
        for micro_batch in left:
            micro_batch.job.fail(closed_early_error())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._queued)
                if self._is_closed:
                    return
                micro_batch = self._queued.popleft()
                self._num_queued -= len(micro_batch.texts)
                taken = self._queue_offers()
                self._changed.notify_all()
            while taken:  # a name for one of them would keep the last job, as the one below
                taken.popleft().tell()
            self._handle(micro_batch)
            del micro_batch  # or the last job, and its vectors, would live until the next one

    def _queue_offers(self) -> deque[_MicroBatch]:
        """Queue what waits, as far as there is room; return it, to be told without the lock."""
        taken: deque[_MicroBatch] = deque()
        while self._offers and self._num_queued < self._max_queued_texts:
            offer = self._offers.popleft()
            self._queue(offer)
            taken.append(offer)
        return taken

    def _handle(self, micro_batch: _MicroBatch) -> None:
        if micro_batch.job.is_over:
            return
        try:
            self._send(
                micro_batch.tokenize(micro_batch.job, micro_batch.first_row, micro_batch.texts)
            )
        except BaseException as error:  # the thread continues; the caller gets the error
            micro_batch.job.fail(error)


def _wake(changed: SafeCondition, _: Outcome[Any]) -> None:
    with changed:
        changed.notify_all()
