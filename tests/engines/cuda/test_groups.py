from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Lane
from embedlib.engines.cuda import groups
from embedlib.engines.cuda.groups import Group, Part, groups_of
from embedlib.engines.cuda.inputs import fill, layout_of, split
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.cuda.plan import Attend, Linear, Plan
from embedlib.models.spec import ModelSpec, Pooling
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.testing import make_batch
from tests.acceptance.gpu.models import SHAPES
from tests.acceptance.gpu.texts import batch_flops, texts_of

LARGE = SHAPES["qwen3-embedding-0.6b"].spec
DECODER = replace(LARGE, encoder=replace(LARGE.encoder, num_layers=3, windows=(None,) * 3))
TILE_QUERIES = 32


def spec_of(*, is_causal: bool = True, window: int | None = None) -> ModelSpec:
    """Return a spec that needs every token in every layer: it pools all tokens."""
    encoder = DECODER.encoder
    windows = (window,) * encoder.num_layers
    encoder = replace(encoder, is_causal=is_causal, windows=windows)
    return replace(DECODER, encoder=encoder, modules=(Pooling(modes=("mean",)),))


def cut(
    spec: ModelSpec, lengths: Sequence[int], quantized: Sequence[str] = (), *, by_rows: bool = False
) -> tuple[Plan, dict[str, NDArray[np.int32]], tuple[Group, ...]]:
    plan = build_plan(spec, quantized)
    batch = make_batch(texts_of(lengths, spec.encoder.vocab_size), Lane.BULK)
    layout = layout_of(batch, plan.pooled_modes, TILE_QUERIES)
    values = np.empty(layout.size, np.int32)
    fill(values, batch, layout, spec, plan.pooled_modes)
    parts = split(values, layout)
    served = [step for step in plan.steps if isinstance(step, Attend)] if by_rows else []
    return plan, parts, groups_of(plan.steps, layout, parts, batch.seq_lens, spec.encoder, served)


def work_of(group: Group) -> float:
    return sum(part.work for part in group)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("bound", [1e9, 8e9, 3e12])
@pytest.mark.parametrize("lengths", [[1], [700, 3, 64, 1, 900], [4000]])
def test_groups_are_all_steps_in_order_each_row_once(
    lengths: list[int], bound: float, by_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_GROUP_WORK", bound)
    for spec in (DECODER, spec_of(), spec_of(window=100), spec_of(is_causal=False, window=100)):
        plan, parts, found = cut(spec, lengths, by_rows=by_rows)
        left = iter(plan.steps)
        end = 0
        size: int | None = None
        for part in (part for group in found for part in group):
            if end == 0:
                assert part.step is next(left)
            if part.cut is None:
                assert end == 0
                continue
            assert isinstance(part.step, (Linear, Attend))
            size = sum(lengths)
            if isinstance(part.step, Attend) and not by_rows:
                size = len(parts["tiles"])
            assert part.cut.start == end < part.cut.stop <= size
            # The part of the tile table then starts at a multiple of 16 bytes, as kernels require.
            assert part.cut.start % 4 == 0
            end = part.cut.stop % size
        assert end == 0
        assert next(left, None) is None
        assert (size is None) == (bound == 3e12 or lengths == [1])


@pytest.mark.parametrize("by_rows", [False, True])
def test_no_group_is_more_than_the_bound(by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_GROUP_WORK", 2e10)
    for lengths in ([9000], [512] * 20, [3000, 10, 10, 2000]):
        for spec in (spec_of(), spec_of(is_causal=False), spec_of(window=64)):
            _, _, found = cut(spec, lengths, by_rows=by_rows)
            sums = [work_of(group) for group in found]
            assert max(sums) <= 2e10
            # And the groups are not so small that launching them costs more than it saves.
            assert np.mean(sums) >= 2e10 / 2


def test_work_is_that_of_the_model() -> None:
    lengths = [2000, 300]
    causal, both = spec_of(), spec_of(is_causal=False)
    for spec in (causal, both):
        *_, found = cut(spec, lengths, by_rows=True)
        attention = sum(
            part.work for group in found for part in group if isinstance(part.step, Attend)
        )
        flops = batch_flops(spec.encoder, lengths)
        total = sum(map(work_of, found))
        assert total - attention + attention / groups.ATTENTION_WORK == pytest.approx(flops)
    # Tiles also compute unused rows and keys after the diagonal, which costs little.
    *_, by_tiles = cut(causal, lengths)
    *_, by_rows = cut(causal, lengths, by_rows=True)
    assert 1 < sum(map(work_of, by_tiles)) / sum(map(work_of, by_rows)) < 1.02


def test_fp8_is_less_work_and_a_window_too() -> None:
    spec = spec_of()
    *_, plain = cut(spec, [4000])
    *_, fp8 = cut(spec, [4000], linear_roles(spec.encoder))
    *_, window = cut(spec_of(window=128), [4000])
    linear, quantized = (
        sum(part.work for group in found for part in group if isinstance(part.step, Linear))
        for found in (plain, fp8)
    )
    assert quantized == pytest.approx(groups.FP8_WORK * linear)
    attention, narrow = (
        sum(part.work for group in found for part in group if isinstance(part.step, Attend))
        for found in (plain, window)
    )
    assert narrow < attention / 10


def test_the_whole_is_one_group() -> None:
    steps = build_plan(DECODER).steps
    assert groups.whole(steps) == tuple(Part(step) for step in steps)
