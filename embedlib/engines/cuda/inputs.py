"""Lays out a batch on the host as one int32 array, which is sent to the GPU in one copy.

The mix of lengths changes only the values of the array, not its layout: a layout has room for a
number of tokens, sequences and tiles, and a batch may leave some of it unused. So one CUDA graph,
recorded for one layout, computes every batch that fits.

**Tiles.** Attention is computed in tiles: up to `Layout.tile_queries` queries of one sequence
against the keys of that sequence. A table built here lists the tiles, one row per tile:

    first query row | number of queries | position of the first | first key row | number of keys

Keys that are kept from earlier batches (`prefixes`) come before the first key row; `tile_prefixes`
contains how many of a tile's keys they are. The kernel's grid is the number of rows in the table. A
row of zeros is a tile without queries, which ends immediately. The tiles with the most work come
first, so that no long tile starts last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.errors import EngineRunError
from embedlib.models.spec import Encoder, ModelSpec, Pooling, PoolingMode

Ints = NDArray[np.int32]

SHORT_TILE_ROWS: Final = 64
"""Rows of a tile in a recorded batch: the rows of one matrix instruction of Hopper. A short batch
has few tiles, so they are as small as possible to occupy many SMs."""
LONG_TILE_ROWS: Final = 128
"""Rows of a tile in other batches: each key that is read serves twice as many rows.

With 64 rows, 64 keys and values of 128 numbers are 32 KB and 2.1e6 operations. At 7.5e12 operations
per second an SM of an H200 would read 117 GB/s, and 132 SMs 15 TB/s, more than the L2 cache
delivers. This is arithmetic, not a measurement."""
FLOAT32_TILE_ROWS: Final = 16
"""Rows of a tile in float32, which has no exact matrix instruction: the operands of a product stay
in registers, and 64 rows of 128 numbers would spill 53 KB when compiled for Hopper."""
FLOAT32_BYTES: Final = 4
MAX_TILE_BYTES: Final = 32 << 10
"""Maximum size of a long tile's queries; more would leave too little shared memory for keys."""
MAX_PACKED_HEADS: Final = 16
ALIGNED_NUMBERS: Final = 4
"""Parts of a layout, and parts of a tile table, begin at multiples of this many int32 numbers, 16
bytes. For other addresses Triton would compile the kernel again, which takes seconds under load."""
TILE_COLUMNS: Final = 5


def packed_heads(heads_per_key: int) -> int:
    """Return how many of the heads that share keys are rows of one tile: a power of two."""
    return math.gcd(heads_per_key, MAX_PACKED_HEADS)


def tile_queries(encoder: Encoder, *, is_short: bool, itemsize: int) -> int:
    """Return the maximum queries of a tile; each query has one row per packed head."""
    num_rows = LONG_TILE_ROWS
    if itemsize == FLOAT32_BYTES:
        num_rows = FLOAT32_TILE_ROWS
    elif is_short or LONG_TILE_ROWS * encoder.head_dim * itemsize > MAX_TILE_BYTES:
        num_rows = SHORT_TILE_ROWS
    return num_rows // packed_heads(encoder.num_heads // encoder.num_kv_heads)


@dataclass(frozen=True)
class Layout:
    """The layout of a batch; its parts follow each other, each aligned to 16 bytes."""

    num_tokens: int
    """T, room for this many tokens."""
    num_seqs: int
    """B, room for this many sequences."""
    num_pooled_modes: int
    """Pooled rows per sequence; P is B times this."""
    tile_queries: int = SHORT_TILE_ROWS
    """Maximum queries of an attention tile."""

    @property
    def max_tiles(self) -> int:
        """Maximum tiles of a batch that fits: the full ones, and one partial tile per sequence."""
        return self.num_tokens // self.tile_queries + self.num_seqs

    @property
    def num_pooled(self) -> int:
        """P, room for this many pooled rows."""
        return self.num_seqs * self.num_pooled_modes

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parts by name, in order."""
        return {
            "token_ids": (self.num_tokens,),
            "positions": (self.num_tokens,),
            "token_types": (self.num_tokens,),
            "cu_seqlens": (self.num_seqs + 1,),
            "num_prompt_tokens": (self.num_seqs,),
            "tiles": (self.max_tiles, TILE_COLUMNS),
            "tile_prefixes": (self.max_tiles,),
            "pooled_rows": (self.num_pooled,),
            "pooled_positions": (self.num_pooled,),
            "pooled_tiles": (self.num_pooled, TILE_COLUMNS),
            "pooled_tile_prefixes": (self.num_pooled,),
        }

    @cached_property
    def places(self) -> dict[str, slice]:
        """The slice of each part in the array, by name."""
        places, start = {}, 0
        for name, shape in self.shapes.items():
            places[name] = slice(start, start + math.prod(shape))
            start = -(-places[name].stop // ALIGNED_NUMBERS) * ALIGNED_NUMBERS
        return places

    @cached_property
    def size(self) -> int:
        """Length of the array."""
        return int(max(place.stop for place in self.places.values()))

    def fits(self, batch: Batch) -> bool:
        """Whether a batch fits into this layout."""
        return len(batch.token_ids) <= self.num_tokens and batch.num_seqs <= self.num_seqs


def layout_of(
    batch: Batch, pooled_modes: tuple[PoolingMode, ...], tile_queries: int = SHORT_TILE_ROWS
) -> Layout:
    """Return the layout that a batch fills completely."""
    return Layout(len(batch.token_ids), batch.num_seqs, len(pooled_modes), tile_queries)


def fill(
    target: Ints,
    batch: Batch,
    layout: Layout,
    spec: ModelSpec,
    pooled_modes: tuple[PoolingMode, ...],
    num_kept: Ints | None = None,
) -> None:
    """Write a batch into int32[layout.size].

    Unused sequences of the layout are empty; unused rows are token 0, which no tile reads.

    Args:
        target: int32[layout.size], overwritten.
        batch: a batch that has passed `check`.
        layout: a layout that the batch fits.
        spec: the model.
        pooled_modes: the plan's pooling modes.
        num_kept: int32[B], tokens before each sequence whose keys are kept; None: no keys are kept.
    """
    target[:] = 0
    parts = split(target, layout)
    num_tokens, num_seqs = len(batch.token_ids), batch.num_seqs
    starts, lengths = batch.cu_seqlens[:-1], batch.seq_lens
    kept = np.zeros_like(lengths) if num_kept is None else num_kept
    places = np.arange(num_tokens, dtype=np.int32) - np.repeat(starts - kept, lengths)
    parts["token_ids"][:num_tokens] = batch.token_ids
    parts["positions"][:num_tokens] = _positions(batch, places, spec.encoder)
    if spec.encoder.num_token_types > 1 and spec.head is not None and spec.head.has_token_types:
        parts["token_types"][:num_tokens] = places >= np.repeat(batch.num_type0_tokens, lengths)
    parts["cu_seqlens"][: num_seqs + 1] = batch.cu_seqlens
    parts["cu_seqlens"][num_seqs + 1 :] = num_tokens
    parts["num_prompt_tokens"][:num_seqs] = batch.num_prompt_tokens
    table = tile_table(batch.cu_seqlens, layout.tile_queries)
    _write_tiles(parts, "tile", table, kept[np.searchsorted(starts, table[:, 3], "right") - 1])
    if not pooled_modes:
        return
    own = places - np.repeat(kept, lengths)
    places_of = {"cls": _first_places(batch, spec), "last_token": _last_places(batch, own, spec)}
    pooled = np.stack([places_of[mode] for mode in pooled_modes], axis=1).reshape(-1)
    num_pooled = len(pooled)
    # Unused entries repeat the last one, so that a step that writes rows back writes equal values.
    parts["pooled_rows"][:] = starts[-1] + pooled[-1]
    firsts = np.repeat(starts, len(pooled_modes))
    parts["pooled_rows"][:num_pooled] = firsts + pooled
    parts["pooled_positions"][:num_pooled] = parts["positions"][firsts + pooled]
    rows = np.arange(num_pooled, dtype=np.int32)
    keys = np.repeat(lengths, len(pooled_modes))
    table = _table(rows, 1, pooled, firsts, keys)
    _write_tiles(parts, "pooled_tile", table, np.repeat(kept, len(pooled_modes)))


def depends_on_ids(spec: ModelSpec) -> bool:
    """Whether more than the ids themselves depends on them: positions, or the pooled token."""
    encoder, first = spec.encoder, spec.modules[0]
    counts_ids = encoder.rope is None and encoder.pad_token_id is not None
    return counts_ids or (isinstance(first, Pooling) and first.skipped_token_id is not None)


def split(values: Ints, layout: Layout) -> dict[str, Ints]:
    """Return the parts by name, as views."""
    shapes = layout.shapes
    return {name: values[place].reshape(shapes[name]) for name, place in layout.places.items()}


def check(batch: Batch, spec: ModelSpec) -> None:
    """Reject ids and positions outside the model's tables; a GPU would read other memory.

    Raises:
        EngineRunError: a token id is not in the vocabulary, or a sequence is too long.
    """
    encoder = spec.encoder
    lowest, highest = int(batch.token_ids.min()), int(batch.token_ids.max())
    if lowest < 0 or highest >= encoder.vocab_size:
        raise EngineRunError(
            f"engine cuda: token ids from {lowest} to {highest}; the model allows 0 to "
            f"{encoder.vocab_size - 1}"
        )
    longest = int(batch.seq_lens.max())
    if longest > spec.max_seq_tokens:
        raise EngineRunError(
            f"engine cuda: a sequence has {longest} tokens; the model allows {spec.max_seq_tokens}"
        )


def _positions(batch: Batch, places: Ints, encoder: Encoder) -> Ints:
    """Return int32[T]: the row of each token in the tables of angles or positions."""
    if encoder.rope is not None or encoder.pad_token_id is None:
        return places + np.int32(0 if encoder.rope is not None else encoder.position_offset)
    # Counted from pad_token_id + 1 on; a padding token is not counted and has row pad_token_id.
    # Source: `create_position_ids_from_input_ids` in transformers, models/roberta.
    is_counted = batch.token_ids != encoder.pad_token_id
    counts = np.concatenate([[0], np.cumsum(is_counted)])
    before = np.repeat(counts[batch.cu_seqlens[:-1]], batch.seq_lens)
    rows: Ints = ((counts[1:] - before) * is_counted + encoder.pad_token_id).astype(np.int32)
    return rows


def _first_places(batch: Batch, spec: ModelSpec) -> Ints:
    """Return int32[B]: the position of each sequence's token that cls pooling takes.

    Source: `Pooling._forward_padded` of sentence-transformers 6.2.
    """
    if spec.pooling.include_prompt:
        return np.zeros_like(batch.seq_lens)
    is_more = batch.num_prompt_tokens < batch.seq_lens
    firsts: Ints = np.where(is_more, batch.num_prompt_tokens, 0).astype(np.int32)
    return firsts


def _last_places(batch: Batch, places: Ints, spec: ModelSpec) -> Ints:
    """Return int32[B]: the position of the last token in each sequence that may be pooled.

    Source: `GenericForSequenceClassification` in transformers, modeling_layers.py.
    """
    skipped = spec.pooling.skipped_token_id
    if skipped is None:
        return batch.seq_lens - 1
    counted = np.where(batch.token_ids == skipped, 0, places)
    lasts: Ints = np.maximum.reduceat(counted, batch.cu_seqlens[:-1])
    return lasts


def tile_table(cu_seqlens: Ints, tile_queries: int) -> Ints:
    """Return int32[tiles, 5]: the tiles of all queries of all sequences."""
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    num_tiles = -(-lengths // tile_queries)
    seqs = np.repeat(np.arange(len(lengths)), num_tiles)
    firsts = np.cumsum(num_tiles) - num_tiles
    places = (np.arange(len(seqs)) - firsts[seqs]) * tile_queries
    counts = np.minimum(lengths[seqs] - places, tile_queries)
    return _table(starts[seqs] + places, counts, places, starts[seqs], lengths[seqs])


def _table(rows: Ints, *others: Ints | int) -> Ints:
    """Return int32[tiles, 5] of its columns."""
    table = np.empty((len(rows), TILE_COLUMNS), np.int32)
    for column, values in enumerate((rows, *others)):
        table[:, column] = values
    return table


def _write_tiles(parts: dict[str, Ints], name: str, table: Ints, num_kept: Ints) -> None:
    """Write a tile table, adding the kept keys to it, and the number of kept keys per tile."""
    table[:, [2, 4]] += num_kept[:, None]
    work = table[:, 2] + table[:, 4]  # the work of causal tiles grows with their position
    order = np.argsort(-work, kind="stable")
    parts[f"{name}s"][: len(table)] = table[order]
    parts[f"{name}_prefixes"][: len(table)] = num_kept[order]
