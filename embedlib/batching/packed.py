"""Texts as token ids, one behind the other, without an object for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.sequence import Job, TokenizedText
from embedlib.engines.base import Batch, Lane


class PackedTexts(Sequence[TokenizedText]):
    """Consecutive whole texts of a job as token ids.

    An engine that computes at once spends less on a text than an object for it would take. Who
    needs the objects gets them by iterating.
    """

    def __init__(
        self, job: Job, first_row: int, token_ids: NDArray[np.int32], lens: list[int], now: float
    ) -> None:
        """Keep the ids of B texts.

        Args:
            job: the job.
            first_row: row of the first text.
            token_ids: int32[T].
            lens: of the B texts, at least 1 each; their sum is T.
            now: when they were tokenized, on the clock of the statistics.
        """
        self.job = job
        self.first_row = first_row
        self.token_ids = token_ids
        self.lens = lens
        self.queued_at = now

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.lens)

    def __iter__(self) -> Iterator[TokenizedText]:
        """Yield an object for each text."""
        start = 0
        for row, length in enumerate(self.lens, self.first_row):
            ids = self.token_ids[start : start + length].tolist()
            yield TokenizedText(self.job, row, ids, queued_at=self.queued_at)
            start += length

    @overload
    def __getitem__(self, index: int) -> TokenizedText: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenizedText]: ...
    def __getitem__(self, index: int | slice) -> TokenizedText | list[TokenizedText]:
        """Return the object of a text, or of some."""
        return list(self)[index]

    def parts(self, max_tokens: int) -> Iterator[PackedTexts]:
        """Yield consecutive texts of at most so many tokens, or a single longer text."""
        if len(self.token_ids) <= max_tokens:
            yield self
            return
        first = start = end = 0
        for index, length in enumerate(self.lens):
            if end + length - start > max_tokens and index > first:
                yield self._part(first, index, start, end)
                first, start = index, end
            end += length
        yield self._part(first, len(self.lens), start, end)

    def _part(self, first: int, last: int, start: int, end: int) -> PackedTexts:
        row, ids = self.first_row + first, self.token_ids[start:end]
        return PackedTexts(self.job, row, ids, self.lens[first:last], self.queued_at)

    def batch(self, lane: Lane) -> Batch:
        """Return the batch of all of them."""
        lens = np.array(self.lens, np.int32)
        return Batch(
            lane=lane,
            token_ids=self.token_ids,
            cu_seqlens=np.array([0, *accumulate(self.lens)], np.int32),
            num_prompt_tokens=np.zeros(len(lens), np.int32),
            num_type0_tokens=lens,
            num_attended=lens,
        )


def join(
    rows: Sequence[bytes], dropped_token_id: int | None
) -> tuple[NDArray[np.int32], list[int]]:
    """Return int32[T] of the ids of texts, and how many each text has.

    Args:
        rows: the ids of each text, as the bytes of int32.
        dropped_token_id: an id that is left out; None: all stay.
    """
    joined = b"".join(rows)
    token_ids = np.frombuffer(joined, np.int32)
    lens = [len(row) // 4 for row in rows]
    if dropped_token_id is None or np.int32(dropped_token_id).tobytes() not in joined:
        return token_ids, lens
    kept = token_ids != dropped_token_id
    num_kept = [0, *np.cumsum(kept).tolist()]
    ends = [0, *accumulate(lens)]
    return token_ids[kept], [num_kept[end] - num_kept[start] for start, end in pairwise(ends)]
