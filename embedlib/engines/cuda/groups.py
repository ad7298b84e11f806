"""Divides a long batch into groups of steps: between two groups, a waiting query can be launched.

A group is limited by work, not by layers: one layer of a small model takes almost no time, while
the attention of one text of 32,000 tokens takes as long as ten layers of an ordinary batch. Steps
are combined into a group while their work stays within the limit. A single step above the limit is
split: matrix products by rows; attention by tiles of queries, or by rows where a function takes
whole sequences (`attention`). Splitting does not change the numbers: rows do not mix, and a query
sees the same keys in any group.

**Work** is counted in operations at the speed of a bfloat16 product. Only products and attention
count. Norms, activations and similar steps are not counted: they are bound by memory and take about
a tenth of the time of a large model's products, and half of a small model's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.cuda.inputs import ALIGNED_NUMBERS, Ints, Layout
from embedlib.engines.cuda.limits import FP8_WORK
from embedlib.engines.cuda.plan import Attend, Linear, MultiplyDistances, Step
from embedlib.models.spec import Encoder

Work = NDArray[np.float64]

MAX_GROUP_WORK: Final = 1e12
"""Maximum work of a group: 1.3 ms at the 780e12 operations per second of an H200. Two groups are in
flight at a time (`turns`), so that a query of 3.0 ms took 5.4 ms beside bulk at the median; with
1.5e12 6.1 to 6.3, with .7e12 4.8 (docs/measurements/gpu.md, the second run). A slower GPU
takes longer."""
ATTENTION_WORK: Final = 2.0
"""Work of an operation of attention. Source: Shah et al., FlashAttention-3 (arXiv:2407.08608),
figure 5: a Triton kernel reaches about 390e12 per second on an H100. Ours reaches some 480e12 for
long texts (docs/measurements/gpu.md, next on a GPU); for short ones it is not known."""
PICKING_WORK: Final = 12.0
"""The same where attention picks two products for each score (`distances`). A block of 128 queries
and 64 keys loads three numbers for each of its 8,192 scores, 32 at a time and in 8 cycles: 6,000
cycles beside the 1,300 of everything else. An estimate, not measured."""
CUT_ROWS: Final = 256
"""Products are split at multiples of this many rows, the size that their tiles are made for."""


@dataclass(frozen=True)
class Part:
    """A step, or a slice of one that was split."""

    step: Step
    work: float = 0.0
    cut: slice | None = None
    """Slice of the rows, or of the tiles if attention is split by tiles; None: the full step."""


Group = tuple[Part, ...]


def whole(steps: Sequence[Step]) -> Group:
    """Return all steps as one group."""
    return tuple(map(Part, steps))


def groups_of(
    steps: Sequence[Step],
    layout: Layout,
    tiles: Mapping[str, Ints],
    lengths: Ints,
    encoder: Encoder,
    served_whole: Collection[Attend],
) -> tuple[Group, ...]:
    """Divide the steps of a batch into groups.

    Args:
        steps: the steps of the plan.
        layout: the layout of the batch.
        tiles: int32[tiles, 5] under "tiles" and "pooled_tiles", see `inputs`.
        lengths: int32[B], tokens of each sequence.
        encoder: the model's encoder.
        served_whole: the attention steps that are split by rows.
    """
    groups: list[list[Part]] = [[]]
    total = 0.0
    known: dict[Attend, Work] = {}
    for step in steps:
        if isinstance(step, Attend):
            if step not in known:
                name = "tiles" if step.query.rows == "token" else "pooled_tiles"
                if step in served_whole:
                    known[step] = _work_of_rows(lengths, step.window, encoder)
                else:
                    queries = layout.tile_queries if step.query.rows == "token" else 1
                    known[step] = _work_of_tiles(tiles[name], queries, step.window, encoder)
            parts = _cut_attention(step, known[step])
        elif isinstance(step, (Linear, MultiplyDistances)):
            num_rows = layout.num_tokens if step.out.rows == "token" else layout.num_pooled
            parts = _cut_product(step, num_rows, encoder)
        else:
            parts = [Part(step)]
        for part in parts:
            if total + part.work > MAX_GROUP_WORK and groups[-1]:
                groups.append([])
                total = 0.0
            groups[-1].append(part)
            total += part.work
    return tuple(map(tuple, groups))


def _work_of_tiles(tiles: Ints, tile_queries: int, window: int | None, encoder: Encoder) -> Work:
    """Return float64[tiles]: a tile costs all of its rows, used or not, times the keys it reads."""
    num_queries, place, num_keys = (tiles[:, column].astype(np.float64) for column in (1, 2, 4))
    keys = _num_seen(place, place + num_queries - 1, num_keys, window, encoder)
    return _operations(encoder) * tile_queries * keys * (num_queries > 0)


def _work_of_rows(lengths: Ints, window: int | None, encoder: Encoder) -> Work:
    """Return float64[T]: the cost of a row is the number of keys it sees."""
    places = np.concatenate([np.arange(length, dtype=np.float64) for length in lengths])
    num_keys = np.repeat(lengths, lengths).astype(np.float64)
    return _operations(encoder) * _num_seen(places, places, num_keys, window, encoder)


def _num_seen(
    first: Work, last: Work, num_keys: Work, window: int | None, encoder: Encoder
) -> Work:
    """Return the number of keys that the queries from position `first` to `last` see together."""
    start, end = np.zeros_like(first), num_keys
    if encoder.is_causal:
        end = np.minimum(end, last + 1)
    if window is not None:
        start = np.maximum(start, first - window)
        end = np.minimum(end, last + 1 + window)
    return end - start


def _operations(encoder: Encoder) -> float:
    """Return the work of one query and one key in all heads: two products of multiply and add."""
    work = ATTENTION_WORK if encoder.relative_positions is None else PICKING_WORK
    return work * 4 * encoder.num_heads * encoder.head_dim


def _cut_product(step: Linear | MultiplyDistances, num_rows: int, encoder: Encoder) -> list[Part]:
    inner = step.source.columns if isinstance(step, Linear) else encoder.head_dim
    of_row = 2.0 * inner * step.out.columns * (FP8_WORK if step.source.is_fp8 else 1)
    if num_rows * of_row <= MAX_GROUP_WORK:
        return [Part(step, num_rows * of_row)]
    at_once = max(1, int(MAX_GROUP_WORK / of_row) // CUT_ROWS) * CUT_ROWS
    starts = range(0, num_rows, at_once)
    cuts = [slice(start, min(start + at_once, num_rows)) for start in starts]
    return [Part(step, (cut.stop - cut.start) * of_row, cut) for cut in cuts]


def _cut_attention(step: Attend, work: Work) -> list[Part]:
    sums = np.concatenate([[0.0], np.cumsum(work)])
    if sums[-1] <= MAX_GROUP_WORK:
        return [Part(step, float(sums[-1]))]
    parts = []
    start = 0
    while start < len(work):
        within = int(np.searchsorted(sums, sums[start] + MAX_GROUP_WORK, side="right")) - 1
        count = max(1, (within - start) // ALIGNED_NUMBERS) * ALIGNED_NUMBERS
        stop = len(work) if within == len(work) else min(start + count, len(work))
        parts.append(Part(step, float(sums[stop] - sums[start]), slice(start, stop)))
        start = stop
    return parts
