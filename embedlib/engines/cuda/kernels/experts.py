"""The kernels of a mixture of experts: which ones a token chooses, and their activations."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.kernels.triton_math import activated, num_warps
from embedlib.models.spec import Activation


def choose_experts(
    source: torch.Tensor, router: torch.Tensor, num_chosen: int, out: torch.Tensor
) -> None:
    """Launch `choose_experts_kernel`; see `reference.choose_experts`.

    A row's sums do not depend on the other rows, as those of cuBLAS do: two experts that are nearly
    equal are chosen alike in every batch.
    """
    num_rows, columns = source.shape
    block = triton.next_power_of_2(columns)
    choose_experts_kernel[(num_rows,)](
        source,
        router,
        out,
        columns,
        NUM_EXPERTS=len(router),
        NUM_CHOSEN=num_chosen,
        BLOCK=block,
        BLOCK_EXPERTS=triton.next_power_of_2(len(router)),
        num_warps=num_warps(block),
        **launch_options(source),
    )


def activate_experts(values: torch.Tensor, shares: torch.Tensor, activation: Activation) -> None:
    """Launch `activate_experts_kernel`; see `reference.activate_experts`."""
    num_experts = shares.shape[1]
    columns = values.shape[1] // num_experts
    block = triton.next_power_of_2(columns)
    activate_experts_kernel[(len(values), num_experts)](
        values,
        shares,
        columns,
        ACTIVATION=activation,
        NUM_EXPERTS=num_experts,
        BLOCK=block,
        num_warps=num_warps(block),
        **launch_options(values),
    )


@triton.jit
def choose_experts_kernel(
    source: tl.tensor,
    router: tl.tensor,
    out: tl.tensor,
    columns: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """out = softmax(source @ router.T), but 0 for all but the largest. One program per row.

    source: [rows, columns]; router: float32[NUM_EXPERTS, columns]; out: float32[rows, NUM_EXPERTS].
    """
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    token = tl.load(source + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    expert = tl.arange(0, BLOCK_EXPERTS)
    logits = tl.full([BLOCK_EXPERTS], float("-inf"), tl.float32)
    for index in range(NUM_EXPERTS):
        weights = tl.load(router + index * columns + column, mask=mask, other=0.0)
        logits = tl.where(expert == index, tl.sum(token * weights, axis=0), logits)
    powers = tl.exp(logits - tl.max(logits, axis=0))
    shares = powers / tl.sum(powers, axis=0)
    # One after the other, of equal ones the first. Counting those that are larger would not do: it
    # needs the shares in two layouts, and Triton may compute them in each, a rounding apart.
    found = tl.where(shares != shares, shares, 0.0)  # a row of NaN stays one
    left = shares
    for _ in range(NUM_CHOSEN):
        is_largest = left == tl.max(left, axis=0)
        is_chosen = expert == tl.min(tl.where(is_largest, expert, BLOCK_EXPERTS), axis=0)
        found = tl.where(is_chosen, shares, found)
        left = tl.where(is_chosen, -1.0, left)
    tl.store(out + row * NUM_EXPERTS + expert, found, mask=expert < NUM_EXPERTS)


@triton.jit
def activate_experts_kernel(
    values: tl.tensor,
    shares: tl.tensor,
    columns: tl.tensor,
    ACTIVATION: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """values = act(values) * share, in place. One program per row and expert.

    values: [rows, NUM_EXPERTS * columns]; shares: float32[rows, NUM_EXPERTS]. What an expert
    computed for a token that did not choose it is not read.
    """
    wait_for_inputs(OVERLAPS)
    place = tl.program_id(0).to(tl.int64) * NUM_EXPERTS + tl.program_id(1)
    share = tl.load(shares + place)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    at = values + place * columns + column
    is_chosen = tl.where(mask, share, 0.0) != 0.0
    wide = tl.load(at, mask=is_chosen, other=0.0).to(tl.float32)
    tl.store(at, (activated(wide, ACTIVATION) * share).to(values.dtype.element_ty), mask=mask)
