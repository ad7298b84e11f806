"""The nouns of batching: a Job is one call, a TokenizedText is one of its texts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.outcome import Outcome
from embedlib.batching.usage import Usage
from embedlib.engines.base import Batch, Lane
from embedlib.vectors.arrays import Vectors


class Job:
    """The texts of one call, from tokenizing to the array of their vectors.

    Rows arrive in any order; the last one resolves the future, the first error fails it. A row is
    float32[D], or an object: per-token vectors float32[tokens, D], or the dict of a sparse vector.

    A job passes through three threads, and no lock guards its fields: each has one owner, the only
    thread that writes it. The *caller* makes the job. The *tokenizing* thread is the caller for
    queries and the tokenizer thread for bulk; it receives the job through a locked queue. The
    *resolving* thread is the batch manager's, or the caller where it computes its own query; it
    receives the job's sequences through the batch manager's inbox, after all writes of the
    tokenizing thread. Settling the future, which takes no lock, publishes all fields to the caller,
    which reads them after that. Only `num_done` is read earlier.
    """

    def __init__(
        self,
        num_texts: int,
        embedding_dim: int | None,
        lane: Lane,
        first_row: int = 0,
        opened_at: float = 0.0,
        rows_per_text: int = 1,
    ) -> None:
        self.lane = lane
        """Caller's; constant."""
        self.first_row = first_row
        """Caller's; constant: row of the first text in messages, since a stream is many jobs."""
        self.rows_per_text = rows_per_text
        """Caller's; constant: consecutive rows of one text of the caller, in zero-shot
        classification the pairs with its labels."""
        self.future: Outcome[Vectors] = Outcome()
        """Shared. The resolving thread resolves it, any thread may fail or cancel it."""
        self.truncated: list[tuple[int, int]] = []
        """Tokenizing thread's: (row as in messages, number of tokens before truncation)."""
        self.num_done = 0
        """Resolving thread's. A progress bar may read it any time: assigning an int is atomic."""
        self._vectors: NDArray[Any] = (
            np.empty(num_texts, object)
            if embedding_dim is None
            else np.zeros((num_texts, embedding_dim), np.float32)
        )
        """Resolving thread's, until the future is resolved; then the caller's."""
        self._windows_left: dict[int, int] = {}
        """Resolving thread's: row to missing windows, of divided texts that are partly computed."""
        self._opened_at = opened_at
        """Caller's; constant. This and the following times are on the clock of the statistics."""
        self._num_tokens = 0
        """Tokenizing thread's."""
        self._tokenize_seconds = 0.0
        """Tokenizing thread's."""
        self._queued_at: float | None = None
        """Tokenizing thread's: when the first sequence was queued."""
        self._submitted_at: float | None = None
        """Resolving thread's, which also submits: when the first sequence was."""
        self._done_at: float | None = None
        """Resolving thread's: when the last row was returned."""
        if num_texts == 0:
            self.future.set_result(self._vectors)

    @property
    def num_texts(self) -> int:
        """Number of texts in the call."""
        return len(self._vectors)

    @property
    def is_over(self) -> bool:
        """Whether the job needs no more work: it is resolved, failed or cancelled."""
        return self.future.done()

    # On the tokenizing thread.

    def add_tokenized(
        self,
        num_tokens: int,
        truncated: Sequence[tuple[int, int]],
        seconds: float,
        now: float,
    ) -> None:
        """Record the sequences of consecutive texts that are about to be queued.

        Args:
            num_tokens: all their tokens.
            truncated: (row as in messages, number of tokens before truncation).
            seconds: how long tokenizing took.
            now: when the sequences are queued.
        """
        self.truncated += truncated
        self._num_tokens += num_tokens
        self._tokenize_seconds += seconds
        if self._queued_at is None:
            self._queued_at = now

    # On the resolving thread.

    def note_submitted(self, now: float) -> None:
        """Record when the first sequences were submitted; later calls change nothing."""
        if self._submitted_at is None:
            self._submitted_at = now

    def resolve(
        self, sequences: Sequence[TokenizedText], rows: NDArray[Any], now: float = 0.0
    ) -> None:
        """Take the rows of sequences; the last one resolves the future.

        Args:
            sequences: of this job.
            rows: one for each. The rows of windows are already multiplied by their share of the
                text, and are added up.
            now: when the engine returned them.
        """
        if len(sequences) == 1:
            self._resolve_one(sequences[0], rows[0])
        elif all(sequence.num_windows == 1 for sequence in sequences):
            self._vectors[[sequence.row for sequence in sequences]] = rows
            self.num_done += len(sequences)
        else:
            for sequence, row in zip(sequences, rows, strict=True):
                self._resolve_one(sequence, row)
        self._end_if_done(now)

    def resolve_rows(self, first_row: int, rows: NDArray[np.float32], now: float) -> None:
        """Take the rows of whole texts, float32[N, D], from `first_row` on; else as `resolve`."""
        self._vectors[first_row : first_row + len(rows)] = rows
        self.num_done += len(rows)
        self._end_if_done(now)

    def _end_if_done(self, now: float) -> None:
        if self.num_done == self.num_texts:
            self._done_at = now
            self.future.set_result(self._vectors)  # unless cancelled or failed meanwhile

    def _resolve_one(self, sequence: TokenizedText, vector: NDArray[Any]) -> None:
        row = sequence.row
        if sequence.num_windows == 1:
            self._vectors[row] = vector
            self.num_done += 1
            return
        self._vectors[row] += vector
        left = self._windows_left.pop(row, sequence.num_windows) - 1
        if left:
            self._windows_left[row] = left
        else:
            self.num_done += 1

    # On any thread.

    def fail(self, error: BaseException) -> None:
        """Fail the future, unless it is resolved, failed or cancelled already."""
        self.future.set_exception(error)

    def message_row(self, row: int) -> int:
        """Return the number by which messages name the text of a row."""
        return self.first_row + row // self.rows_per_text

    def add_to(self, usage: Usage) -> None:
        """Add the counts and times of this job; the caller's thread does so once it is over."""
        usage.num_texts += len(self._vectors) // self.rows_per_text
        usage.num_tokens += self._num_tokens
        usage.truncated += self.truncated
        usage.tokenize_seconds += self._tokenize_seconds
        if self._queued_at is None or self._submitted_at is None or self._done_at is None:
            return  # it had no text
        usage.queue_seconds += self._submitted_at - self._queued_at
        usage.compute_seconds += self._done_at - self._submitted_at
        usage.total_seconds += self._done_at - self._opened_at


@dataclass(eq=False)
class TokenizedText:
    """A sequence: the token ids of one text, of a pair, or of one window of a divided text."""

    job: Job
    row: int
    token_ids: list[int]
    num_prompt_tokens: int = 0
    num_type0_tokens: int | None = None
    """Tokens of a pair's first text, special tokens included; None: it is one text."""
    share: float = 1.0
    """Fraction of its text's tokens; below 1 for a window."""
    num_windows: int = 1
    """Number of windows of its text; all of them have the same row."""
    queued_at: float = 0.0
    """When it was tokenized, on the clock of the statistics."""
    num_attended: int | None = None
    """Leading tokens that others attend to; None: all."""
    returned_rows: list[int] | None = None
    """Of per-token vectors those that the job gets; None: all."""

    @property
    def num_tokens(self) -> int:
        """Length, special tokens included."""
        return len(self.token_ids)


def pack(sequences: Sequence[TokenizedText], lane: Lane) -> Batch:
    """Pack B sequences, one behind the other."""
    lens = [len(sequence.token_ids) for sequence in sequences]
    token_ids = chain.from_iterable([sequence.token_ids for sequence in sequences])
    whole = np.array(lens, np.int32)
    type0 = [sequence.num_type0_tokens for sequence in sequences]
    attended = [sequence.num_attended for sequence in sequences]
    return Batch(
        lane=lane,
        token_ids=np.fromiter(token_ids, np.int32, sum(lens)),
        cu_seqlens=np.array([0, *accumulate(lens)], np.int32),
        num_prompt_tokens=np.array([item.num_prompt_tokens for item in sequences], np.int32),
        num_type0_tokens=_or_all(type0, whole),
        num_attended=_or_all(attended, whole),
    )


def _or_all(nums: Sequence[int | None], whole: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return numbers of tokens, with the whole length where there is none."""
    if nums.count(None) == len(nums):
        return whole
    pairs = zip(nums, whole.tolist(), strict=True)
    return np.array([all_ if num is None else num for num, all_ in pairs], np.int32)
