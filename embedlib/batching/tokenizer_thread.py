"""The thread that tokenizes bulk work ahead of the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from embedlib.batching.outcome import Outcome
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.closing import CLOSE_SECONDS, WorkerThread, check_ended
from embedlib.errors import ClosedError
from embedlib.interrupts import SafeCondition

Tokenize = Callable[[Job, int, Sequence[Any]], Sequence[TokenizedText]]
"""Makes the sequences of consecutive texts or pairs of a job; the int is the row of the first."""


@dataclass(frozen=True)
class _Chunk:
    """Consecutive texts of a job in the queue."""

    job: Job
    first_row: int
    texts: Sequence[Any]
    tokenize: Tokenize


class TokenizerThread:
    """Tokenizes bulk texts in the background, in the order in which they were queued.

    `put` blocks while `max_queued_texts` are queued, so that a producer cannot outrun the engine.
    """

    def __init__(
        self,
        send: Callable[[Sequence[TokenizedText]], None],
        *,
        max_queued_texts: int,
    ) -> None:
        self._send = send
        self._max_queued_texts = max_queued_texts
        self._chunks: deque[_Chunk] = deque()
        self._num_queued = 0
        self._is_closed = False
        self._changed = SafeCondition()
        self._when_room: list[Callable[[], object]] = []
        """Called once there may be room, or never will be."""
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
            self._changed.wait_for(
                lambda: (
                    self._is_closed
                    or not may_wait
                    or self._num_queued < self._max_queued_texts
                    or job.is_over
                )
            )
            if self._is_closed:
                raise ClosedError("this model is closed; load it again")
            if job.is_over:
                return
            self._add(_Chunk(job, first_row, texts, tokenize))

    def put_if_room(
        self,
        job: Job,
        first_row: int,
        texts: Sequence[Any],
        tokenize: Tokenize,
        when_room: Callable[[], object],
    ) -> bool:
        """Queue consecutive texts of a job as `put` does, or return False if the queue is full.

        Args:
            job: of the texts.
            first_row: row of the first.
            texts: what to queue.
            tokenize: makes the sequences.
            when_room: called if the queue is full, once there may be room, on the thread that makes
                it. It must not raise.

        Raises:
            ClosedError: closed.
        """
        with self._changed:
            if self._is_closed:
                raise ClosedError("this model is closed; load it again")
            if job.is_over:
                return True
            if self._num_queued >= self._max_queued_texts:
                self._when_room.append(when_room)
                return False
            self._add(_Chunk(job, first_row, texts, tokenize))
            return True

    def _add(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self._num_queued += len(chunk.texts)
        self._changed.notify_all()

    def release_when_over(self, job: Job) -> None:
        """Wake a caller that is blocked in `put` when its job fails or is cancelled."""
        # Without a reference to this object: callers may keep futures.
        job.future.add_done_callback(partial(_wake, self._changed))

    def stop(self) -> None:
        """Fail queued jobs, wake blocked callers and let the thread end; never blocks."""
        with self._changed:
            self._is_closed = True
            waiting = list(self._chunks)
            self._chunks.clear()
            self._changed.notify_all()
            when_room = self._take_when_room()
        for tell in when_room:
            tell()
        for chunk in waiting:
            chunk.job.fail(ClosedError("the model was closed before this was computed"))

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Call `stop` and join the thread.

        Raises:
            CloseTimeoutError: the thread still runs after `timeout` seconds.
        """
        self.stop()
        check_ended("the tokenizer", [self.thread], timeout, "a text is still being tokenized")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._chunks)
                if self._is_closed:
                    return
                chunk = self._chunks.popleft()
                self._num_queued -= len(chunk.texts)
                self._changed.notify_all()
                when_room = self._take_when_room()
            for tell in when_room:
                tell()
            self._handle(chunk)
            del chunk  # or the last job, and its vectors, would live until the next one

    def _take_when_room(self) -> list[Callable[[], object]]:
        # All of them: of one that was cancelled meanwhile the others would not hear.
        taken, self._when_room = self._when_room, []
        return taken

    def _handle(self, chunk: _Chunk) -> None:
        if chunk.job.is_over:
            return
        try:
            self._send(chunk.tokenize(chunk.job, chunk.first_row, chunk.texts))
        except BaseException as error:  # the thread continues; the caller gets the error
            chunk.job.fail(error)


def _wake(changed: SafeCondition, _: Outcome[Any]) -> None:
    with changed:
        changed.notify_all()
