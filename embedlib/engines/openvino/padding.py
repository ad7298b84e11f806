"""To how many tokens a batch is padded, beyond the length of its longest sequence."""

from __future__ import annotations

from typing import Final

from embedlib.engines.base import Batch, Lane

MIN_ROWS: Final = 8
"""Tokens that batches of large models are padded to: oneDNN packs a matrix in another form for
fewer, and keeps both. Source: docs/measurements/memory.md, packings."""
TILE_ROWS: Final = 16
"""Rows that AMX multiplies at once: padding a lone query to whole tiles costs no products, and the
library meets fewer sizes. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 1, chapter 18; docs/measurements/cpu-amx.md, batches, queries and attention."""
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
        has_tiles: bool = False,
        spare_tokens: int = 0,
    ) -> None:
        """Take what it depends on.

        Args:
            num_positions: a sequence has at most so many tokens, with its prefix and padding.
            min_rows: all batches are padded to so many tokens.
            has_tiles: whether AMX multiplies.
            spare_tokens: a lone query is padded by so many at most to the length of the one before.
        """
        self._num_positions = num_positions
        self._min_rows = min_rows
        self._has_tiles = has_tiles
        self._spare_tokens = spare_tokens
        self._query_tokens = 0
        """Of the latest lone query, with its padding."""

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
            if self._has_tiles:
                length = _round_up(length, TILE_ROWS)
            # Another thread may compute a query too: then each is padded by a bit more or less.
            if not 0 <= self._query_tokens - length <= self._spare_tokens:
                self._query_tokens = length
            length = self._query_tokens
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
