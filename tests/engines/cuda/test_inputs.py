from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.cuda import loaded_model, short_batches
from embedlib.engines.cuda.device import CpuDevice
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.executor import device_batch
from embedlib.engines.cuda.inputs import (
    SHORT_TILE_ROWS,
    Layout,
    check,
    fill,
    layout_of,
    split,
    tile_queries,
)
from embedlib.errors import EngineRunError
from embedlib.models.encoder_parts import Rope
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Head, ModelSpec, Pooling, PoolingMode
from embedlib.models.weights.load import load_weights
from embedlib.testing import fake_spec, make_batch

BOTH: tuple[PoolingMode, ...] = ("cls", "last_token")


def filled(
    batch: Batch, spec: ModelSpec, modes: tuple[PoolingMode, ...] = (), layout: Layout | None = None
) -> dict[str, list[object]]:
    layout = layout or layout_of(batch, modes)
    values = np.full(layout.size, -7, np.int32)
    fill(values, batch, layout, spec, modes)
    return {name: part.tolist() for name, part in split(values, layout).items()}


def spec_with(max_seq_tokens: int = 32, **traits: object) -> ModelSpec:
    spec = fake_spec(max_seq_tokens, modules=(Pooling(modes=("last_token",)),))
    return replace(spec, encoder=replace(spec.encoder, **traits))  # type: ignore[arg-type]


def test_a_batch_in_full() -> None:
    parts = filled(make_batch([[4, 5, 6], [7]]), spec_with(rope=Rope()), BOTH)
    assert parts == {
        "token_ids": [4, 5, 6, 7],
        "positions": [0, 1, 2, 0],
        "token_types": [0, 0, 0, 0],
        "cu_seqlens": [0, 3, 4],
        "num_prompt_tokens": [0, 0],
        "tiles": [[0, 3, 0, 0, 3], [3, 1, 0, 3, 1]],
        "tile_prefixes": [0, 0],
        "pooled_rows": [0, 2, 3, 3],
        "pooled_positions": [0, 2, 0, 0],
        # Ordered by work: the last of three tokens, the first of three, those of the single one.
        "pooled_tiles": [[1, 1, 2, 0, 3], [0, 1, 0, 0, 3], [2, 1, 0, 3, 1], [3, 1, 0, 3, 1]],
        "pooled_tile_prefixes": [0, 0, 0, 0],
    }


@pytest.mark.parametrize("num_modes", [0, 1, 2])
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 50])
def test_every_part_begins_at_16_bytes(num_tokens: int, num_modes: int) -> None:
    for num_seqs in range(1, min(num_tokens, 5) + 1):
        layout = Layout(num_tokens, num_seqs, num_modes)
        values = torch.arange(layout.size, dtype=torch.int32)
        parts = device_batch(values, layout).parts
        assert list(parts) == list(layout.shapes)
        for name, part in parts.items():
            assert part.shape == layout.shapes[name]
            # Otherwise Triton would compile a kernel again for this mix of lengths.
            assert part.storage_offset() * part.itemsize % 16 == 0, name
            np.testing.assert_array_equal(part, split(values.numpy(), layout)[name])
        numbers = torch.cat([part.flatten() for part in parts.values()])
        assert len(numbers.unique()) == len(numbers)


def test_tokens_whose_keys_are_kept_come_before_a_sequence() -> None:
    spec, batch = spec_with(rope=Rope()), make_batch([[4], [5, 6], [7]])
    layout = layout_of(batch, ("last_token",))
    values = np.full(layout.size, -7, np.int32)
    fill(values, batch, layout, spec, ("last_token",), np.array([5, 9, 0], np.int32))
    parts = {name: part.tolist() for name, part in split(values, layout).items()}
    assert parts["positions"] == [5, 9, 10, 0]
    assert parts["tiles"][:3] == [[1, 2, 9, 1, 11], [0, 1, 5, 0, 6], [3, 1, 0, 3, 1]]
    assert parts["tile_prefixes"][:3] == [9, 5, 0]
    assert parts["pooled_rows"] == [0, 2, 3]
    assert parts["pooled_positions"] == [5, 10, 0]
    assert parts["pooled_tiles"] == [[1, 1, 10, 1, 11], [0, 1, 5, 0, 6], [2, 1, 0, 3, 1]]
    assert parts["pooled_tile_prefixes"] == [9, 5, 0]


def test_what_a_layout_has_and_a_batch_has_not_is_empty() -> None:
    layout = Layout(num_tokens=6, num_seqs=3, num_pooled_modes=1)
    parts = filled(make_batch([[4, 5]]), spec_with(rope=Rope()), ("last_token",), layout)
    assert parts["token_ids"] == [4, 5, 0, 0, 0, 0]
    assert parts["cu_seqlens"] == [0, 2, 2, 2]
    assert parts["tiles"] == [[0, 2, 0, 0, 2], [0] * 5, [0] * 5]
    assert parts["pooled_rows"] == [1, 1, 1]  # duplicates write the same value
    assert parts["pooled_tiles"] == [[0, 1, 1, 0, 2], [0] * 5, [0] * 5]


@pytest.mark.parametrize(
    ("traits", "positions"),
    [
        ({"rope": Rope(), "position_offset": 0}, [0, 1, 2, 0, 1]),
        ({"position_offset": 0}, [0, 1, 2, 0, 1]),
        ({"position_offset": 2}, [2, 3, 4, 2, 3]),
        # The padding token inside a text: not counted, and its position unchanged.
        ({"position_offset": 2, "pad_token_id": 1}, [2, 1, 3, 1, 2]),
    ],
)
def test_positions(traits: dict[str, object], positions: list[int]) -> None:
    batch = make_batch([[4, 1, 6], [1, 8]])
    assert filled(batch, spec_with(**traits))["positions"] == positions


@pytest.mark.parametrize(
    ("head", "num_types", "types"),
    [
        (Head(labels=("a",), activation="identity"), 2, [0, 1, 1, 0, 0]),
        (Head(labels=("a",), activation="identity"), 1, [0] * 5),
        (Head(labels=("a",), activation="identity", has_token_types=False), 2, [0] * 5),
        (None, 2, [0] * 5),
    ],
)
def test_token_types(head: Head | None, num_types: int, types: list[int]) -> None:
    batch = make_batch([[4, 5, 6], [7, 8]], num_type0_tokens=np.array([1, 2], np.int32))
    spec = replace(spec_with(num_token_types=num_types), head=head)
    assert filled(batch, spec)["token_types"] == types


def test_the_first_token_behind_the_prompt() -> None:
    spec = replace(spec_with(), modules=(Pooling(modes=BOTH, include_prompt=False),))
    batch = make_batch([[4, 5, 6], [7, 8], [9, 9]], num_prompt_tokens=[1, 0, 2])
    # Of a sequence that is all prompt, sentence-transformers takes the first token.
    assert filled(batch, spec, BOTH)["pooled_rows"] == [1, 2, 3, 4, 5, 6]


def test_the_last_token_that_may_be_taken() -> None:
    pooling = Pooling(modes=("last_token",), skipped_token_id=9)
    spec = replace(spec_with(), modules=(pooling,))
    parts = filled(make_batch([[4, 5, 9, 9], [9, 9], [9, 4]]), spec, ("last_token",))
    assert parts["pooled_rows"] == [1, 4, 7]


@given(
    st.lists(st.integers(1, 3 * SHORT_TILE_ROWS + 1), min_size=1, max_size=6),
    st.sampled_from([4, 32, 64, 128]),
)
def test_tiles_hold_every_query_once(lengths: list[int], num_queries: int) -> None:
    batch = make_batch([[5] * length for length in lengths])
    layout = layout_of(batch, (), num_queries)
    tiles = np.array(filled(batch, spec_with(1000), layout=layout)["tiles"])
    assert len(tiles) == layout.max_tiles
    seen = []
    for row, count, place, key_row, num_keys in tiles[tiles[:, 1] > 0].tolist():
        seq = batch.cu_seqlens.tolist().index(key_row)
        assert num_keys == lengths[seq]
        assert row - place == key_row
        assert 0 < count <= num_queries
        assert place + count <= num_keys
        seen += range(row, row + count)
    assert sorted(seen) == list(range(sum(lengths)))
    work = (tiles[:, 2] + tiles[:, 4])[tiles[:, 1] > 0]
    assert (np.diff(work) <= 0).all()


@pytest.mark.parametrize(
    ("heads_per_key", "head_dim", "is_short", "itemsize", "queries"),
    [
        (1, 128, False, 2, 128),
        (4, 128, False, 2, 32),
        (4, 128, True, 2, 16),
        (4, 256, False, 2, 16),  # 128 rows of 256 numbers leave no room for keys
        (6, 64, False, 2, 64),  # two heads per tile: their number must be a power of two
        (7, 64, False, 2, 128),
        (32, 64, True, 2, 4),
        (1, 64, True, 4, 16),
        (4, 64, False, 4, 4),
    ],
)
def test_a_tile_has_a_row_for_every_head_that_shares_its_keys(
    heads_per_key: int, head_dim: int, is_short: bool, itemsize: int, queries: int
) -> None:
    encoder = replace(
        fake_spec().encoder, num_heads=2 * heads_per_key, num_kv_heads=2, head_dim=head_dim
    )
    assert tile_queries(encoder, is_short=is_short, itemsize=itemsize) == queries


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([[256]], "ids from 256 to 256; the model allows 0 to 255"),
        ([[-1, 5]], "ids from -1 to 5"),
        ([[5] * 33], "33 tokens; the model allows 32"),
    ],
)
def test_what_would_read_other_memory_is_refused(ids: list[list[int]], told: str) -> None:
    with pytest.raises(EngineRunError, match=told):
        check(make_batch(ids), fake_spec(32))


def test_the_limits_themselves_are_fine() -> None:
    check(make_batch([[0, 255], [5] * 32]), fake_spec(32))


class Refilled(CpuDevice):
    """Remembers what recordings are given."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[int] = []

    def refill(self, target: torch.Tensor, values: NDArray[np.int32]) -> None:
        self.values = values.tolist()
        super().refill(target, values)


@pytest.mark.parametrize(
    "variant", ["bert", "roberta", "qwen3", "nomic_bert", "bert-cross-encoder"]
)
def test_a_query_is_laid_out_as_if_it_were_the_first_of_its_length(
    variant: str, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16, 32))
    monkeypatch.setattr(short_batches, "MAX_KEPT", 3)
    device = Refilled()
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: device)
    files = read_model_files(tiny_folder(variant), with_head=variant == "bert-cross-encoder")
    engine = CudaEngine(files.spec, load_weights(files), precision="float32", device="cpu")
    model, random = engine._model, np.random.default_rng(0)
    for length in random.integers(1, 21, 60):
        ids = random.integers(0, files.spec.encoder.vocab_size, length)
        batch = make_batch([ids])
        if files.spec.head is not None:
            batch = replace(batch, num_type0_tokens=random.integers(1, length + 1, 1, np.int32))
        engine.compute(batch)
        recording = next(item for item in model.short._recordings if item.layout.fits(batch))
        expected = np.empty(recording.layout.size, np.int32)
        fill(expected, batch, recording.layout, files.spec, model.plan.pooled_modes)
        assert device.values == expected.tolist()
    assert len(model.short._kept) <= 3
    layout = model.short._recordings[-1].layout
    for num_prompt, num_kept in ((0, 0), (3, 0), (0, 5), (3, 5)):
        batch = make_batch([[7] * 9], num_prompt_tokens=[num_prompt])
        kept = np.array([num_kept], np.int32)
        expected = np.empty(layout.size, np.int32)
        fill(expected, batch, layout, files.spec, model.plan.pooled_modes, kept)
        np.testing.assert_array_equal(model.short._values(batch, layout, kept), expected)
    engine.close()
