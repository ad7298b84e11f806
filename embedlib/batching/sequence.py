"""The nouns of batching: a Job is one call, a TokenizedText is one of its texts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane

Vectors = NDArray[np.float32]


class Job:
    """The texts of one call on their way to one array.

    Rows arrive in any order, from the batch manager's thread; the future is resolved with the last
    one, or failed with the first error. A row is float32[D]; where the engine gives a vector for
    every token it is an object, float32[tokens, D].
    """

    def __init__(
        self, num_texts: int, embedding_dim: int | None, lane: Lane, first_row: int = 0
    ) -> None:
        self.lane = lane
        self.first_row = first_row
        """What row 0 is called in messages: a stream is many jobs."""
        self.future: Future[Vectors] = Future()
        self.num_done = 0
        self.truncated: list[tuple[int, int]] = []
        """(row as messages call it, number of tokens before the cut)."""
        self._vectors: NDArray[Any] = (
            np.empty(num_texts, object)
            if embedding_dim is None
            else np.zeros((num_texts, embedding_dim), np.float32)
        )
        self._windows_left: dict[int, int] = {}
        """Row to windows to come, of texts that were divided."""
        if num_texts == 0:
            self.future.set_result(self._vectors)

    @property
    def num_texts(self) -> int:
        """N."""
        return len(self._vectors)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more: done, failed or cancelled."""
        return self.future.done()

    def expect_windows(self, row: int, num_windows: int) -> None:
        """Take so many windows for a row; called before any of them is on its way."""
        self._windows_left[row] = num_windows

    def deliver(self, rows: Sequence[int], vectors: NDArray[Any]) -> None:
        """Take len(rows) rows; with the last one the future is resolved.

        A window's vector comes times its share of the text, and is added.
        """
        if not self._windows_left:
            self._vectors[rows] = vectors
            self.num_done += len(rows)
        else:
            for row, vector in zip(rows, vectors, strict=True):
                self._deliver_one(row, vector)
        if self.num_done == self.num_texts:
            with suppress(InvalidStateError):  # cancelled or failed meanwhile
                self.future.set_result(self._vectors)

    def _deliver_one(self, row: int, vector: NDArray[Any]) -> None:
        if row in self._windows_left:
            self._vectors[row] += vector
            self._windows_left[row] -= 1
        else:
            self._vectors[row] = vector
        self.num_done += self._windows_left.get(row, 0) == 0

    def fail(self, error: BaseException) -> None:
        """Give the waiting caller this error, unless it has an answer already."""
        with suppress(InvalidStateError):  # the first error is the one that is told
            self.future.set_exception(error)


@dataclass(eq=False)
class TokenizedText:
    """The token ids of one text."""

    job: Job
    row: int
    token_ids: list[int]
    num_prompt_tokens: int = 0
    num_type0_tokens: int | None = None
    """Tokens of a pair's first text, special tokens included; None: it is one text."""
    share: float = 1.0
    """Of its text, where that was divided into windows."""
    queued_at: float = 0.0
    """When it was tokenized, on the clock of the statistics."""

    @property
    def num_tokens(self) -> int:
        """Length, special tokens included."""
        return len(self.token_ids)


def pack(sequences: Sequence[TokenizedText], lane: Lane) -> Batch:
    """Lay B sequences one behind the other."""
    ends = accumulate(sequence.num_tokens for sequence in sequences)
    return Batch(
        lane=lane,
        token_ids=np.array([i for sequence in sequences for i in sequence.token_ids], np.int32),
        cu_seqlens=np.array([0, *ends], np.int32),
        num_prompt_tokens=np.array([s.num_prompt_tokens for s in sequences], np.int32),
        num_type0_tokens=np.array(
            [s.num_tokens if s.num_type0_tokens is None else s.num_type0_tokens for s in sequences],
            np.int32,
        ),
    )
