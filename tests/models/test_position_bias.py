from __future__ import annotations

from pathlib import Path

import numpy as np

from embedlib.models.position_bias import buckets
from embedlib.models.spec import PositionBias

GOLDENS = Path(__file__).parents[1] / "goldens"


def test_buckets_are_those_of_transformers() -> None:
    with np.load(GOLDENS / "buckets.npz") as stored:
        expected = stored["mpnet"]
    reach = len(expected) // 2
    assert reach > 512  # the range of MPNet
    distances = np.arange(-reach, reach + 1)
    bias = PositionBias(num_buckets=32, max_distance=128)
    assert buckets(bias, distances).tolist() == expected.tolist()
