"""The kernels' arithmetic in plain torch: what every Triton kernel must compute, on any device.

Each function reads stored numbers, computes in float32 and rounds once, when it writes. FP8
products are emulated: e4m3 numbers are multiplied and summed in float32, where the GPU's matrix
units keep fewer bits of the sum. So the plan on a CPU rounds at the same places as on a GPU.

The code is slow and simple: attention is a loop over tiles. `kernels` has the same functions for
CUDA devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from embedlib.engines.cuda.buffers import Buffer
from embedlib.engines.cuda.device_weights import (
    Convolution,
    Embeddings,
    LinearWeight,
    NormWeight,
    Rotation,
    quantize_fp8,
)
from embedlib.engines.cuda.distances import ByDistance
from embedlib.engines.cuda.reference_pooling import pool
from embedlib.models.spec import Activation

__all__ = [
    "AttentionShape",
    "Prefix",
    "activate",
    "activate_experts",
    "apply",
    "attend",
    "choose_experts",
    "convolve",
    "embed",
    "linear",
    "multiply_distances",
    "norm",
    "pool",
    "quantize",
    "rotate",
]


@dataclass(frozen=True)
class AttentionShape:
    """The attention parameters that all layers share."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    cap: float | None
    is_causal: bool

    @property
    def query_columns(self) -> int:
        """Columns of the queries of all heads."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the positions before a sequence's rows, kept from an earlier batch."""

    key_value: torch.Tensor
    """[positions, 2 * key columns], the same for all sequences."""
    num_keys: torch.Tensor
    """int32[tiles], number of kept keys before the keys of each tile."""


def embed(
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    token_types: torch.Tensor,
    tables: Embeddings,
    out: Buffer,
) -> None:
    """out[t] = tokens[id] * scale + positions[position] + token_types[type]."""
    total = tables.tokens[token_ids.long()].float() * tables.scale
    if tables.positions is not None:
        total += tables.positions[positions.long()].float()
    if tables.token_types is not None:
        total += tables.token_types[token_types.long()].float()
    _write(out, total)


def norm(
    residual: torch.Tensor,
    change: torch.Tensor | None,
    change_norm: NormWeight | None,
    weight: NormWeight,
    keeps: str,
    out: Buffer | None,
) -> None:
    """See `plan.Norm`; the norm is computed from the sum before the sum is rounded."""
    total = residual.float()
    if change is not None:
        added = change.float()
        total = total + (added if change_norm is None else _normed(added, change_norm))
    normed = _normed(total, weight)
    if keeps != "nothing":
        residual.copy_(total if keeps == "sum" else normed)
    if out is not None:
        _write(out, normed)


def linear(source: Buffer, weight: LinearWeight, out: Buffer) -> None:
    """out = source @ weight.T + bias."""
    product = source.values.float() @ weight.values.float().T
    if source.scales is not None and weight.scales is not None:
        product = product * source.scales * weight.scales
    if weight.bias is not None:
        product = product + weight.bias.float()
    _write(out, product)


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
    """Norm and rotate the first heads of every row, in place; see `plan.Rotate`.

    The rotated pairs are (d, d + head_dim / 2), as in transformers' `apply_rotary_pos_emb`.
    """
    num_heads = num_query_heads + num_key_heads
    heads = values[:, : num_heads * shape.head_dim].unflatten(1, (num_heads, shape.head_dim))
    turned = heads.float()
    if query_norm is not None:
        turned[:, :num_query_heads] = _normed(turned[:, :num_query_heads], query_norm)
    if key_norm is not None:
        turned[:, num_query_heads:] = _normed(turned[:, num_query_heads:], key_norm)
    if rotation is not None:
        cos, sin = (table[positions.long()][:, None] for table in (rotation.cos, rotation.sin))
        first, second = turned.chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    heads.copy_(turned)


def multiply_distances(
    source: torch.Tensor, vectors: torch.Tensor, needed: slice, out: torch.Tensor
) -> None:
    """out[t, h, r] = source[t, h] . vectors[h, r] for the rows r in `needed`.

    Args:
        source: [T, heads * head_dim].
        vectors: [heads, rows, head_dim].
        needed: the rows that the batch needs; the columns of the others are left as they are.
        out: [T, heads * rows].
    """
    heads = source.float().unflatten(1, (len(vectors), -1))
    products = torch.einsum("thd,hrd->thr", heads, vectors[:, needed].float())
    out.unflatten(1, (len(vectors), -1))[:, :, needed] = products.to(out.dtype)


def attend(
    query: torch.Tensor,
    key_value: torch.Tensor,
    tiles: torch.Tensor,
    _: int,
    shape: AttentionShape,
    window: int | None,
    position_bias: torch.Tensor | None,
    out: torch.Tensor,
    prefix: Prefix | None = None,
    by_distance: ByDistance | None = None,
) -> None:
    """Compute the attention of the tiles' queries; see `plan.Attend`, and `inputs` for tiles.

    Args:
        query: [queries, columns]; the first columns are the query heads.
        key_value: [T, columns]; the last columns are the key heads and the value heads.
        tiles: int32[tiles, 5].
        _: maximum queries of a tile; only compiled kernels need it.
        shape: heads and scores.
        window: as in `Encoder.windows`.
        position_bias: float32[heads, 2 * positions - 1] or None.
        out: [queries, heads * head_dim].
        prefix: the kept keys and values; None if there are none.
        by_distance: products with the vectors of distances; None if there are none.
    """
    counts = [0] * len(tiles) if prefix is None else prefix.num_keys.tolist()
    width = shape.num_kv_heads * shape.head_dim
    for (query_row, num_queries, place, key_row, num_keys), num_kept in zip(
        tiles.tolist(), counts, strict=True
    ):
        if not num_queries:
            continue
        rows = slice(query_row, query_row + num_queries)
        queries = query[rows, : shape.num_heads * shape.head_dim].float()
        queries = queries.unflatten(1, (shape.num_heads, shape.head_dim))
        both = key_value[key_row : key_row + num_keys - num_kept, -2 * width :].float()
        if prefix is not None:
            both = torch.cat([prefix.key_value[:num_kept].float(), both])
        keys, values = (
            part.unflatten(1, (shape.num_kv_heads, shape.head_dim)).repeat_interleave(
                shape.num_heads // shape.num_kv_heads, dim=1
            )
            for part in both.split(width, dim=1)
        )
        scores = torch.einsum("qhd,khd->hqk", queries, keys)
        query_places = torch.arange(place, place + num_queries, device=query.device)[:, None]
        distance = torch.arange(num_keys, device=query.device) - query_places
        if by_distance is not None:
            scores = scores + _picked(by_distance, rows, key_row, distance, shape.num_heads)
        scores = scores * shape.scale
        if shape.cap is not None:
            scores = shape.cap * torch.tanh(scores / shape.cap)
        if position_bias is not None:
            scores = scores + position_bias[:, distance + position_bias.shape[1] // 2]
        visible = distance <= 0 if shape.is_causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible &= (distance > -window) if shape.is_causal else (distance.abs() <= window)
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values).flatten(1).to(out.dtype)


def _picked(
    products: ByDistance, rows: slice, key_row: int, distance: torch.Tensor, num_heads: int
) -> torch.Tensor:
    """Return float32[heads, queries, keys]: the two products of each pair, added."""
    found = products.rows[distance + len(products.rows) // 2].long().expand(num_heads, -1, -1)
    of_queries, of_keys = (
        part.float().unflatten(1, (num_heads, -1)).transpose(0, 1)
        for part in (
            products.of_queries[rows],
            products.of_keys[key_row : key_row + distance.shape[1]],
        )
    )
    return of_queries.gather(2, found) + of_keys.gather(2, found.mT).mT


def quantize(source: torch.Tensor, out: Buffer) -> None:
    """out = source in FP8, with a scale per row."""
    _write(out, source.float())


def activate(source: torch.Tensor, activation: Activation, is_gated: bool, out: Buffer) -> None:
    """out = act(gate) * up of the halves [gate, up], or act(source)."""
    values = source.float()
    if not is_gated:
        _write(out, apply(values, activation))
        return
    gate, up = values.chunk(2, dim=1)
    _write(out, apply(gate, activation) * up)


def choose_experts(
    source: torch.Tensor, router: torch.Tensor, num_chosen: int, out: torch.Tensor
) -> None:
    """out = the shares of the experts that a row chooses, 0 for the others; see `Experts`.

    Args:
        source: [rows, H].
        router: float32[experts, H].
        num_chosen: how many experts a row chooses.
        out: float32[rows, experts].
    """
    shares = torch.softmax(source.float() @ router.T, dim=-1)
    largest, chosen = shares.topk(num_chosen)
    out.zero_().scatter_(1, chosen, largest)


def activate_experts(values: torch.Tensor, shares: torch.Tensor, activation: Activation) -> None:
    """values = act(values) times the share of each expert's columns, in place."""
    wide = values.float().unflatten(1, (shares.shape[1], -1))
    values.copy_((apply(wide, activation) * shares[:, :, None]).flatten(1))


def convolve(
    source: torch.Tensor, positions: torch.Tensor, convolution: Convolution, out: torch.Tensor
) -> None:
    """out = c * (bias + the sum of weight * b * x over a token's neighbours); see `plan.Convolve`.

    Args:
        source: [T, 3 H], the thirds b, c and x.
        positions: int32[T], of each token in its sequence.
        convolution: weights, the token itself in the middle.
        out: [T, H].
    """
    first, gate, last = source.float().chunk(3, dim=1)
    given, rows = first * last, torch.arange(len(source), device=source.device)
    total = torch.zeros_like(given) if convolution.bias is None else convolution.bias
    for offset, weight in enumerate(convolution.weight, -(len(convolution.weight) // 2)):
        near = (rows + offset).clamp(0, len(rows) - 1)
        is_near = (near == rows + offset) & (positions[near] == positions + offset)
        total = total + torch.where(is_near[:, None], given[near], 0) * weight
    out.copy_(gate * total)


def apply(values: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Apply an activation to float32 numbers."""
    match activation:
        case "gelu":
            return functional.gelu(values)
        case "gelu_tanh":
            return functional.gelu(values, approximate="tanh")
        case "relu":
            return functional.relu(values)
        case "silu":
            return functional.silu(values)
        case "tanh":
            return torch.tanh(values)
        case "sigmoid":
            return torch.sigmoid(values)
        case "identity":
            return values


def _normed(values: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    """Return the norm over the last axis; input and result are float32."""
    if not norm.is_rms:
        size = (values.shape[-1],)
        return functional.layer_norm(values, size, norm.weight, norm.bias, norm.eps)
    square = values.square().mean(dim=-1, keepdim=True)
    return values * torch.rsqrt(square + norm.eps) * norm.weight


def _write(out: Buffer, values: torch.Tensor) -> None:
    """Write float32 numbers to a buffer, rounded to its number type."""
    if out.scales is None:
        out.values.copy_(values)
        return
    quantized = quantize_fp8(values)
    out.scales.copy_(quantized.scales[:, None])
    out.values.copy_(quantized.codes)
