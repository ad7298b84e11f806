"""To how many tokens the OpenVINO engine pads a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embedlib.engines.base import Lane
from embedlib.engines.openvino.layout import Layout
from embedlib.engines.openvino.padding import TILE_ROWS, Padding
from embedlib.testing import fake_spec, make_batch

MANY = 64


def rows(padding: Padding, *lengths: int, lane: Lane = Lane.QUERY, num_before: int = 0) -> int:
    return padding.rows(make_batch([[5] * length for length in lengths], lane), num_before)


def test_lone_queries_fill_whole_tiles() -> None:
    padding = Padding(MANY, query_step=TILE_ROWS)
    assert [rows(padding, length) for length in (1, 16, 17, 3, 33)] == [16, 16, 32, 16, 48]
    assert rows(padding, 3, 4) == 1
    assert rows(padding, 3, lane=Lane.BULK) == 1


def test_tiles_are_of_amx_and_of_bf16() -> None:
    amx = frozenset({"avx512_bf16", "amx_bf16"})
    encoder = fake_spec(MANY).encoder

    def padded(layout: Layout, features: frozenset[str]) -> int:
        return rows(layout.padding(encoder, features), 3)

    bf16 = Layout(threads=1, precision="bf16")
    assert padded(bf16, amx) == TILE_ROWS
    assert padded(bf16, amx - {"amx_bf16"}) == 3
    assert padded(Layout(threads=1), amx) == 3


def test_no_sequence_has_more_tokens_than_the_model_has_positions() -> None:
    padding = Padding(40, query_step=TILE_ROWS)
    assert rows(padding, 39) == 40
    assert rows(padding, 9, num_before=30) == 10


@given(
    st.lists(st.tuples(st.integers(1, MANY), st.integers(0, MANY - 1)), min_size=1),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 20),
)
def test_padding_stays_within_what_the_model_takes(
    queries: list[tuple[int, int]], min_rows: int, step: int, spare: int
) -> None:
    padding = Padding(MANY, min_rows=min_rows, query_step=step, spare_tokens=spare)
    for length, wanted in queries:
        num_before = min(wanted, MANY - length)
        found = rows(padding, length, num_before=num_before)
        assert length <= found <= MANY - num_before
        assert found <= max(min_rows, length + step - 1 + spare)
