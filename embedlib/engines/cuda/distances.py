"""Relative positions on the device: the vectors of distances, and which one a pair of tokens has.

A score adds q . K(r) and k . Q(r), where r is the row of the pair's distance in the table of
vectors (`RelativePositions`). Far pairs share a row, so there are fewer products of a token with a
row than with another token: they are computed first, for all tokens, and attention picks from them.
Of a short text only few rows occur; products with the others are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from embedlib.engines.cuda.inputs import Ints
from embedlib.models.encoder_parts import RelativePositions
from embedlib.models.position_bias import signed_buckets

ALIGNED_ROWS: Final = 8
"""Products begin and end at multiples of this many rows, 16 bytes of bfloat16: for other addresses
libraries use slower kernels."""


@dataclass(frozen=True)
class Distances:
    """What the relative positions of a model are on the device."""

    rows: torch.Tensor
    """int32[2 * positions - 1]: the row of the distance at key - query + positions - 1."""
    first_rows: Ints
    """int32[positions] on the host: the first row that a sequence of i + 1 tokens has."""
    vectors: Mapping[str, torch.Tensor]
    """[heads, rows, head_dim] in the plan's number type, by the role of the projection."""

    def needed(self, longest: int) -> slice:
        """Return the rows that sequences of at most `longest` tokens have, and a few more."""
        num_rows = next(iter(self.vectors.values())).shape[1]
        first = int(self.first_rows[min(longest, len(self.first_rows)) - 1])
        # Rows lie around the one of distance 0, as far to either side.
        stop = -(-(num_rows - first + 1) // ALIGNED_ROWS) * ALIGNED_ROWS
        return slice(first // ALIGNED_ROWS * ALIGNED_ROWS, min(stop, num_rows))


@dataclass(frozen=True)
class ByDistance:
    """The products that attention picks from."""

    rows: torch.Tensor
    """As in `Distances`."""
    of_queries: torch.Tensor
    """[queries, heads * vectors]."""
    of_keys: torch.Tensor
    """[T, heads * vectors]."""


def rows_by_distance(relative: RelativePositions, num_positions: int) -> Ints:
    """Return int32[2 * positions - 1]: the row at key - query + positions - 1."""
    after = np.arange(1 - num_positions, num_positions)  # the key's place minus the query's
    return signed_buckets(relative, -after).astype(np.int32)
