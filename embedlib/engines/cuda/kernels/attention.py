"""The attention kernel: FlashAttention over a table of tiles, on packed sequences."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.distances import ByDistance
from embedlib.engines.cuda.inputs import packed_heads
from embedlib.engines.cuda.kernels.attention_sizes import attention_blocks, attention_warps
from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.kernels.triton_math import tanh
from embedlib.engines.cuda.reference import AttentionShape, Prefix

MIN_DOT: Final = 16
"""Minimum size of each side of Triton's matrix product."""
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
    by_distance: ByDistance | None = None,
) -> None:
    """Launch `attend_kernel`; see `reference.attend`."""
    width = shape.num_kv_heads * shape.head_dim
    heads_per_key = shape.num_heads // shape.num_kv_heads
    pack = packed_heads(heads_per_key)
    block_queries = max(tile_queries, MIN_DOT // pack)
    block_dim = max(MIN_DOT, triton.next_power_of_2(shape.head_dim))
    capability = torch.cuda.get_device_capability(query.device) if query.is_cuda else (9, 0)
    num_rows = block_queries * pack
    num_distances = 0
    if position_bias is not None:
        num_distances = position_bias.shape[1]
    elif by_distance is not None:
        num_distances = len(by_distance.rows)
    block_keys, num_stages = attention_blocks(
        num_rows, block_dim, query.itemsize, capability, has_table=num_distances > 0
    )
    attend_kernel[(tiles.shape[0], shape.num_heads // pack)](
        query,
        key_value,
        tiles,
        query if position_bias is None else position_bias,
        tiles if by_distance is None else by_distance.rows,
        query if by_distance is None else by_distance.of_queries,
        query if by_distance is None else by_distance.of_keys,
        key_value if prefix is None else prefix.key_value,
        tiles if prefix is None else prefix.num_keys,
        out,
        query.stride(0),
        key_value.stride(0),
        out.stride(0),
        key_value.shape[1] - 2 * width,
        shape.scale * _LOG2_E if shape.cap is None else shape.scale / shape.cap,
        0.0 if shape.cap is None else shape.cap * _LOG2_E,
        num_distances,
        0 if by_distance is None else by_distance.of_keys.stride(0),
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
        HAS_DISTANCES=by_distance is not None,
        HAS_PREFIX=prefix is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        BLOCK_QUERIES=block_queries,
        BLOCK_KEYS=block_keys,
        BLOCK_DIM=block_dim,
        num_warps=attention_warps(num_rows, block_dim),
        **launch_options(query),
        num_stages=num_stages,
    )


@triton.jit
def attend_kernel(
    query: tl.tensor,
    key_value: tl.tensor,
    tiles: tl.tensor,
    position_bias: tl.tensor,
    rows_by_distance: tl.tensor,
    of_queries: tl.tensor,
    of_keys: tl.tensor,
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
    products_stride: tl.tensor,
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
    HAS_DISTANCES: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """Compute PACK heads of one tile: up to BLOCK_QUERIES queries over their sequence's keys.

    Heads that share keys and values are rows of one tile, so that both are read once for PACK
    heads. Blocks of keys that no query of the tile can see (after it, or outside its window) are
    not read. Blocks that all queries see, most of a long text, are computed without a mask.

    query: [queries, query_stride], head h at columns h * HEAD_DIM; key_value: [T, key_stride], keys
    at first_key_column, values WIDTH columns later; tiles: int32[tiles, 5], see `inputs`; prefix:
    [positions, prefix_stride], kept keys and values in the same order; prefix_lengths:
    int32[tiles]; position_bias: float32[heads, num_distances]; rows_by_distance:
    int32[num_distances]; of_queries: [queries, products_stride] and of_keys: [T, products_stride],
    the same number of columns for each head; out: [queries, out_stride]. The
    softmax uses powers of two: scale includes the factor log2(e); with a cap, scale is applied
    before tanh and cap includes log2(e).
    """
    wait_for_inputs(OVERLAPS)
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
    head_products = head * (products_stride // (tl.num_programs(1) * PACK))
    by_distance = (
        rows_by_distance,
        of_queries + (query_row + query_offset) * products_stride + head_products,
        of_keys + key_row * products_stride + head_products,
        products_stride,
        query_offset < num_queries,
    )

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
            position_bias, by_distance, num_kept, prefix_stride, scale, cap, num_distances, reach,
            True, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, HAS_DISTANCES,
            PRECISION, BLOCK_KEYS, BLOCK_DIM,
        )  # fmt: skip
        keys_at -= num_kept.to(tl.int64) * key_stride
        first = tl.maximum(first, num_kept)
        left = tl.maximum(left, first)
    left = first + tl.cdiv(left - first, BLOCK_KEYS) * BLOCK_KEYS
    right = tl.maximum(left, first + (right - first) // BLOCK_KEYS * BLOCK_KEYS)

    if HAS_WINDOW:
        state = _attend_range(
            first, tl.minimum(left, last), state, queries, keys_at, place + query_offset, head,
            position_bias, by_distance, last, key_stride, scale, cap, num_distances, reach,
            True, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, HAS_DISTANCES,
            PRECISION, BLOCK_KEYS, BLOCK_DIM,
        )  # fmt: skip
    state = _attend_range(
        left, right, state, queries, keys_at, place + query_offset, head,
        position_bias, by_distance, last, key_stride, scale, cap, num_distances, reach,
        False, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, HAS_DISTANCES,
        PRECISION, BLOCK_KEYS, BLOCK_DIM,
    )  # fmt: skip
    _, total, mixed = _attend_range(
        right, last, state, queries, keys_at, place + query_offset, head,
        position_bias, by_distance, last, key_stride, scale, cap, num_distances, reach,
        True, WIDTH, HEAD_DIM, IS_CAUSAL, HAS_WINDOW, HAS_CAP, HAS_BIAS, HAS_DISTANCES,
        PRECISION, BLOCK_KEYS, BLOCK_DIM,
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
    by_distance: tl.tuple,
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
    HAS_DISTANCES: tl.constexpr,
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
        if HAS_DISTANCES:
            scores += _picked(by_distance, distance + num_distances // 2, key_place, last)
        if HAS_CAP:
            scores = cap * tanh(scores * scale)
        elif HAS_BIAS or IS_EDGE:
            # Before the mask: masked scores must stay equal to `largest` where a row sees no key
            # yet. Scaled with it they are rounded in one place and, fused with the subtraction
            # below, not in the other: 2 to the power of what is left of 1e30 is infinity.
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
        if HAS_CAP or HAS_BIAS or IS_EDGE:
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


@triton.jit
def _picked(
    by_distance: tl.tuple, column: tl.tensor, key_place: tl.tensor, last: tl.tensor
) -> tl.tensor:
    """Return what the distances of a block add to its scores; 0 where there is no query or key."""
    rows_by_distance, queries_at, keys_at, products_stride, is_query = by_distance
    is_pair = is_query[:, None] & (key_place < last)[None, :]
    row = tl.load(rows_by_distance + column, mask=is_pair, other=0)
    key_rows = key_place.to(tl.int64) * products_stride
    of_query = tl.load(queries_at[:, None] + row, mask=is_pair, other=0.0)
    of_key = tl.load(keys_at[:, None] + key_rows[None, :] + row, mask=is_pair, other=0.0)
    return of_query.to(tl.float32) + of_key.to(tl.float32)
