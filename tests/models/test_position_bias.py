from __future__ import annotations

from pathlib import Path

import numpy as np

from embedlib.models.encoder_parts import PositionBias, RelativePositions
from embedlib.models.position_bias import buckets, signed_buckets, slopes

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


def test_slopes_are_those_of_alibi() -> None:
    # Source: Press et al., arXiv:2108.12409, section 3: 8 heads and 16.
    assert slopes(8) == [2.0**-power for power in range(1, 9)]
    assert slopes(16) == [2.0 ** (-power / 2) for power in range(1, 17)]
    # 12 heads, as in base models: those of 8, then every other one of 16.
    assert slopes(12) == slopes(8) + slopes(16)[0:8:2]
