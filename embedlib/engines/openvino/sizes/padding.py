"""To how many tokens a batch is padded, beyond the length of its longest sequence."""

from __future__ import annotations

from typing import Final

from embedlib.engines.base import Batch, Lane

MIN_ROWS: Final = 8
"""Tokens that batches of large models are padded to: oneDNN packs a matrix in another form for
fewer, and keeps both. Source: docs/measurements/memory.md, packings."""
QUERY_ROWS: Final = 4
"""In int8 and bf16 a lone query's length is a multiple of so many tokens: the library, which sizes
its operators for each length anew, meets fewer. Source: docs/measurements/memory.md, sizes of
batches."""
TILE_ROWS: Final = 16
"""Rows that AMX multiplies at once: padding a lone query to whole tiles costs no products.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
chapter 18; docs/measurements/cpu-amx.md, batches, queries and attention."""
EVEN: Final = 2
"""Where AMX multiplies, tokens that a batch's length is a multiple of: with an odd one attention
takes up to 1.4 times as long. Source: docs/measurements/cpu-amx.md, even lengths."""
LONG_TOKENS: Final = 256
"""From so many tokens on it is a multiple of `TILE_ROWS`, which saves more than the padding costs.
Same source."""


class Padding:
    """The padding of one engine's batches; any thread may call it."""

    def __init__(
        self,
        num_positions: int,
        *,
        min_rows: int = 1,
        query_rows: int = 1,
        has_tiles: bool = False,
    ) -> None:
        """Take what it depends on.

        Args:
            num_positions: a sequence has at most so many tokens, with its prefix and padding.
            min_rows: all batches are padded to so many tokens.
            query_rows: a lone query's length is a multiple of so many.
            has_tiles: whether AMX multiplies.
        """
        self._num_positions = num_positions
        self._min_rows = min_rows
        self._query_rows = TILE_ROWS if has_tiles else query_rows
        self._has_tiles = has_tiles

    def rows(self, batch: Batch, num_before: int) -> int:
        """Return to how many tokens a batch is padded at least.

        Args:
            batch: the sequences, without a prefix.
            num_before: the tokens of their prefix.
        """
        length = int(batch.seq_lens.max())
        if batch.lane is not Lane.QUERY or batch.num_seqs > 1:
            length = self._length(length, num_before)
        else:
            length = _round_up(length, self._query_rows)
        most = batch.num_seqs * (self._num_positions - num_before)
        return min(max(self._min_rows, batch.num_seqs * length), most)

    def _length(self, longest: int, num_before: int) -> int:
        """Return to how many tokens each sequence is padded, at least."""
        if not self._has_tiles:
            return longest
        step = EVEN if longest < LONG_TOKENS else TILE_ROWS
        return _round_up(num_before + longest, step) - num_before


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
