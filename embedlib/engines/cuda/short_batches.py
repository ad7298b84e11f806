"""Short batches: recorded once per size as CUDA graphs, replayed for every query.

A query of 16 tokens launches about 300 kernels of a few microseconds each; launching them one by
one from Python takes longer than computing them. A CUDA graph launches them all at once. It is
recorded for a fixed layout (`inputs.Layout`), and a batch uses the smallest layout that it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch

from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda.buffers import Workspace
from embedlib.engines.cuda.device import Device
from embedlib.engines.cuda.executor import DeviceBatch, Executor, device_batch
from embedlib.engines.cuda.groups import whole
from embedlib.engines.cuda.inputs import Ints, Layout, depends_on_ids, fill, tile_queries
from embedlib.engines.cuda.limits import ALWAYS_SHORT_TOKENS
from embedlib.engines.cuda.plan import Plan
from embedlib.models.spec import ModelSpec

BUCKET_TOKENS: Final = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Tokens of each layout, as far as `most_short_tokens` allows. Without a graph a batch takes as
long as its launches, some 20 ms: in a small model the GPU computes thousands of tokens meanwhile.
"""
TOKENS_PER_SEQ: Final = 8
"""A bucket has room for one sequence per this many tokens; a batch of more and shorter sequences
uses a larger bucket."""

MAX_KEPT: Final = 256
"""Arrays of lone sequences that are kept: 24 KiB at most each, of `ALWAYS_SHORT_TOKENS`."""


@dataclass(frozen=True)
class _Recording:
    layout: Layout
    inputs: torch.Tensor
    replay: Callable[[], None]
    vectors: torch.Tensor


class ShortBatches:
    """Keeps a recording for each bucket and replays them."""

    def __init__(
        self,
        spec: ModelSpec,
        plan: Plan,
        executor: Executor,
        dtype: torch.dtype,
        device: Device,
        bucket_tokens: Sequence[int],
    ) -> None:
        """Record all buckets; they share one workspace, since only one of them runs at a time.

        Args:
            spec: the model.
            plan: its steps.
            executor: runs them.
            dtype: the type of activations.
            device: records and replays.
            bucket_tokens: sizes to record, ascending, see `bucket_sizes`.
        """
        self._spec = spec
        self._plan = plan
        self._device = device
        self._pools = spec.has_pooling
        self._kept: dict[tuple[int, ...], Ints] = {}
        """Arrays of lone sequences, by all they depend on but the ids."""
        queries = tile_queries(spec.encoder, is_short=True, itemsize=dtype.itemsize)
        layouts = [
            Layout(size, size // TOKENS_PER_SEQ, len(plan.pooled_modes), queries)
            for size in bucket_tokens
        ]
        largest = layouts[-1]
        self._workspace = Workspace(
            plan, largest.num_tokens, largest.num_seqs, dtype, device.torch_device
        )
        self._recordings: list[_Recording] = []
        for layout in layouts:
            self._recordings.append(self._record(layout, executor))

    def fits(self, batch: Batch) -> bool:
        """Whether a batch fits the largest bucket.

        One of bulk must not be long besides: nothing can be launched in the middle of it.
        """
        is_long = len(batch.token_ids) > ALWAYS_SHORT_TOKENS
        may_be = batch.lane is Lane.QUERY or not is_long
        return may_be and self._recordings[-1].layout.fits(batch)

    def launch(self, batch: Batch, num_kept: Ints) -> torch.Tensor:
        """Launch a batch and return its vectors, which the next launch overwrites."""
        recording = next(item for item in self._recordings if item.layout.fits(batch))
        self._device.refill(recording.inputs, self._values(batch, recording.layout, num_kept))
        recording.replay()
        num_rows = batch.num_seqs if self._pools else len(batch.token_ids)
        return recording.vectors[:num_rows]

    def _values(self, batch: Batch, layout: Layout, num_kept: Ints) -> Ints:
        """Return int32[layout.size]: the batch as `fill` writes it.

        That takes dozens of small steps in numpy, as long as a GPU computes a small model. So for a
        lone sequence, a query, the array is kept, and the next one that differs only in its ids
        copies it.
        """
        is_large = layout.num_tokens > ALWAYS_SHORT_TOKENS
        if batch.num_seqs != 1 or is_large or depends_on_ids(self._spec):
            return self._filled(batch, layout, num_kept)
        others = (num_kept, batch.num_prompt_tokens, batch.num_type0_tokens)
        key = (layout.num_tokens, len(batch.token_ids), *(int(values[0]) for values in others))
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) == MAX_KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._filled(batch, layout, num_kept)
        values = kept.copy()
        values[layout.places["token_ids"]][: len(batch.token_ids)] = batch.token_ids
        return values

    def _filled(self, batch: Batch, layout: Layout, num_kept: Ints) -> Ints:
        values = np.empty(layout.size, np.int32)
        fill(values, batch, layout, self._spec, self._plan.pooled_modes, num_kept)
        return values

    def _record(self, layout: Layout, executor: Executor) -> _Recording:
        inputs = torch.zeros(layout.size, dtype=torch.int32, device=self._device.torch_device)
        batch = device_batch(inputs, layout)
        # No closure: a failed load would not be freed, since its error keeps the function.
        launch = partial(_launch, executor, self._plan, batch, self._workspace)
        return _Recording(layout, inputs, *self._device.record(launch))


def _launch(
    executor: Executor, plan: Plan, batch: DeviceBatch, workspace: Workspace
) -> torch.Tensor:
    executor.run(whole(plan.steps), batch, workspace)
    return executor.finish(batch, workspace)


def bucket_sizes(most: int, room: int) -> tuple[int, ...]:
    """Return the tokens of the layouts to record.

    Args:
        most: the largest has no more tokens.
        room: of the largest batch; the first layout that holds it is the last.
    """
    num_smaller = sum(size < room for size in BUCKET_TOKENS)
    return tuple(size for size in BUCKET_TOKENS[: num_smaller + 1] if size <= most)
