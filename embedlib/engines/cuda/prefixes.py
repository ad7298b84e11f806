"""Finds a prefix that many sequences share, whose keys and values are then computed once.

Queries with few-shot examples begin with the same few hundred tokens. In a causal model the keys
and values of a token depend only on the tokens before it. So the keys and values of a shared prefix
are valid for every sequence that begins with it, and such a sequence is computed only from its
first different token on.

**The engine detects the prefix itself**, by comparing token ids. Only they decide whether keys can
be reused: a prompt's text does not show where its tokens end, since its last token may merge with
the following text. So no other part of the library is involved, and kept keys are never used for
other tokens.

One prefix of at most `gpu_memory.MAX_PREFIX_TOKENS` is kept at a time, in memory allocated at the
start. A sequence uses as much of it as it shares. The prefix is found by a vote, separately in each
lane: an earlier sequence is compared with later ones. A sequence that shares at least
`MIN_PREFIX_TOKENS` votes for the shared tokens, any other sequence votes against. With a majority
of `MIN_VOTES` the shared tokens are computed and kept, unless the kept prefix covers nearly as many
of them. So texts that are similar by chance cost at most an eighth more time. A prefix is not
replaced while batches in flight use it.

This is pure policy on token ids, without a device. The threads that start batches call `begin_use`
and `propose`, others report what has ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import numpy as np

from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda.inputs import Ints
from embedlib.engines.first_tokens import num_equal, num_shared

MIN_PREFIX_TOKENS: Final = 64
"""A shorter prefix saves nothing: the time of a short query goes into reading the weights."""
MIN_VOTES: Final = 8
"""Chosen: a prefix costs at most what one of the sequences that voted for it did, so one that is
never used costs an eighth."""


@dataclass
class _Candidate:
    ids: Ints
    """The tokens that all sequences that voted for it share."""
    num_votes: int = 0


class Prefixes:
    """Decides which prefix is kept and which batches use it; see the module."""

    def __init__(self, max_tokens: int) -> None:
        """Start without a prefix.

        Args:
            max_tokens: maximum length of a prefix; 0: never keep one.
        """
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._candidates: dict[Lane, _Candidate] = {}
        self._kept: Ints = np.zeros(0, np.int32)
        self._num_users = 0
        self._is_changing = False

    def begin_use(self, batch: Batch) -> Ints:
        """Return int32[B], the first tokens of each sequence whose keys are kept.

        The caller calls `end_use` when the batch is computed.
        """
        with self._lock:
            num_kept = num_shared(batch, self._kept, MIN_PREFIX_TOKENS)
            self._num_users += bool(num_kept.any())
            return num_kept

    def end_use(self, num_kept: Ints) -> None:
        """Record that a batch no longer reads kept keys."""
        with self._lock:
            self._num_users -= bool(num_kept.any())

    def propose(self, batch: Batch) -> Ints | None:
        """Count a batch's votes; return a prefix to compute now, or None.

        The caller calls `keep` when the prefix is computed, or has failed.
        """
        with self._lock:
            candidate = self._vote(batch)
            if candidate is None or candidate.num_votes < MIN_VOTES:
                return None
            if self._is_changing or self._num_users:
                return None
            candidate.num_votes = 0  # the next vote starts with another sequence
            gain = len(candidate.ids) - num_equal(candidate.ids, self._kept)
            if gain < MIN_PREFIX_TOKENS:
                return None
            self._is_changing = True
            self._kept = self._kept[:0]
            return candidate.ids

    def keep(self, ids: Ints) -> None:
        """Record the prefix whose keys are in memory now; empty if computing them failed."""
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
            candidate = _Candidate(ids.copy())  # a view would keep the whole batch alive
            self._candidates[batch.lane] = candidate
        shared = num_shared(batch, candidate.ids, MIN_PREFIX_TOKENS)
        num_for = int(np.count_nonzero(shared))
        if num_for:
            candidate.ids = candidate.ids[: shared[shared > 0].min()]
        candidate.num_votes += 2 * num_for - len(rows)
        return candidate
