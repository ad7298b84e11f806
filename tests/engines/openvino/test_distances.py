"""What distances add to attention scores, beside a reference that multiplies pair by pair."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib.engines.openvino.graphs import distances
from embedlib.engines.openvino.graphs.distances import Distances
from embedlib.engines.openvino.graphs.nodes import int_constant, int_input
from embedlib.engines.openvino.library import op, ov
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.encoder_parts import RelativePositions
from embedlib.models.position_bias import signed_buckets
from embedlib.models.spec import Encoder
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.testing import fake_spec
from tests.tiny_encoders import PLAIN

HEADS, DIM = 2, 3
LAYER = "layers.0."
Floats = NDArray[np.float32]


class Case:
    """The two forms of the scores as graphs, and the numbers that they are made of."""

    def __init__(self, num_buckets: int, num_positions: int, threads: int = 1) -> None:
        relative = RelativePositions(num_buckets=num_buckets, max_distance=num_positions)
        self.encoder: Encoder = replace(
            PLAIN,
            hidden_size=HEADS * DIM,
            num_layers=1,
            num_heads=HEADS,
            num_kv_heads=HEADS,
            head_dim=DIM,
            num_positions=num_positions,
            windows=(None,),
            relative_positions=relative,
        )
        dice = np.random.default_rng(0)
        self.weights: dict[str, Any] = {
            role: dice.standard_normal(shape, dtype=np.float32)
            for role, shape in encoder_shapes(self.encoder).items()
        }
        query, key = (op.parameter([-1, HEADS, -1, DIM], np.float32) for _ in range(2))
        one = op.parameter([-1, HEADS, 1, DIM], np.float32)
        flat, place = op.parameter([-1, -1, HEADS * DIM], np.float32), int_input("place", [-1, 1])
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        core = ov.Core()
        added = self._distances(query, 2).scores(query, key, LAYER)
        self.scores = core.compile_model(ov.Model([*added], [query, key]), "CPU", settings)
        found = self._distances(flat, 1).scores_of_one(one, flat, LAYER, place)
        self.of_one = core.compile_model(ov.Model([found], [one, flat, place]), "CPU", settings)

    def _distances(self, vectors: ov.Node, axis: int) -> Distances:
        length = op.gather(op.shape_of(vectors, "i32"), int_constant(axis), int_constant(0))
        indices = op.range(int_constant(0), length, int_constant(1), output_type="i32")
        return Distances(self.encoder, self.weights, indices, is_bf16=False)

    def drawn(self, num_texts: int, length: int) -> tuple[Floats, Floats]:
        dice = np.random.default_rng(length)
        shape = (num_texts, HEADS, length, DIM)
        return dice.standard_normal(shape, np.float32), dice.standard_normal(shape, np.float32)

    def expected(self, query: Floats, key: Floats) -> Floats:
        """Gather a vector for each pair of tokens, then multiply: float64 until the end."""
        weights, length = self.weights, query.shape[2]
        table = weights["relative"].astype(np.float64)
        centred = table - table.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + self.encoder.norm_eps)
        table = centred / deviation * weights["relative_norm.weight"]
        table += weights["relative_norm.bias"]
        relative = self.encoder.relative_positions
        assert relative is not None
        places = np.arange(length)
        rows = signed_buckets(relative, places[:, None] - places)
        asked, asking = (
            (table @ weights[f"{LAYER}{leaf}.weight"].T + weights[f"{LAYER}{leaf}.bias"]).reshape(
                -1, HEADS, DIM
            )[rows]
            for leaf in ("k", "q")
        )
        by_query = np.einsum("bhid,ijhd->bhij", query, asked)
        by_key = np.einsum("bhjd,ijhd->bhij", key, asking) * DIM**-0.5
        return np.asarray(by_query + by_key, np.float32)


def assert_close(found: Floats, expected: Floats) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def check(case: Case, num_texts: int, length: int) -> None:
    query, key = case.drawn(num_texts, length)
    expected = case.expected(query, key)
    assert_close(sum(case.scores([query, key]).values()), expected)
    place = np.arange(num_texts, dtype=np.int32)[:, None] * 5 % length
    texts = np.arange(num_texts)
    one = query[texts, :, place[:, 0]][:, :, None]
    flat = np.ascontiguousarray(key.transpose(0, 2, 1, 3)).reshape(num_texts, length, -1)
    (of_one,) = case.of_one([one, flat, place]).values()
    all_scores = expected + query @ key.transpose(0, 1, 3, 2)
    assert_close(of_one, all_scores[texts, :, place[:, 0]][:, :, None])


def test_lengths_at_which_buckets_change() -> None:
    # Those of DeBERTa-v3: up to 128 tokens away each distance has a vector of its own.
    case = Case(num_buckets=256, num_positions=512)
    for length in (1, 2, 127, 512, 128, 129, 255, 256, 257, 511, 1):
        check(case, 1, length)


def test_heads_are_divided_where_the_library_cannot_count_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distances, "MAX_TAKEN", 30 * 30)
    case = Case(num_buckets=8, num_positions=30)
    assert distances.heads_at_once(case.encoder) == 1 < HEADS
    check(case, 2, 17)


def test_batches_are_no_larger_than_the_library_can_count() -> None:
    base = replace(PLAIN, num_heads=12, num_positions=512)
    spec = replace(fake_spec(512), encoder=base)
    wanted = Layout(threads=2, max_batch_tokens=100_000)
    assert wanted.limits(spec).max_batch_tokens == 100_000
    relative = RelativePositions(num_buckets=256, max_distance=512)
    spec = replace(spec, encoder=replace(base, relative_positions=relative))
    most = wanted.limits(spec).max_batch_tokens
    assert most * 12 * 512 <= distances.MAX_TAKEN < (most + 1) * 12 * 512
    assert Layout(threads=2).limits(spec).max_batch_tokens == 512


@settings(max_examples=20)
@given(
    sizes=st.sampled_from([(4, 9), (16, 48), (40, 40), (12, 70)]),
    length=st.integers(1, 70),
    num_texts=st.integers(1, 3),
)
def test_scores_of_any_length(sizes: tuple[int, int], length: int, num_texts: int) -> None:
    check(case_of(*sizes), num_texts, min(length, sizes[1]))


@cache
def case_of(num_buckets: int, num_positions: int) -> Case:
    # Blocks so short that most of these texts have several.
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(distances, "BLOCK_TOKENS", 12)
        return Case(num_buckets, num_positions, threads=2)
