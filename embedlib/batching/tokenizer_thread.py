"""The thread that tokenizes bulk work ahead of the engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from embedlib.batching.sequence import Job, TokenizedText
from embedlib.errors import ClosedError

MICRO_BATCH_TEXTS = 64
"""Texts tokenized in one call: enough for every core, few enough that the engine starts soon."""

Tokenize = Callable[[Job, int, Sequence[Any]], list[TokenizedText]]
"""Makes the sequences of consecutive texts, or pairs, of a job; the number is their first row."""


@dataclass(frozen=True)
class _Chunk:
    """Consecutive texts of a job, waiting to be tokenized."""

    job: Job
    first_row: int
    texts: Sequence[Any]
    tokenize: Tokenize


class TokenizerThread:
    """Tokenizes bulk texts in the background, in the order they were given.

    At most `max_queued_texts` wait; `put` then blocks, so that a producer cannot outrun the engine.
    """

    def __init__(
        self,
        deliver: Callable[[list[TokenizedText]], None],
        *,
        max_queued_texts: int,
    ) -> None:
        self._deliver = deliver
        self._max_queued_texts = max_queued_texts
        self._chunks: deque[_Chunk] = deque()
        self._num_queued = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="embedlib-tokenizer", daemon=True)
        self._thread.start()

    def put(
        self,
        job: Job,
        first_row: int,
        texts: Sequence[Any],
        tokenize: Tokenize,
        *,
        may_wait: bool = True,
    ) -> None:
        """Queue consecutive texts of a job; blocks while the queue is full, if it may.

        Raises:
            ClosedError: closed, before or while waiting.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or not may_wait or self._num_queued < self._max_queued_texts
            )
            if self._is_closed:
                raise ClosedError("this model is closed; load it again")
            self._chunks.append(_Chunk(job, first_row, texts, tokenize))
            self._num_queued += len(texts)
            self._changed.notify_all()

    @property
    def is_own_thread(self) -> bool:
        """Whether the tokenizer thread is the one that asks."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """Fail what waits, let blocked callers go, join the thread."""
        with self._changed:
            self._is_closed = True
            waiting = list(self._chunks)
            self._chunks.clear()
            self._changed.notify_all()
        for chunk in waiting:
            chunk.job.fail(ClosedError("the model was closed before this was computed"))
        # A future's callback, or the garbage collector, may close a model from this thread.
        if not self.is_own_thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._chunks)
                if self._is_closed:
                    return
                chunk = self._chunks.popleft()
                self._num_queued -= len(chunk.texts)
                self._changed.notify_all()
            self._handle(chunk)
            del chunk  # or the last job, and its vectors, would live until the next one

    def _handle(self, chunk: _Chunk) -> None:
        if chunk.job.is_over:
            return
        try:
            self._deliver(chunk.tokenize(chunk.job, chunk.first_row, chunk.texts))
        except BaseException as error:  # the thread lives on; the caller gets the cause
            chunk.job.fail(error)
