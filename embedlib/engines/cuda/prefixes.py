"""A constant beginning of many sequences, whose keys and values are computed once.

Queries with few-shot examples begin with the same some hundred tokens. In a causal model the keys
and values of a token depend on the tokens before it alone, so those of a common beginning serve
every sequence that has it: such a sequence is computed from the first token that differs on.

**Nobody tells the engine.** It compares token ids, the only thing that decides whether keys may be
used again: a prompt's text does not say where its tokens end, since its last one may melt with the
text behind it. So nothing before the engine knows of this, and keys can never serve other tokens.

One prefix is kept at a time, of `MAX_PREFIX_TOKENS` at most, in memory taken at the start. A
sequence uses as much of it as it has. It is found by a vote: a sequence that was seen is held
against those after it, in each lane by itself. One that shares `MIN_PREFIX_TOKENS` is a vote for
the shared beginning, one that does not a vote against it; `MIN_VOTES` more for than against, and it
is computed, unless what is kept serves nearly as well. So texts that are alike by chance cost an
eighth of their time at most. A prefix that batches in flight use is not replaced.

This is pure policy on token ids: no device. One thread asks, others tell what has ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda.inputs import Ints

MIN_PREFIX_TOKENS: Final = 64
"""Below, a query costs as much as without: its time goes into reading weights."""
MAX_PREFIX_TOKENS: Final = 1024
"""On a model of 7 billion numbers with 8 key heads, 128 MiB."""
MIN_VOTES: Final = 8


@dataclass
class _Candidate:
    ids: Ints
    """What all that voted for it share."""
    num_votes: int = 0


class Prefixes:
    """Decides; see the module."""

    def __init__(self, max_tokens: int) -> None:
        """Keep nothing.

        Args:
            max_tokens: of a prefix; 0: none is ever kept.
        """
        self._max_tokens = max_tokens
        self._candidates: dict[Lane, _Candidate] = {}
        self._lock = threading.Lock()
        """Guards the rest."""
        self._kept: Ints = np.zeros(0, np.int32)
        self._num_users = 0
        self._is_changing = False

    def begin_use(self, batch: Batch) -> Ints:
        """Return int32[B]: first tokens whose keys are kept; `end_use` when it is computed."""
        with self._lock:
            num_kept = num_shared(batch, self._kept)
            self._num_users += bool(num_kept.any())
            return num_kept

    def end_use(self, num_kept: Ints) -> None:
        """Hear that a batch reads no kept keys any more."""
        with self._lock:
            self._num_users -= bool(num_kept.any())

    def propose(self, batch: Batch) -> Ints | None:
        """Look at a batch and return a prefix to compute now; then `keep` says how that went."""
        candidate = self._vote(batch)
        if candidate is None or candidate.num_votes < MIN_VOTES:
            return None
        with self._lock:
            if self._is_changing or self._num_users:
                return None
            candidate.num_votes = 0  # the next vote is about another sequence
            gain = len(candidate.ids) - _num_equal(candidate.ids, self._kept)
            if gain < MIN_PREFIX_TOKENS:
                return None
            self._is_changing = True
            self._kept = self._kept[:0]
        return candidate.ids

    def keep(self, ids: Ints) -> None:
        """Hear which prefix's keys are in memory now; none: computing them failed."""
        with self._lock:
            self._kept = ids
            self._is_changing = False

    def _vote(self, batch: Batch) -> _Candidate | None:
        (rows,) = np.nonzero(batch.seq_lens > MIN_PREFIX_TOKENS)
        if not len(rows) or self._max_tokens < MIN_PREFIX_TOKENS:
            return None
        candidate = self._candidates.get(batch.lane)
        if candidate is None or candidate.num_votes <= 0:
            start, end = batch.cu_seqlens[rows[0]], batch.cu_seqlens[rows[0] + 1]
            ids = batch.token_ids[start : min(end - 1, start + self._max_tokens)]
            candidate = _Candidate(ids.copy())  # or all of the batch would live as long
            self._candidates[batch.lane] = candidate
        shared = num_shared(batch, candidate.ids)
        num_for = int(np.count_nonzero(shared))
        if num_for:
            candidate.ids = candidate.ids[: shared[shared > 0].min()]
        candidate.num_votes += 2 * num_for - len(rows)
        return candidate


def num_shared(batch: Batch, ids: Ints) -> Ints:
    """Return int32[B]: first tokens that each sequence shares with `ids`, 0 for fewer than counts.

    The last token of a sequence is its own, or there would be nothing to compute.
    """
    shared = np.zeros(batch.num_seqs, np.int32)
    (rows,) = np.nonzero(batch.seq_lens > MIN_PREFIX_TOKENS)
    if len(ids) < MIN_PREFIX_TOKENS or not len(rows):
        return shared
    for num_tokens in (MIN_PREFIX_TOKENS, len(ids)):  # most are sorted out by few tokens
        places = np.arange(num_tokens)
        index = batch.cu_seqlens[rows][:, None] + places
        found = batch.token_ids[np.minimum(index, len(batch.token_ids) - 1)]
        is_equal = (found == ids[:num_tokens]) & (places < batch.seq_lens[rows][:, None] - 1)
        num_equal = np.argmin(np.pad(is_equal, ((0, 0), (0, 1))), axis=1)
        rows, num_equal = (
            rows[num_equal >= MIN_PREFIX_TOKENS],
            num_equal[num_equal >= MIN_PREFIX_TOKENS],
        )
    shared[rows] = num_equal
    return shared


def without_first(batch: Batch, num_tokens: Ints) -> Batch:
    """Return a batch without so many first tokens of each sequence."""
    if not num_tokens.any():
        return batch
    lengths = batch.seq_lens
    places = np.arange(len(batch.token_ids)) - np.repeat(batch.cu_seqlens[:-1], lengths)
    ends = np.concatenate([[0], np.cumsum(lengths - num_tokens)]).astype(np.int32)
    ids = batch.token_ids[places >= np.repeat(num_tokens, lengths)]
    return replace(batch, token_ids=ids, cu_seqlens=ends)


def batch_of_one(ids: Ints) -> Batch:
    """Return a prefix as a batch."""
    length = np.array([len(ids)], np.int32)
    return Batch(
        lane=Lane.QUERY,
        token_ids=ids,
        cu_seqlens=np.array([0, len(ids)], np.int32),
        num_prompt_tokens=np.zeros(1, np.int32),
        num_type0_tokens=length,
    )


def _num_equal(left: Ints, right: Ints) -> int:
    """Return how many first tokens are the same."""
    size = min(len(left), len(right))
    return int(np.argmin(np.append(left[:size] == right[:size], False)))
