"""Sizes of the attention kernel's blocks, by what fits into shared memory and registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.engines.cuda.inputs import FLOAT32_BYTES, LONG_TILE_ROWS, SHORT_TILE_ROWS

MAX_SHARED_BYTES: Final[Mapping[tuple[int, int], int]] = {
    **dict.fromkeys(((8, 0), (8, 7)), 163 << 10),
    **dict.fromkeys(((8, 6), (8, 9), (12, 0), (12, 1)), 99 << 10),
    **dict.fromkeys(((9, 0), (10, 0), (10, 3), (11, 0)), 227 << 10),
}
"""Maximum shared memory of a block by compute capability. Source: CUDA C++ Programming Guide,
technical specifications per compute capability."""
LEAST_SHARED_BYTES: Final = 64 << 10
"""Minimum shared memory of every GPU from compute capability 7.5 on; same source."""
KEYS_AND_STAGES: Final = ((64, 3), (64, 2), (32, 2), (32, 1), (16, 1))
"""Keys of a block and pipeline stages, the best first; the first pair that fits is used. With three
stages two blocks are copied while one is computed. More keys per block would leave too few
registers for 128 rows."""
SHARED_ROOM_BYTES: Final = 2 << 10
"""Shared memory reserved for the compiler: barriers, and the maximum and sum of each row."""


def attention_blocks(
    num_rows: int, block_dim: int, itemsize: int, capability: tuple[int, int], *, has_table: bool
) -> tuple[int, int]:
    """Return the keys per block and the pipeline stages that fit into shared memory."""
    if itemsize == FLOAT32_BYTES:
        return KEYS_AND_STAGES[-1]
    room = MAX_SHARED_BYTES.get(capability, LEAST_SHARED_BYTES) - SHARED_ROOM_BYTES
    for block_keys, num_stages in KEYS_AND_STAGES:
        num_bytes = (num_rows + 2 * num_stages * block_keys) * block_dim * itemsize
        if has_table:  # one number of four bytes per score, also prefetched for each stage
            num_bytes += num_stages * num_rows * block_keys * FLOAT32_BYTES
        if num_bytes <= room:
            return block_keys, num_stages
    return KEYS_AND_STAGES[-1]


def attention_warps(num_rows: int, block_dim: int) -> int:
    """Return the warps of a tile: one or two warp groups of Hopper, four warps each.

    Two are used if with one a thread would hold more than 64 numbers of the result, or more than 32
    scores.
    """
    return 8 if num_rows * max(block_dim, LONG_TILE_ROWS) > SHORT_TILE_ROWS * LONG_TILE_ROWS else 4
