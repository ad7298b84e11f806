"""Relative position bias: the number that the distance of two tokens adds to a score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.models.encoder_parts import LinearBias, PositionBias, RelativePositions
from embedlib.models.spec import Encoder


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


def bias_by_distance(
    encoder: Encoder, weights: Mapping[str, Any], num_positions: int
) -> NDArray[np.float32]:
    """Return float32[heads, 2 * positions - 1]: the bias at key - query + positions - 1.

    Args:
        encoder: a transformer with a position bias.
        weights: its weights by role.
        num_positions: one more than the largest distance.
    """
    distances = np.arange(1 - num_positions, num_positions)
    if isinstance(encoder.position_bias, LinearBias):
        return -np.outer(slopes(encoder.num_heads), np.abs(distances)).astype(np.float32)
    assert encoder.position_bias is not None, "only for such a model; a bug in embedlib"
    table = np.asarray(weights["position_bias"])
    return np.ascontiguousarray(table[buckets(encoder.position_bias, distances)].T)


def slopes(num_heads: int) -> list[float]:
    """Return the positive number of each head by which a score falls with every token of distance.

    For a power of two n they are 2 ** (-8 h / n), h from 1 to n. Otherwise those of the next
    smaller power come first, then every other one of twice that power.

    Source: Press et al., ALiBi (arXiv:2108.12409), section 3, and `get_slopes` in their code,
    github.com/ofirpress/attention_with_linear_biases, fairseq/models/transformer.py.
    """
    power = 1 << (num_heads.bit_length() - 1)
    found = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    rest = range(1, 2 * (num_heads - power), 2)
    return found + [2.0 ** (-8 * head / (2 * power)) for head in rest]
