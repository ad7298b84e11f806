from __future__ import annotations

from pathlib import Path

import numpy as np

from embedlib.models.position_bias import buckets, signed_buckets
from embedlib.models.spec import PositionBias, RelativePositions

GOLDENS = Path(__file__).parents[1] / "goldens"


def test_buckets_are_those_of_transformers() -> None:
    with np.load(GOLDENS / "buckets.npz") as stored:
        expected = stored["mpnet"]
    reach = len(expected) // 2
    assert reach > 512  # the range of MPNet
    distances = np.arange(-reach, reach + 1)
    bias = PositionBias(num_buckets=32, max_distance=128)
    assert buckets(bias, distances).tolist() == expected.tolist()


def test_signed_buckets_are_those_of_transformers() -> None:
    # Source: make_log_bucket_position of transformers 5.23 with the numbers of DeBERTa-v3; the two
    # agreed for all distances, and for four other pairs of numbers.
    expected = {
        -511: 1, -300: 49, -129: 127, -128: 128, -1: 255, 0: 256, 1: 257, 127: 383, 128: 384,
        129: 385, 200: 425, 256: 448, 400: 489, 511: 511,
    }  # fmt: skip
    rows = signed_buckets(
        RelativePositions(num_buckets=256, max_distance=512), np.array(list(expected))
    )
    assert rows.tolist() == list(expected.values())
