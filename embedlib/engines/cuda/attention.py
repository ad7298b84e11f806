"""Chooses the kernel for the attention of long batches: ours, FlashAttention 3's or torch's.

Our kernel (`kernels.attention`) supports every model. Only it can compute recorded batches, since
their lengths change from replay to replay and only its tile table allows that. Long batches are
launched anew each time, with lengths known on the host, so functions that take whole packed
sequences can compute them too:

- `flash_attention_3`: from the user's `flash_attn_interface`, on Hopper. "auto" uses it wherever it
  applies, since by its authors' figures it is faster there than any Triton kernel. It has not been
  measured against ours.
- `torch`: torch's own, FlashAttention 2. A baseline for measurements; "auto" never uses it.

The choice is made once per step, when the engine is constructed, and only after the function has
computed a small batch with the same result as our kernel: a build may lack head sizes, windows or
caps, or interpret arguments differently.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
import torch

from embedlib.engines.cuda.capability import torch_version
from embedlib.engines.cuda.inputs import SHORT_TILE_ROWS, Ints, packed_heads, tile_table
from embedlib.engines.cuda.plan import Attend, Plan
from embedlib.engines.cuda.reference import AttentionShape
from embedlib.engines.gpus import version_text
from embedlib.errors import EngineUnsupportedError, typed_line

AttentionName = Literal["auto", "own", "flash_attention_3", "torch"]

VARLEN_HEAD_DIM_MULTIPLE: Final = 8
VARLEN_MAX_HEAD_DIM: Final = 256
"""Source: the checks of `mha_fwd` in Dao-AILab/flash-attention, hopper/flash_api.cpp, and of
`mha_varlen_fwd` in PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp."""
SAYS_GROUPS: Final = (2, 12)
"""From this torch on, `enable_gqa` must be passed if heads share keys; earlier versions lack the
argument. Source: https://docs.pytorch.org/docs/2.12/nn.attention.varlen.html."""
TRIAL_LENGTHS: Final = (70, 1, 130)
TRIAL_CUT: Final = 103
"""Within the third sequence: a function must also compute parts of a sequence."""
TRIAL_WINDOW: Final = 40
"""Maximum window: a model's own window may be longer than the trial's sequences."""
TRIAL_TOLERANCE: Final = 0.02
"""Maximum relative norm of the difference; bfloat16 rounding is 0.002 to 0.005, a wrong mask 1."""


@dataclass(frozen=True)
class VarlenCall:
    """Attention of packed sequences: the i-th has queries and keys from ends[i] to ends[i + 1].

    If a sequence has fewer queries than keys, its last query is at the position of its last key.
    """

    query: torch.Tensor
    """[queries, heads, head_dim]; the last axis is contiguous, as in keys and values."""
    key: torch.Tensor
    """[keys, key heads, head_dim]."""
    value: torch.Tensor
    query_ends: torch.Tensor
    """int32[B + 1], on the device."""
    key_ends: torch.Tensor
    max_queries: int
    """Maximum number of queries in a sequence."""
    max_keys: int
    window: tuple[int, int]
    """Keys seen before and after a query's position; -1: all. (-1, 0) is causal attention."""
    scale: float
    cap: float | None


Varlen = Callable[[VarlenCall], torch.Tensor]
"""Returns [queries, heads, head_dim]."""


def flash_attention_3() -> Varlen:
    """Return FlashAttention 3.

    Source: `flash_attn_varlen_func` in Dao-AILab/flash-attention, hopper/flash_attn_interface.py.

    Raises:
        ImportError: it is not installed.
    """
    function = importlib.import_module("flash_attn_interface").flash_attn_varlen_func

    def attend(call: VarlenCall) -> torch.Tensor:
        result = function(
            call.query,
            call.key,
            call.value,
            call.query_ends,
            call.key_ends,
            call.max_queries,
            call.max_keys,
            softmax_scale=call.scale,
            causal=call.window[1] == 0,
            window_size=call.window,
            softcap=call.cap or 0.0,
        )
        # Until August 2025 it also returned the log-sum-exp of each row.
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return attend


def torch_varlen() -> Varlen:
    """Return torch's own attention of packed sequences.

    Source: `varlen_attn` in PyTorch 2.11 to 2.13, torch/nn/attention/varlen.py.

    Raises:
        ImportError: this version of torch lacks it.
    """
    function = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    says_groups = torch_version() >= SAYS_GROUPS

    def attend(call: VarlenCall) -> torch.Tensor:
        options = {"enable_gqa": call.query.shape[1] != call.key.shape[1]} if says_groups else {}
        # `num_splits` is left out: its default does not split keys, and not every torch has it.
        out: torch.Tensor = function(
            call.query,
            call.key,
            call.value,
            call.query_ends,
            call.key_ends,
            call.max_queries,
            call.max_keys,
            scale=call.scale,
            window_size=call.window,
            **options,
        )
        return out

    return attend


def choose_attention(
    name: AttentionName,
    plan: Plan,
    shape: AttentionShape,
    *,
    has_bias: bool,
    dtype: torch.dtype,
    device: torch.device,
    capability: tuple[int, int] | None,
    own: Callable[..., None],
) -> Mapping[Attend, Varlen]:
    """Return the steps of long batches that another function computes, with it, and log the choice.

    Args:
        name: the requested kernel; "auto": FlashAttention 3 where it applies.
        plan: the plan whose attention steps are considered.
        shape: heads and scores of the plan's attention.
        has_bias: whether scores have a position bias.
        dtype: the plan's number type.
        device: where the engine computes.
        capability: compute capability of the GPU; None on a CPU.
        own: our kernel, whose results the function is compared with.

    Raises:
        EngineUnsupportedError: a kernel was requested by name and cannot compute any step.
    """
    if name == "own":
        return {}
    chosen = "flash_attention_3" if name == "auto" else name
    steps = [step for step in plan.steps if isinstance(step, Attend)]
    served: dict[Attend, Varlen] = {}
    try:
        _check_at_all(chosen, shape, has_bias, dtype, capability)
        varlen = _load(chosen)
    except _NotServedError as error:
        why_not = str(error)
    else:

        @cache
        def trial(window: int | None) -> str | None:
            return _trial(varlen, own, shape, window, dtype, device)

        reasons = {step: _why_not_here(step, shape) or trial(step.window) for step in steps}
        served = {step: varlen for step, reason in reasons.items() if reason is None}
        why_not = "; ".join(dict.fromkeys(filter(None, reasons.values())))
    if name != "auto" and not served:
        raise EngineUnsupportedError(
            f"engine cuda: attention = {name!r} cannot compute any layer: {why_not}; use "
            "attention='auto'"
        )
    logging.getLogger(__name__).info(
        "attention of long batches: %s in %d of %d steps, our own kernel in the others%s",
        chosen,
        sum(step in served for step in steps),
        len(steps),
        f" ({why_not})" if why_not else "",
    )
    return served


class _NotServedError(Exception):
    """The reason why a function cannot compute any step."""


def _check_at_all(
    name: str,
    shape: AttentionShape,
    has_bias: bool,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
) -> None:
    is_hopper_only = name == "flash_attention_3"
    if capability is None:
        raise _NotServedError("there is no GPU")
    if capability[0] < 8 or (is_hopper_only and capability[0] != 9):
        raise _NotServedError(
            f"compute capability {version_text(capability)}, it needs "
            f"{'9.x' if is_hopper_only else '8.0 or higher'}"
        )
    if dtype not in (torch.bfloat16, torch.float16):
        raise _NotServedError(f"{dtype}, it supports bfloat16 and float16")
    if shape.head_dim % VARLEN_HEAD_DIM_MULTIPLE or shape.head_dim > VARLEN_MAX_HEAD_DIM:
        raise _NotServedError(
            f"head_dim = {shape.head_dim}, it supports multiples of "
            f"{VARLEN_HEAD_DIM_MULTIPLE} up to {VARLEN_MAX_HEAD_DIM}"
        )
    if has_bias:
        raise _NotServedError("it supports no position bias")
    if name == "torch" and shape.cap is not None:
        raise _NotServedError("it supports no cap on scores")


def _why_not_here(step: Attend, shape: AttentionShape) -> str | None:
    if step.by_distance:
        return "it supports no relative positions"
    if step.query.rows != "token":
        return "only the pooled tokens have queries"
    if step.window is not None and not shape.is_causal:
        # A part of a sequence (`groups`) needs keys after its last query.
        return "a window on both sides"
    return None


def _load(name: str) -> Varlen:
    try:
        return flash_attention_3() if name == "flash_attention_3" else torch_varlen()
    except (ImportError, AttributeError, OSError) as error:  # OSError: built for another torch
        raise _NotServedError(f"{name} cannot be imported: {typed_line(error)}") from error


def _trial(
    varlen: Varlen,
    own: Callable[..., None],
    shape: AttentionShape,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """Compare a function with our kernel; return how it differs, or None if it does not."""
    ends = np.cumsum([0, *TRIAL_LENGTHS]).astype(np.int32)
    num_rows, window = int(ends[-1]), window and min(window, TRIAL_WINDOW)
    columns = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(num_rows, columns, generator=generator, device="cpu").to(device, dtype)
    tile_queries = SHORT_TILE_ROWS // packed_heads(shape.num_heads // shape.num_kv_heads)
    tiles = torch.from_numpy(tile_table(ends, tile_queries)).to(device)
    outs = [qkv.new_zeros(num_rows, shape.num_heads * shape.head_dim) for _ in range(2)]
    cu_seqlens = torch.from_numpy(ends).to(device)
    with torch.cuda.device_of(qkv):  # Triton launches on the thread's device, not the tensor's
        own(qkv, qkv, tiles, tile_queries, shape, window, None, outs[0])
        try:
            for cut in (slice(0, TRIAL_CUT), slice(TRIAL_CUT, num_rows)):
                attend_rows(varlen, qkv, qkv, ends, cu_seqlens, cut, shape, window, outs[1])
            expected, found = (out.double().cpu() for out in outs)
        except Exception as error:  # a third-party function may raise anything: it is not used
            return f"it failed a trial: {typed_line(error)}"
    error_norm = float((found - expected).norm() / expected.norm())
    if not error_norm <= TRIAL_TOLERANCE:
        return f"it failed a trial: its result differs from our kernel's by {error_norm:.3g}"
    return None


def attend_rows(
    varlen: Varlen,
    query: torch.Tensor,
    key_value: torch.Tensor,
    ends: Ints,
    cu_seqlens: torch.Tensor,
    cut: slice | None,
    shape: AttentionShape,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """Compute the attention of some or all query rows of a step with a varlen function.

    Args:
        varlen: the function.
        query: [T, columns]; the first columns are the query heads.
        key_value: [T, columns]; the last columns are the key heads and the value heads.
        ends: int32[B + 1], cu_seqlens on the host.
        cu_seqlens: the same on the device.
        cut: slice of the T rows; None: all rows.
        shape: heads and scores.
        window: as in `Encoder.windows`; only for causal attention.
        out: [T, heads * head_dim], written in place.
    """
    start, stop = (0, int(ends[-1])) if cut is None else (cut.start, cut.stop)
    first = int(np.searchsorted(ends, start, side="right")) - 1
    last = int(np.searchsorted(ends, stop, side="left"))
    places = ends[first : last + 1]
    # A causal part needs no keys after it, and its last query must be at the last key.
    key_stop = stop if shape.is_causal else int(places[-1])
    query_ends = key_ends = cu_seqlens
    if cut is not None:
        on_device = cu_seqlens[first : last + 1]
        query_ends = on_device.clamp(start, stop) - start
        key_ends = on_device.clamp(max=key_stop) - int(places[0])
    width = shape.num_kv_heads * shape.head_dim
    both = key_value[int(places[0]) : key_stop, -2 * width :]
    key, value = (
        part.unflatten(1, (shape.num_kv_heads, shape.head_dim)) for part in both.split(width, dim=1)
    )
    queries = query[start:stop, : shape.num_heads * shape.head_dim]
    result = varlen(
        VarlenCall(
            query=queries.unflatten(1, (shape.num_heads, shape.head_dim)),
            key=key,
            value=value,
            query_ends=query_ends,
            key_ends=key_ends,
            max_queries=int(np.diff(places.clip(start, stop)).max()),
            max_keys=int(np.diff(places.clip(None, key_stop)).max()),
            window=((window or 0) - 1, 0) if shape.is_causal else (-1, -1),
            scale=shape.scale,
            cap=shape.cap,
        )
    )
    out[start:stop].copy_(result.flatten(1))
