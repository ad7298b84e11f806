"""Relative position bias: maps the distance between two tokens to a row of the learned table."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embedlib.models.spec import PositionBias, RelativePositions


def signed_buckets(relative: RelativePositions, distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of each distance in the table of `RelativePositions`.

    Source: `make_log_bucket_position` and `disentangled_attention_bias` in transformers,
    models/deberta_v2. Computed in float32 as there.

    Args:
        relative: the number of buckets and the largest distance.
        distances: int64[...], the query's position minus the key's.
    """
    half = relative.num_buckets // 2
    steps = np.maximum(np.abs(distances), 1)
    share = np.log(steps.astype(np.float32) / np.float32(half))
    share /= np.log(np.float32((relative.max_distance - 1) / half))
    wide = np.ceil(share * np.float32(half - 1)).astype(np.int64) + half
    signed = np.where(steps <= half, distances, wide * np.sign(distances))
    rows: NDArray[np.int64] = np.clip(
        signed + relative.num_buckets, 0, 2 * relative.num_buckets - 1
    )
    return rows


def buckets(bias: PositionBias, distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each distance.

    Source: Raffel et al., T5 (arXiv:1910.10683), section 2.1, as implemented by
    `relative_position_bucket` in transformers, models/mpnet. Computed in float32 as there, since
    exact powers fall on the edge of a bucket.

    Args:
        bias: the number of buckets and the largest distance.
        distances: int64[...], the key's position minus the query's.

    Returns:
        int64[...], row indices into the learned table.
    """
    half = bias.num_buckets // 2
    exact = half // 2
    steps = np.abs(distances)
    octaves = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
    share = octaves / np.float32(math.log(bias.max_distance / exact))
    wide = exact + (share * np.float32(half - exact)).astype(np.int64)
    near = np.where(steps < exact, steps, np.minimum(wide, half - 1))
    return near + np.where(distances > 0, half, 0)
