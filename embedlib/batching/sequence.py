"""The nouns of batching: a Job is one call, a Sequence is one of its texts as token ids."""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.errors import EngineRunError

Vectors = NDArray[np.float32]


class Job:
    """The texts of one call on their way to one array.

    Rows arrive in any order, from the batch manager's thread; the future is resolved with the last
    one, or failed with the first error.
    """

    def __init__(self, num_texts: int, embedding_dim: int, lane: Lane, first_row: int = 0) -> None:
        self.lane = lane
        self.first_row = first_row
        """What row 0 is called in messages: a stream is many jobs."""
        self.future: Future[Vectors] = Future()
        self.num_done = 0
        self.truncated: list[tuple[int, int]] = []
        """(row as messages call it, number of tokens before the cut)."""
        self._vectors: Vectors = np.empty((num_texts, embedding_dim), np.float32)
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

    def deliver(self, rows: Items[int], vectors: Vectors) -> None:
        """Take float32[len(rows), D]; with the last row the future is resolved."""
        self._vectors[rows] = vectors
        self.num_done += len(rows)
        if self.num_done == self.num_texts:
            with suppress(InvalidStateError):  # cancelled or failed meanwhile
                self.future.set_result(self._vectors)

    def fail(self, error: BaseException) -> None:
        """Give the waiting caller this error, unless it has an answer already."""
        with suppress(InvalidStateError):  # the first error is the one that is told
            self.future.set_exception(error)


@dataclass(eq=False)
class Sequence:
    """The token ids of one text."""

    job: Job
    row: int
    token_ids: list[int]
    num_prompt_tokens: int = 0
    num_first_tokens: int | None = None
    """Tokens of a pair's first text, special tokens included; None: it is one text."""
    queued_at: float = 0.0
    """When it was tokenized, on the clock of the statistics."""

    @property
    def num_tokens(self) -> int:
        """Length, special tokens included."""
        return len(self.token_ids)


def pack(sequences: Items[Sequence], lane: Lane) -> Batch:
    """Lay B sequences one behind the other."""
    ends = accumulate(sequence.num_tokens for sequence in sequences)
    return Batch(
        lane=lane,
        token_ids=np.array([i for sequence in sequences for i in sequence.token_ids], np.int32),
        cu_seqlens=np.array([0, *ends], np.int32),
        num_prompt_tokens=np.array([s.num_prompt_tokens for s in sequences], np.int32),
        num_first_tokens=np.array(
            [s.num_tokens if s.num_first_tokens is None else s.num_first_tokens for s in sequences],
            np.int32,
        ),
    )


def deliver(sequences: Items[Sequence], vectors: Vectors) -> None:
    """Give each job its rows of float32[B, D]; a row that is not finite fails its job instead."""
    by_job: dict[Job, list[int]] = {}
    for index, sequence in enumerate(sequences):
        by_job.setdefault(sequence.job, []).append(index)
    finite = np.isfinite(vectors).min(axis=1, initial=True).tolist()
    for job, indices in by_job.items():
        bad = [index for index in indices if not finite[index]]
        if bad:
            job.fail(_not_finite(sequences[bad[0]]))
        else:
            job.deliver([sequences[index].row for index in indices], vectors[indices])


def _not_finite(sequence: Sequence) -> EngineRunError:
    row = sequence.job.first_row + sequence.row
    return EngineRunError(
        f"the vector of text {row} ({sequence.num_tokens} tokens) is not finite; "
        "the weights or the precision do not fit this text, no vector was returned"
    )
