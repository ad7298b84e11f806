"""Kernels that work on heads: rotary positions, attention."""

# What is fixed when a kernel is compiled is in capitals, as in Triton's own.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.device_weights import NormWeight, Rotation
from embedlib.engines.cuda.inputs import TILE_QUERIES
from embedlib.engines.cuda.reference import AttentionShape
from embedlib.engines.cuda.triton_math import num_warps, tanh

MIN_DOT: Final = 16
"""Triton's matrix product takes no side shorter."""
LARGE_HEAD: Final = 128
"""Tiles of larger heads get fewer keys at a time, or they would not fit into shared memory.

With two stages, queries, keys and values in bfloat16 take 80 KB at 128 and 96 KB at 256; a block of
Ada has 99 KB, of Hopper 227 KB. Source: CUDA C++ Programming Guide, technical specifications.
"""

_LOG2_E = tl.constexpr(1.4426950408889634)
_MASKED = tl.constexpr(-1.0e30)
"""Finite, so that a row that has seen no key yet has no infinity minus infinity."""


def rotate(
    values: torch.Tensor,
    positions: torch.Tensor,
    rotation: Rotation | None,
    shape: AttentionShape,
    num_query_heads: int,
    num_key_heads: int,
    query_norm: NormWeight | None,
    key_norm: NormWeight | None,
) -> None:
    """Launch `rotate_kernel`; see `reference.rotate`."""
    num_heads = num_query_heads + num_key_heads
    norm = query_norm or key_norm
    half = shape.head_dim // 2
    block_heads, block_half = triton.next_power_of_2(num_heads), triton.next_power_of_2(half)
    rotate_kernel[(values.shape[0],)](
        values,
        positions,
        values if rotation is None else rotation.cos,
        values if rotation is None else rotation.sin,
        query_norm.weight if query_norm else norm.weight if norm else values,
        key_norm.weight if key_norm else norm.weight if norm else values,
        values.stride(0),
        num_query_heads,
        num_heads,
        norm.eps if norm else 0.0,
        TURNS=rotation is not None,
        NORMS=norm is not None,
        HALF=half,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
        num_warps=num_warps(2 * block_heads * block_half),
    )


def attend(
    query: torch.Tensor,
    key_value: torch.Tensor,
    tiles: torch.Tensor,
    shape: AttentionShape,
    window: int | None,
    position_bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Launch `attend_kernel`; see `reference.attend`."""
    width = shape.num_kv_heads * shape.head_dim
    first_key_column = key_value.shape[1] - 2 * width
    attend_kernel[(tiles.shape[0], shape.num_heads)](
        query,
        key_value,
        tiles,
        query if position_bias is None else position_bias,
        out,
        query.stride(0),
        key_value.stride(0),
        out.stride(0),
        first_key_column,
        shape.scale,
        shape.cap or 1.0,
        0 if position_bias is None else position_bias.shape[1],
        window or 0,
        HEADS_PER_KEY=shape.num_heads // shape.num_kv_heads,
        WIDTH=width,
        HEAD_DIM=shape.head_dim,
        IS_CAUSAL=shape.is_causal,
        HAS_WINDOW=window is not None,
        HAS_CAP=shape.cap is not None,
        HAS_BIAS=position_bias is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        BLOCK_QUERIES=TILE_QUERIES,
        BLOCK_KEYS=32 if shape.head_dim > LARGE_HEAD else 64,
        BLOCK_DIM=max(MIN_DOT, triton.next_power_of_2(shape.head_dim)),
        num_warps=4,
        num_stages=2,
    )


@triton.jit
def rotate_kernel(
    values: tl.tensor,
    positions: tl.tensor,
    cos_table: tl.tensor,
    sin_table: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
    stride: tl.tensor,
    num_query_heads: tl.tensor,
    num_heads: tl.tensor,
    eps: tl.tensor,
    TURNS: tl.constexpr,
    NORMS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
) -> None:
    """Norm and turn the first heads of a row, in place; one program per row.

    values: [rows, stride], the first num_heads * 2 * HALF columns are heads; positions:
    int32[rows]; tables: float32[positions, HALF]; weights: float32[2 * HALF].
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (head < num_heads) & (pair < HALF)
    place = values + row * stride + head * (2 * HALF) + pair
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMS:
        square = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        root = tl.rsqrt(square + eps)[:, None]
        weight = tl.where(head < num_query_heads, query_weight + pair, key_weight + pair)
        first *= root * tl.load(weight, mask=mask, other=0.0)
        second *= root * tl.load(weight + HALF, mask=mask, other=0.0)
    if TURNS:
        angle = tl.load(positions + row).to(tl.int64) * HALF + pair
        cos = tl.load(cos_table + angle, mask=pair < HALF, other=0.0)
        sin = tl.load(sin_table + angle, mask=pair < HALF, other=0.0)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    tl.store(place, first.to(values.dtype.element_ty), mask=mask)
    tl.store(place + HALF, second.to(values.dtype.element_ty), mask=mask)


@triton.jit
def attend_kernel(
    query: tl.tensor,
    key_value: tl.tensor,
    tiles: tl.tensor,
    position_bias: tl.tensor,
    out: tl.tensor,
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    out_stride: tl.tensor,
    first_key_column: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    num_distances: tl.tensor,
    window: tl.tensor,
    HEADS_PER_KEY: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> None:
    """One head of one tile: up to BLOCK_QUERIES queries over their sequence's keys.

    The softmax is taken on the way: weights so far are rescaled whenever a larger score comes.
    Source: Dao, "FlashAttention-2", arXiv:2307.08691, algorithm 1. Blocks of keys that no query of
    the tile may see, behind it or outside its window, are not read.

    query: [queries, query_stride], head h at columns h * HEAD_DIM; key_value: [T, key_stride], keys
    at first_key_column, values WIDTH columns behind; tiles: int32[tiles, 5], see `inputs`;
    position_bias: float32[heads, num_distances]; out: [queries, out_stride].
    """
    tile = tiles + tl.program_id(0) * 5
    head = tl.program_id(1)
    num_queries = tl.load(tile + 1)
    if num_queries == 0:
        return
    query_row = tl.load(tile).to(tl.int64)
    place = tl.load(tile + 2)
    key_row = tl.load(tile + 3).to(tl.int64)
    num_keys = tl.load(tile + 4)

    query_offset = tl.arange(0, BLOCK_QUERIES)
    key_offset = tl.arange(0, BLOCK_KEYS)
    dim = tl.arange(0, BLOCK_DIM)
    is_dim = dim < HEAD_DIM
    is_query = (query_offset < num_queries)[:, None] & is_dim[None, :]
    queries = tl.load(
        query
        + (query_row + query_offset)[:, None] * query_stride
        + (head * HEAD_DIM + dim)[None, :],
        mask=is_query,
        other=0.0,
    )
    keys_at = key_value + key_row * key_stride + first_key_column
    keys_at += (head // HEADS_PER_KEY) * HEAD_DIM

    first, last = 0, num_keys
    if IS_CAUSAL:
        last = tl.minimum(num_keys, place + num_queries)
    if HAS_WINDOW:
        reach = window - 1 if IS_CAUSAL else window
        first = tl.maximum(0, place - reach)
        last = tl.minimum(last, place + num_queries + reach)

    largest = tl.full([BLOCK_QUERIES], _MASKED, tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    mixed = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    for start in range(first, last, BLOCK_KEYS):
        key_place = start + key_offset
        is_key = key_place < last
        key_rows = key_place.to(tl.int64) * key_stride
        keys = tl.load(
            keys_at + key_rows[None, :] + dim[:, None],
            mask=is_key[None, :] & is_dim[:, None],
            other=0.0,
        )
        scores = tl.dot(queries, keys, input_precision=PRECISION) * scale
        if HAS_CAP:
            scores = cap * tanh(scores / cap)
        distance = key_place[None, :] - (place + query_offset)[:, None]
        visible = is_key[None, :] & (query_offset < num_queries)[:, None]
        if HAS_BIAS:
            column = tl.where(visible, distance + num_distances // 2, 0)
            scores += tl.load(position_bias + head * num_distances + column)
        if IS_CAUSAL:
            visible &= distance <= 0
        if HAS_WINDOW:
            visible &= (distance >= -reach) & (distance <= reach)
        scores = tl.where(visible, scores * _LOG2_E, _MASKED)
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        values = tl.load(
            keys_at + WIDTH + key_rows[:, None] + dim[None, :],
            mask=is_key[:, None] & is_dim[None, :],
            other=0.0,
        )
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
        largest = new_largest

    mixed = mixed / total[:, None]
    place_out = (query_row + query_offset)[:, None] * out_stride + (head * HEAD_DIM + dim)[None, :]
    tl.store(out + place_out, mixed.to(out.dtype.element_ty), mask=is_query)
