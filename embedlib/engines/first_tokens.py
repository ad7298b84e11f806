"""The first tokens of sequences: which models can keep their keys, and batches without them.

In a causal model the keys and values of a token depend only on the tokens before it. So those of a
prefix, computed once, are valid for every sequence that begins with the same token ids. Engines
decide for themselves which prefixes they keep, and where.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.models.compiled.pooled_rows import pooled_modes
from embedlib.models.spec import ModelSpec

Ints = NDArray[np.int32]


def can_keep_prefix(spec: ModelSpec) -> bool:
    """Whether vectors depend on a sequence's first tokens only through their keys and values."""
    encoder = spec.encoder
    return (
        encoder.is_causal
        and pooled_modes(spec) == ("last_token",)
        and spec.pooling.skipped_token_id is None
        # Positions that skip padding tokens would have to count the tokens of the prefix too, and
        # the second token type starts at another place in every sequence.
        and (encoder.rope is not None or encoder.pad_token_id is None)
        and encoder.num_token_types <= 1
        # No causal model is known to norm values. OpenVINO 2026.4 then gave as many rows as an
        # earlier batch had.
        and not encoder.has_v_norm
    )


def num_shared(batch: Batch, ids: Ints, min_tokens: int) -> Ints:
    """Return int32[B], the first tokens that each sequence shares with `ids`.

    Fewer than `min_tokens` count as 0. The last token of a sequence is never shared, since
    at least one token must be computed.
    """
    shared = np.zeros(batch.num_seqs, np.int32)
    (rows,) = np.nonzero(batch.seq_lens > min_tokens)
    if len(ids) < min_tokens or not len(rows):
        return shared
    for num_tokens in (min_tokens, len(ids)):  # a few tokens rule out most sequences
        places = np.arange(num_tokens)
        index = batch.cu_seqlens[rows][:, None] + places
        found = batch.token_ids[np.minimum(index, len(batch.token_ids) - 1)]
        is_equal = (found == ids[:num_tokens]) & (places < batch.seq_lens[rows][:, None] - 1)
        num_equal = np.argmin(np.pad(is_equal, ((0, 0), (0, 1))), axis=1)
        is_enough = num_equal >= min_tokens
        rows, num_equal = rows[is_enough], num_equal[is_enough]
    shared[rows] = num_equal
    return shared


def without_first(batch: Batch, num_tokens: Ints) -> Batch:
    """Return a batch without the first `num_tokens[b]` tokens of each sequence b."""
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


def num_equal(left: Ints, right: Ints) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(left), len(right))
    return int(np.argmin(np.append(left[:size] == right[:size], False)))
