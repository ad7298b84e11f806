"""To how many tokens the OpenVINO engine pads a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.engines.base import Lane
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.sizes.padding import QUERY_ROWS, TILE_ROWS, Padding
from embedlib.testing import fake_spec, make_batch

MANY = 64


def rows(padding: Padding, *lengths: int, lane: Lane = Lane.QUERY, num_before: int = 0) -> int:
    return padding.rows(make_batch([[5] * length for length in lengths], lane), num_before)


def test_lone_queries_fill_whole_tiles() -> None:
    padding = Padding(MANY, has_tiles=True)
    assert [rows(padding, length) for length in (1, 16, 17, 3, 33)] == [16, 16, 32, 16, 48]
    assert rows(padding, 3, 4) == 2 * 4
    assert rows(padding, 4, lane=Lane.BULK) == 4


@pytest.mark.parametrize("lane", Lane)
def test_lengths_of_batches_are_even_and_long_ones_whole_tiles(lane: Lane) -> None:
    padding = Padding(512, has_tiles=True)
    found = [rows(padding, length, 2, 2, lane=lane) for length in (3, 254, 255, 257, 500, 511)]
    assert found == [3 * length for length in (4, 254, 256, 272, 512, 512)]
    # Behind a prefix the keys are as many as both.
    assert rows(padding, 4, 2, lane=lane, num_before=3) == 2 * 5
    # No more than the model has positions.
    assert rows(Padding(511, has_tiles=True), 511, 2, lane=lane) == 2 * 511
    plain = Padding(512)
    assert rows(plain, 255, 2, lane=lane) == 2 * 255


def test_tiles_are_of_amx_and_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    amx = frozenset({"avx512_bf16", "amx_bf16"})
    encoder = fake_spec(MANY).encoder

    def padded(layout: Layout, features: frozenset[str]) -> int:
        monkeypatch.setattr(Machine, "cpu_features", lambda _: features)
        return rows(layout.padding(encoder), 3)

    bf16 = Layout(threads=1, precision="bf16")
    assert padded(bf16, amx) == TILE_ROWS
    assert padded(bf16, amx - {"amx_bf16"}) == QUERY_ROWS
    assert padded(Layout(threads=1, activation_group=32), amx) == QUERY_ROWS
    assert padded(Layout(threads=1), amx) == 3


def test_no_sequence_has_more_tokens_than_the_model_has_positions() -> None:
    padding = Padding(40, has_tiles=True)
    assert rows(padding, 39) == 40
    assert rows(padding, 9, num_before=30) == 10


@given(
    st.lists(st.tuples(st.integers(1, MANY), st.integers(0, MANY - 1)), min_size=1),
    st.integers(1, 20),
    st.booleans(),
    st.integers(1, 20),
    st.sampled_from(Lane),
)
def test_padding_stays_within_what_the_model_takes(
    queries: list[tuple[int, int]], min_rows: int, has_tiles: bool, query_rows: int, lane: Lane
) -> None:
    padding = Padding(MANY, min_rows=min_rows, query_rows=query_rows, has_tiles=has_tiles)
    step = TILE_ROWS if has_tiles else query_rows
    for length, wanted in queries:
        num_before = min(wanted, MANY - length)
        found = rows(padding, length, lane=lane, num_before=num_before)
        assert length <= found <= MANY - num_before
        assert found <= max(min_rows, length + step - 1)
