from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.models.encoder_parts import ROPE_KINDS, Rope, RopeKind
from embedlib.models.reading.config_file import read_encoder
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.rope import inverse_frequencies
from embedlib.testing.models.table import VARIANTS

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = json.loads((GOLDENS / "rope.json").read_text())


def test_default_is_a_geometric_series() -> None:
    frequencies, factor = inverse_frequencies(Rope(theta=10_000.0), 8)
    np.testing.assert_allclose(frequencies, [1.0, 0.1, 0.01, 0.001], rtol=1e-15)
    assert factor == 1.0


def test_linear_divides_every_frequency() -> None:
    frequencies, factor = inverse_frequencies(Rope(kind="linear", theta=100.0, factor=4.0), 4)
    np.testing.assert_allclose(frequencies, [0.25, 0.025], rtol=1e-15)
    assert factor == 1.0


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    rope = Rope(
        kind="llama3",
        theta=10_000.0,
        factor=8.0,
        original_max_positions=100,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    frequencies, _ = inverse_frequencies(rope, 8)
    # Within 100 positions the four pairs make 15.9, 1.59, 0.159 and 0.0159 turns. A frequency with
    # more than 4 turns is kept, with less than 1 it is divided by 8, and 1.59 turns are
    # interpolated at (1.59 - 1) / (4 - 1).
    blend = (100 * 0.1 / (2 * math.pi) - 1) / 3
    middle = (1 - blend) * 0.1 / 8 + blend * 0.1
    np.testing.assert_allclose(frequencies, [1.0, middle, 0.01 / 8, 0.001 / 8], rtol=1e-14)


def test_yarn_scales_cos_and_sin_by_a_tenth_of_the_logarithm() -> None:
    rope = Rope(kind="yarn", factor=4.0, original_max_positions=32)
    assert inverse_frequencies(rope, 8)[1] == pytest.approx(1 + 0.1 * math.log(4), rel=1e-15)


def test_ntk_stretches_the_slowest_pair_by_its_factor_and_the_fastest_hardly() -> None:
    config = VARIANTS["new"].config | {"vocab_size": 10}
    rope = read_encoder(JsonObject("config.json", config)).rope
    assert rope is not None
    frequencies, attention_factor = inverse_frequencies(rope, 8)
    # Theta is 200 and the factor 3: pair i rotates by 600 ** (-i / 4) / 3 ** (1 / 4).
    expected = [1 / 600 ** (pair / 4) / 3**0.25 for pair in range(4)]
    np.testing.assert_allclose(frequencies, expected, rtol=1e-15)
    assert frequencies[3] * 3 == pytest.approx(200**-0.75, rel=1e-14)
    assert attention_factor == 1.0


@pytest.mark.parametrize("name", CASES)
def test_as_transformers_computes_it(name: str) -> None:
    case = CASES[name]
    config = VARIANTS["llama"].config | {
        "vocab_size": 10,
        "head_dim": case["head_dim"],
        "max_position_embeddings": case["positions"],
        "rope_parameters": case["parameters"] | {"rope_theta": case["theta"]},
    }
    encoder = read_encoder(JsonObject("config.json", config))
    assert encoder.rope is not None
    frequencies, factor = inverse_frequencies(encoder.rope, encoder.head_dim)
    with np.load(GOLDENS / "rope.npz") as stored:
        # transformers computes in float32, and YaRN's ramp subtracts from 1, which loses a few of
        # the 23 bits.
        np.testing.assert_allclose(frequencies, stored[name], rtol=5e-6)
        assert factor == pytest.approx(float(stored[f"{name}.attention_factor"]), rel=1e-7)


@given(
    kind=st.sampled_from(ROPE_KINDS),
    theta=st.floats(100.0, 1e7),
    factor=st.floats(1.0, 64.0),
    original=st.integers(64, 1 << 16),
    head_dim=st.integers(2, 64).map(lambda pairs: 2 * pairs),
)
def test_stretching_slows_a_pair_down_by_at_most_the_factor(
    kind: RopeKind, theta: float, factor: float, original: int, head_dim: int
) -> None:
    rope = Rope(kind=kind, theta=theta, factor=factor, original_max_positions=original)
    plain, _ = inverse_frequencies(Rope(theta=theta), head_dim)
    frequencies, scale = inverse_frequencies(rope, head_dim)
    assert frequencies.shape == (head_dim // 2,)
    assert (frequencies <= plain * (1 + 1e-12)).all()
    assert (frequencies >= plain / factor * (1 - 1e-12)).all()
    assert scale >= 1.0
