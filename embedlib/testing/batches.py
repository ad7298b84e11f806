"""Batches built by hand, for tests of an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from embedlib.engines.base import Batch, Lane


def make_batch(
    sequences: Sequence[Sequence[int] | np.ndarray],
    lane: Lane = Lane.BULK,
    *,
    num_prompt_tokens: ArrayLike = 0,
    num_type0_tokens: ArrayLike | None = None,
) -> Batch:
    """Return the batch of these sequences of token ids.

    Args:
        sequences: the token ids of each sequence; none is empty.
        lane: the lane that the batch belongs to.
        num_prompt_tokens: for all sequences or for each, as in `Batch`.
        num_type0_tokens: the same; None: whole sequences, as for single texts.
    """
    lengths = [len(sequence) for sequence in sequences]
    num_type0 = lengths if num_type0_tokens is None else num_type0_tokens
    return Batch(
        lane=lane,
        token_ids=np.concatenate(sequences).astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        num_prompt_tokens=np.full(len(lengths), num_prompt_tokens, np.int32),
        num_type0_tokens=np.full(len(lengths), num_type0, np.int32),
    )
