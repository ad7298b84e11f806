"""The attention kernel: FlashAttention over a table of tiles, on packed sequences."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.inputs import (
    FLOAT32_BYTES,
    LONG_TILE_ROWS,
    SHORT_TILE_ROWS,
    packed_heads,
)
from embedlib.engines.cuda.kernels.triton_math import FP_FUSION, tanh
from embedlib.engines.cuda.reference import AttentionShape, Prefix

MIN_DOT: Final = 16
"""Minimum size of each side of Triton's matrix product."""
MAX_SHARED_BYTES: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {
        **dict.fromkeys(((8, 0), (8, 7)), 163 << 10),
        **dict.fromkeys(((8, 6), (8, 9), (12, 0), (12, 1)), 99 << 10),
        **dict.fromkeys(((9, 0), (10, 0), (10, 3), (11, 0)), 227 << 10),
    }
)
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

_LOG2_E: Final = 1.4426950408889634
_LOG2_E_IN_KERNEL = tl.constexpr(_LOG2_E)
_MASKED = tl.constexpr(-1.0e30)
"""Finite, so that a row without any key so far does not compute infinity minus infinity."""


def attend(
    query: torch.Tensor,
    key_value: torch.Tensor,
    tiles: torch.Tensor,
    tile_queries: int,
    shape: AttentionShape,
    window: int | None,
    position_bias: torch.Tensor | None,
    out: torch.Tensor,
    prefix: Prefix | None = None,
) -> None:
    """Launch `attend_kernel`; see `reference.attend`."""
    width = shape.num_kv_heads * shape.head_dim
    heads_per_key = shape.num_heads // shape.num_kv_heads
    pack = packed_heads(heads_per_key)
    block_queries = max(tile_queries, MIN_DOT // pack)
    block_dim = max(MIN_DOT, triton.next_power_of_2(shape.head_dim))
    capability = torch.cuda.get_device_capability(query.device) if query.is_cuda else (9, 0)
    num_rows = block_queries * pack
    block_keys, num_stages = attention_blocks(
        num_rows, block_dim, query.itemsize, capability, has_bias=position_bias is not None
    )
    attend_kernel[(tiles.shape[0], shape.num_heads // pack)](
        query,
        key_value,
        tiles,
        query if position_bias is None else position_bias,
        key_value if prefix is None else prefix.key_value,
        tiles if prefix is None else prefix.num_keys,
        out,
        query.stride(0),
        key_value.stride(0),
        out.stride(0),
        key_value.shape[1] - 2 * width,
        shape.scale * _LOG2_E if shape.cap is None else shape.scale / shape.cap,
        0.0 if shape.cap is None else shape.cap * _LOG2_E,
        0 if position_bias is None else position_bias.shape[1],
        window or 0,
        2 * width if prefix is None else prefix.key_value.stride(0),
        HEADS_PER_KEY=heads_per_key,
        PACK=pack,
        WIDTH=width,
        HEAD_DIM=shape.head_dim,
        IS_CAUSAL=shape.is_causal,
        HAS_WINDOW=window is not None,
        HAS_CAP=shape.cap is not None,
        HAS_BIAS=position_bias is not None,
        HAS_PREFIX=prefix is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        BLOCK_QUERIES=block_queries,
        BLOCK_KEYS=block_keys,
        BLOCK_DIM=block_dim,
        num_warps=attention_warps(num_rows, block_dim),
        enable_fp_fusion=FP_FUSION,
        num_stages=num_stages,
    )


def attention_blocks(
    num_rows: int, block_dim: int, itemsize: int, capability: tuple[int, int], *, has_bias: bool
) -> tuple[int, int]:
    """Return the keys per block and the pipeline stages that fit into shared memory."""
    if itemsize == FLOAT32_BYTES:
        return KEYS_AND_STAGES[-1]
    room = MAX_SHARED_BYTES.get(capability, LEAST_SHARED_BYTES) - SHARED_ROOM_BYTES
    for block_keys, num_stages in KEYS_AND_STAGES:
        num_bytes = (num_rows + 2 * num_stages * block_keys) * block_dim * itemsize
        if has_bias:  # one float32 per score, also prefetched for each stage
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


@triton.jit
def attend_kernel(
    query: tl.tensor,
    key_value: tl.tensor,
    tiles: tl.tensor,
    position_bias: tl.tensor,
    prefix: tl.tensor,
    prefix_lengths: tl.tensor,
    out: tl.tensor,
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    out_stride: tl.tensor,
    first_key_column: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    num_distances: tl.tensor,
    window: tl.tensor,
    prefix_stride: tl.tensor,
    HEADS_PER_KEY: tl.constexpr,
    PACK: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> None:
    """Compute PACK heads of one tile: up to BLOCK_QUERIES queries over their sequence's keys.

    Heads that share keys and values are rows of one tile, so that both are read once for PACK
    heads. Blocks of keys that no query of the tile can see (after it, or outside its window) are
    not read. Blocks that all queries see, most of a long text, are computed without a mask.

    query: [queries, query_stride], head h at columns h * HEAD_DIM; key_value: [T, key_stride], keys
    at first_key_column, values WIDTH columns later; tiles: int32[tiles, 5], see `inputs`; prefix:
    [positions, prefix_stride], kept keys and values in the same order; prefix_lengths:
    int32[tiles]; position_bias: float32[heads, num_distances]; out: [queries, out_stride]. The
    softmax uses powers of two: scale includes the factor log2(e); with a cap, scale is applied
    before tanh and cap includes log2(e).
    """
    tile = tiles + tl.program_id(0) * 5
    num_queries = tl.load(tile + 1)
    if num_queries == 0:
        return
    query_row = tl.load(tile).to(tl.int64)
    place = tl.load(tile + 2)
    key_row = tl.load(tile + 3).to(tl.int64)
    num_keys = tl.load(tile + 4)

    row = tl.arange(0, BLOCK_QUERIES * PACK)
    query_offset = row // PACK
    head = tl.program_id(1) * PACK + row % PACK
    dim = tl.arange(0, BLOCK_DIM)
    is_query = (query_offset < num_queries)[:, None] & (dim < HEAD_DIM)[None, :]
    at_head = (head * HEAD_DIM)[:, None] + dim[None, :]
    query_at = (query_row + query_offset)[:, None] * query_stride + at_head
    queries = tl.load(query + query_at, mask=is_query, other=0.0)
    keys_at = key_value + key_row * key_stride + first_key_column
    keys_at += (tl.program_id(1) * PACK // HEADS_PER_KEY) * HEAD_DIM

    # Some query sees the keys from first to last; all queries see those from left to right.
    first, last = 0, num_keys
    left, right = 0, num_keys
    reach = 0
    if IS_CAUSAL:
        last = tl.minimum(num_keys, place + num_queries)
        right = tl.minimum(num_keys, place + 1)
    if HAS_WINDOW:
        reach = window - 1 if IS_CAUSAL else window
        first = tl.maximum(0, place - reach)
        last = tl.minimum(last, place + num_queries + reach)
        left = tl.maximum(first, place + num_queries - 1 - reach)
        right = tl.minimum(right, place + 1 + reach)

    state = (
        tl.full([BLOCK_QUERIES * PACK], _MASKED, tl.float32),
        tl.zeros([BLOCK_QUERIES * PACK], tl.float32),
        tl.zeros([BLOCK_QUERIES * PACK, BLOCK_DIM], tl.float32),
    )
    if HAS_PREFIX:
        num_kept = tl.load(prefix_lengths + tl.program_id(0))
        kept_at = prefix + (tl.program_id(1) * PACK // HEADS_PER_KEY) * HEAD_DIM
        state = _attend_range(
            first, num_kept, state, queries, kept_at, place + query_offset, head,
            position_bias, num_kept, prefix_stride, scale, cap, num_distances, reach,
            True, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, PRECISION,
            BLOCK_KEYS, BLOCK_DIM,
        )  # fmt: skip
        keys_at -= num_kept.to(tl.int64) * key_stride
        first = tl.maximum(first, num_kept)
        left = tl.maximum(left, first)
    left = first + tl.cdiv(left - first, BLOCK_KEYS) * BLOCK_KEYS
    right = tl.maximum(left, first + (right - first) // BLOCK_KEYS * BLOCK_KEYS)

    if HAS_WINDOW:
        state = _attend_range(
            first, tl.minimum(left, last), state, queries, keys_at, place + query_offset, head,
            position_bias, last, key_stride, scale, cap, num_distances, reach,
            True, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, PRECISION,
            BLOCK_KEYS, BLOCK_DIM,
        )  # fmt: skip
    state = _attend_range(
        left, right, state, queries, keys_at, place + query_offset, head,
        position_bias, last, key_stride, scale, cap, num_distances, reach,
        False, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, PRECISION,
        BLOCK_KEYS, BLOCK_DIM,
    )  # fmt: skip
    _, total, mixed = _attend_range(
        right, last, state, queries, keys_at, place + query_offset, head,
        position_bias, last, key_stride, scale, cap, num_distances, reach,
        True, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, PRECISION,
        BLOCK_KEYS, BLOCK_DIM,
    )  # fmt: skip

    mixed = mixed / total[:, None]
    out_at = (query_row + query_offset)[:, None] * out_stride + at_head
    tl.store(out + out_at, mixed.to(out.dtype.element_ty), mask=is_query)


@triton.jit
def _attend_range(
    first: tl.tensor,
    end: tl.tensor,
    state: tl.tuple,
    queries: tl.tensor,
    keys_at: tl.tensor,
    query_place: tl.tensor,
    head: tl.tensor,
    position_bias: tl.tensor,
    last: tl.tensor,
    key_stride: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    num_distances: tl.tensor,
    reach: tl.tensor,
    IS_EDGE: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> tl.tuple:
    """Add the keys from first to end to the state; IS_EDGE masks keys that a query cannot see.

    The softmax is computed online: a larger score rescales the weights so far.
    Source: Dao, "FlashAttention-2", arXiv:2307.08691, algorithm 1.

    state: per row the largest score, the sum of the weights, and the weighted sum of the values.
    """
    largest, total, mixed = state
    key_offset = tl.arange(0, BLOCK_KEYS)
    dim = tl.arange(0, BLOCK_DIM)
    is_dim = dim < HEAD_DIM
    for start in range(first, end, BLOCK_KEYS):
        key_place = start + key_offset
        key_rows = key_place.to(tl.int64) * key_stride
        is_key = is_dim[None, :]
        if IS_EDGE:
            is_key &= (key_place < last)[:, None]
        keys = tl.load(keys_at + key_rows[:, None] + dim[None, :], mask=is_key, other=0.0)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION)
        distance = key_place[None, :] - query_place[:, None]
        if HAS_CAP:
            scores = cap * tanh(scores * scale)
        elif HAS_BIAS:
            scores = scores * scale
        if HAS_BIAS:
            column = distance + num_distances // 2
            # Rows without a query, and keys after the last one, may be outside the table.
            is_known = (column >= 0) & (column < num_distances)
            bias_at = position_bias + head[:, None] * num_distances + column
            scores += tl.load(bias_at, mask=is_known, other=0.0) * _LOG2_E_IN_KERNEL
        if IS_EDGE:
            visible = (key_place < last)[None, :]
            if IS_CAUSAL:
                visible &= distance <= 0
            if HAS_WINDOW:
                visible &= (distance >= -reach) & (distance <= reach)
            scores = tl.where(visible, scores, _MASKED)
        if HAS_CAP or HAS_BIAS:
            new_largest = tl.maximum(largest, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_largest[:, None])
        else:
            new_largest = tl.maximum(largest, tl.max(scores, axis=1) * scale)
            weights = tl.exp2(scores * scale - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(keys_at + WIDTH + key_rows[:, None] + dim[None, :], mask=is_key, other=0.0)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * shrink[:, None], input_precision=PRECISION
        )
        largest = new_largest
    return largest, total, mixed
