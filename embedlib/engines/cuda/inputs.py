"""What a batch is to the GPU: one int32 array, laid out on the host and sent in one copy.

Nothing of it depends on the mix of lengths but its values: a layout has room for so many tokens,
sequences and tiles, and a batch may leave some of it unused. So one CUDA graph, recorded for one
layout, computes every batch that fits.

**Tiles.** Attention is computed in tiles: up to `TILE_QUERIES` queries of one sequence against the
keys of that sequence. Which tiles there are is a table made here, one row per tile:

    first query row | number of queries | position of the first | first key row | number of keys

The kernel's grid is the number of rows in the table. A row of zeros is a tile without queries,
which ends at once. Tiles come with the most work first, so that none that is long starts last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.errors import EngineRunError
from embedlib.models.spec import Encoder, ModelSpec, PoolingMode

Ints = NDArray[np.int32]

TILE_QUERIES: Final = 64
"""Queries of a tile: four times what one matrix instruction takes, and few enough registers."""
TILE_COLUMNS: Final = 5


@dataclass(frozen=True)
class Layout:
    """Room for a batch; every part begins where the one before ends."""

    num_tokens: int
    """T."""
    num_seqs: int
    """B."""
    num_pooled_modes: int
    """Pooled rows of a sequence; P = B times this."""

    @property
    def max_tiles(self) -> int:
        """Tiles of any batch that fits: full ones, and one that is not full per sequence."""
        return self.num_tokens // TILE_QUERIES + self.num_seqs

    @property
    def num_pooled(self) -> int:
        """P."""
        return self.num_seqs * self.num_pooled_modes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parts by name, in order."""
        return {
            "token_ids": (self.num_tokens,),
            "positions": (self.num_tokens,),
            "token_types": (self.num_tokens,),
            "cu_seqlens": (self.num_seqs + 1,),
            "num_prompt_tokens": (self.num_seqs,),
            "tiles": (self.max_tiles, TILE_COLUMNS),
            "pooled_rows": (self.num_pooled,),
            "pooled_positions": (self.num_pooled,),
            "pooled_tiles": (self.num_pooled, TILE_COLUMNS),
        }

    @property
    def size(self) -> int:
        """Numbers in all."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def fits(self, batch: Batch) -> bool:
        """Whether a batch has room here."""
        return len(batch.token_ids) <= self.num_tokens and batch.num_seqs <= self.num_seqs


def layout_of(batch: Batch, pooled_modes: tuple[PoolingMode, ...]) -> Layout:
    """Return the layout that a batch fills."""
    return Layout(len(batch.token_ids), batch.num_seqs, len(pooled_modes))


def fill(
    target: Ints,
    batch: Batch,
    layout: Layout,
    spec: ModelSpec,
    pooled_modes: tuple[PoolingMode, ...],
) -> None:
    """Write a batch into int32[layout.size].

    Sequences that the layout has and the batch has not are empty; rows that it has not are token 0,
    which no tile reads.

    Args:
        target: int32[layout.size].
        batch: a batch that `check` has accepted.
        layout: which fits it.
        spec: the model.
        pooled_modes: of the plan.
    """
    target[:] = 0
    parts = split(target, layout)
    num_tokens, num_seqs = len(batch.token_ids), batch.num_seqs
    starts, lengths = batch.cu_seqlens[:-1], batch.seq_lens
    places = np.arange(num_tokens, dtype=np.int32) - np.repeat(starts, lengths)
    parts["token_ids"][:num_tokens] = batch.token_ids
    parts["positions"][:num_tokens] = _positions(batch, places, spec.encoder)
    if spec.encoder.num_token_types > 1 and spec.head is not None and spec.head.has_token_types:
        parts["token_types"][:num_tokens] = places >= np.repeat(batch.num_first_tokens, lengths)
    parts["cu_seqlens"][: num_seqs + 1] = batch.cu_seqlens
    parts["cu_seqlens"][num_seqs + 1 :] = num_tokens
    parts["num_prompt_tokens"][:num_seqs] = batch.num_prompt_tokens
    _write_tiles(parts["tiles"], _tiles(starts, lengths))
    if not pooled_modes:
        return
    places_of = {"cls": np.zeros_like(lengths), "last_token": _last_places(batch, places, spec)}
    pooled = np.stack([places_of[mode] for mode in pooled_modes], axis=1).reshape(-1)
    num_pooled = len(pooled)
    firsts = np.repeat(starts, len(pooled_modes))
    parts["pooled_rows"][:num_pooled] = firsts + pooled
    parts["pooled_positions"][:num_pooled] = parts["positions"][firsts + pooled]
    rows = np.arange(num_pooled, dtype=np.int32)
    keys = np.repeat(lengths, len(pooled_modes))
    table = np.stack([rows, np.ones_like(rows), pooled, firsts, keys], axis=1)
    _write_tiles(parts["pooled_tiles"], table)


def split(values: Ints, layout: Layout) -> dict[str, Ints]:
    """Return the parts by name, as views."""
    parts = {}
    start = 0
    for name, shape in layout.shapes.items():
        size = int(np.prod(shape))
        parts[name] = values[start : start + size].reshape(shape)
        start += size
    return parts


def check(batch: Batch, spec: ModelSpec) -> None:
    """Refuse what would read beyond a table; on a GPU that is other memory.

    Raises:
        EngineRunError: an id or a length is beyond what the model has.
    """
    encoder = spec.encoder
    lowest, highest = int(batch.token_ids.min()), int(batch.token_ids.max())
    if lowest < 0 or highest >= encoder.vocab_size:
        raise EngineRunError(
            f"engine cuda: token ids from {lowest} to {highest}; the model has {encoder.vocab_size}"
        )
    longest = int(batch.seq_lens.max())
    if longest > spec.max_seq_tokens:
        raise EngineRunError(
            f"engine cuda: a sequence has {longest} tokens; the model allows {spec.max_seq_tokens}"
        )


def _positions(batch: Batch, places: Ints, encoder: Encoder) -> Ints:
    """Return int32[T]: the angle's number where positions turn, else the row of the table."""
    if encoder.rope is not None or encoder.pad_token_id is None:
        return places + np.int32(0 if encoder.rope is not None else encoder.position_offset)
    # Counted from pad_token_id + 1 on, the padding token as text neither counted nor moved.
    # Source: `create_position_ids_from_input_ids` in transformers, models/roberta.
    is_counted = batch.token_ids != encoder.pad_token_id
    counts = np.concatenate([[0], np.cumsum(is_counted)])
    before = np.repeat(counts[batch.cu_seqlens[:-1]], batch.seq_lens)
    rows: Ints = ((counts[1:] - before) * is_counted + encoder.pad_token_id).astype(np.int32)
    return rows


def _last_places(batch: Batch, places: Ints, spec: ModelSpec) -> Ints:
    """Return int32[B]: the place of the last token of each sequence that pooling may take.

    Source: `GenericForSequenceClassification` in transformers, modeling_layers.py.
    """
    skipped = spec.pooling.skipped_token_id
    if skipped is None:
        return batch.seq_lens - 1
    counted = np.where(batch.token_ids == skipped, 0, places)
    lasts: Ints = np.maximum.reduceat(counted, batch.cu_seqlens[:-1])
    return lasts


def _tiles(starts: Ints, lengths: Ints) -> Ints:
    """Return int32[tiles, 5]: the tiles of all queries of all sequences."""
    num_tiles = -(-lengths // TILE_QUERIES)
    seqs = np.repeat(np.arange(len(lengths)), num_tiles)
    firsts = np.cumsum(num_tiles) - num_tiles
    places = (np.arange(len(seqs)) - firsts[seqs]) * TILE_QUERIES
    counts = np.minimum(lengths[seqs] - places, TILE_QUERIES)
    return np.stack([starts[seqs] + places, counts, places, starts[seqs], lengths[seqs]], axis=1)


def _write_tiles(target: Ints, table: Ints) -> None:
    work = table[:, 2] + table[:, 4]  # causal tiles grow with their position
    target[: len(table)] = table[np.argsort(-work, kind="stable")]
