"""Every kernel against plain torch, on a GPU if there is one, otherwise in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch

from embedlib.engines.cuda import kernels, reference
from embedlib.engines.cuda.buffers import FP8, Buffer
from embedlib.engines.cuda.device_weights import (
    Convolution,
    Embeddings,
    LinearWeight,
    NormWeight,
    Rotation,
)
from embedlib.engines.cuda.inputs import LONG_TILE_ROWS, tile_queries, tile_table
from embedlib.engines.cuda.kernels import attention as attention_kernel
from embedlib.engines.cuda.kernels import convolution as convolution_kernel
from embedlib.engines.cuda.kernels import experts as expert_kernels
from embedlib.engines.cuda.kernels import few_rows
from embedlib.engines.cuda.kernels import pooling as pool_kernel
from embedlib.engines.cuda.kernels import rotation as rotate_kernel
from embedlib.engines.cuda.kernels import rows as row_kernels
from embedlib.engines.cuda.reference import AttentionShape
from embedlib.engines.cuda.reference_pooling import MASKED
from embedlib.models.spec import Activation, PoolingMode
from embedlib.testing import fake_spec
from tests.engines.cuda.seeded import numbers

# In the interpreter, numpy warns about operations that a GPU computes silently.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide|All-NaN):RuntimeWarning"
)

HALF_A_STEP = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Relative difference allowed between two summation orders after rounding."""

POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)


def buffer(device: torch.device, rows: int, columns: int, dtype: torch.dtype) -> Buffer:
    """Return a buffer filled with NaN, which every kernel must overwrite."""
    values = torch.full((rows, columns), torch.nan, device=device).to(dtype)
    scales = torch.full((rows, 1), torch.nan, device=device) if dtype == FP8 else None
    return Buffer(values, scales)


def assert_same(found: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """Check that the numbers are equal except for rounding."""
    assert found.dtype == expected.dtype
    step = HALF_A_STEP[found.dtype]
    torch.testing.assert_close(
        found.float().cpu(), expected.float().cpu(), rtol=step, atol=step, equal_nan=True, msg=what
    )


def assert_same_buffer(found: Buffer, expected: Buffer) -> None:
    if found.scales is None or expected.scales is None:
        assert_same(found.values, expected.values)
        return
    torch.testing.assert_close(found.scales, expected.scales, rtol=1e-5, atol=0, equal_nan=True)
    assert torch.equal(found.values.float().isnan(), expected.values.float().isnan())
    steps = (e4m3_steps(found.values) - e4m3_steps(expected.values)).abs()
    # CPUs and GPUs differ in the last bit of a number before it is rounded. One in the middle of
    # two codes may become either, which next to zero includes the sign.
    assert steps.max() <= 1
    assert (steps == 0).float().mean() > 0.99


def e4m3_steps(values: torch.Tensor) -> torch.Tensor:
    """How many e4m3 numbers away from zero; the same for 0 and -0, and for NaN of either sign."""
    codes = values.view(torch.uint8).int()
    steps = torch.where(codes >= 0x80, 0x80 - codes, codes)
    return torch.where(values.float().isnan(), 0, steps)


def test_codes_are_compared_by_what_they_mean(device: torch.device) -> None:
    def of(*numbers: float) -> Buffer:
        values = torch.tensor([numbers] * 100, device=device).to(FP8)
        return Buffer(values, torch.ones(100, 1, device=device))

    assert_same_buffer(of(0.0, -1.0, torch.nan), of(-0.0, -1.0, -torch.nan))
    for wrong in ((1.0, -1.0, 448.0), (1.0, -1.25, torch.nan), (1.0, 1.0, torch.nan)):
        with pytest.raises(AssertionError):
            assert_same_buffer(of(*wrong), of(1.0, -1.0, torch.nan))
    one_step = of(1.0, -1.0)
    one_step.values[0, 0] = 1.125
    assert_same_buffer(one_step, of(1.0, -1.0))


def norm_weight(
    device: torch.device, columns: int, is_rms: bool, has_bias: bool = False, shift: int = 0
) -> NormWeight:
    weight = 1 + 0.3 * numbers(device, columns + shift)[:columns]
    bias = numbers(device, columns + 1 + shift)[:columns] if has_bias else None
    return NormWeight(weight, bias, 1e-5, is_rms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("has_positions", "has_types"), [(0, 0), (1, 0), (1, 1)])
def test_embed(
    has_positions: int, has_types: int, dtype: torch.dtype, device: torch.device
) -> None:
    tables = Embeddings(
        tokens=numbers(device, 9, 40, dtype=dtype),
        positions=numbers(device, 7, 40, dtype=dtype) if has_positions else None,
        token_types=numbers(device, 2, 40, dtype=dtype) if has_types else None,
        scale=1.7,
    )
    ids = torch.tensor([[8, 0, 3], [6, 0, 2], [1, 0, 1]], dtype=torch.int32, device=device)
    found, expected = (buffer(device, 3, 40, dtype) for _ in range(2))
    kernels.embed(*ids, tables, found)
    reference.embed(*ids, tables, expected)
    assert_same_buffer(found, expected)


@pytest.mark.parametrize(
    ("is_rms", "has_bias", "change", "keeps", "out"),
    [
        (True, False, "none", "nothing", FP8),
        (True, False, "plain", "sum", FP8),
        (True, False, "plain", "sum", torch.bfloat16),
        (True, False, "normed", "sum", FP8),
        (True, False, "plain", "nothing", torch.float32),
        (False, True, "none", "norm", None),
        (False, True, "plain", "norm", FP8),
        (False, False, "plain", "norm", None),
        (False, True, "normed", "sum", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norm(
    is_rms: bool,
    has_bias: bool,
    change: str,
    keeps: str,
    out: torch.dtype | None,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    columns = 40
    residual = numbers(device, 3, columns, dtype=dtype) + 0.5
    added = None if change == "none" else 2 * numbers(device, 4, columns, dtype=dtype)[1:]
    first = norm_weight(device, columns, is_rms, has_bias, 9) if change == "normed" else None
    weight = norm_weight(device, columns, is_rms, has_bias)
    results = []
    for module in (kernels, reference):
        kept = residual.clone()
        written = None if out is None else buffer(device, 3, columns, out)
        module.norm(kept, added, first, weight, keeps, written)
        results.append((kept, written))
    (kept, found), (expected_kept, expected) = results
    assert_same(kept, expected_kept)
    assert torch.equal(kept, residual) == (keeps == "nothing")
    if found is not None and expected is not None:
        assert_same_buffer(found, expected)


def test_norm_of_some_columns_leaves_the_others(device: torch.device) -> None:
    rows = numbers(device, 3, 50, dtype=torch.bfloat16)
    weight = norm_weight(device, 20, False, True)
    results = []
    for module in (kernels, reference):
        kept = rows.clone()
        module.norm(kept[:, 10:30], None, None, weight, "norm", None)
        results.append(kept)
    assert_same(*results)
    same = results[0] == rows
    assert same[:, :10].all()
    assert same[:, 30:].all()
    assert not same[:, 10:30].all()


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("activation", get_args(Activation))
def test_activate(activation: Any, is_gated: bool, device: torch.device) -> None:
    source = 3 * numbers(device, 3, 80 if is_gated else 40)
    source[0, :4] = torch.tensor([0.0, -20.0, 20.0, 1e-4])
    for dtype in (torch.float32, FP8):
        found, expected = (buffer(device, 3, 40, dtype) for _ in range(2))
        kernels.activate(source, activation, is_gated, found)
        reference.activate(source, activation, is_gated, expected)
        assert_same_buffer(found, expected)


def test_quantize(device: torch.device) -> None:
    source = numbers(device, 6, 300, dtype=torch.bfloat16)
    source[0] = 0
    source[1, 7] = 1e4  # an outlier makes the others small, some of them subnormal
    source[2] *= 1e-36  # its scale would be subnormal
    source[3] = 448 * torch.linspace(-1, 1, 300)
    source[4, 0] = torch.nan
    source[5, 0] = torch.inf
    found, expected = (buffer(device, 6, 300, FP8) for _ in range(2))
    kernels.quantize(source, found)
    reference.quantize(source, expected)
    finite = slice(0, 4)
    assert found.scales is not None
    assert expected.scales is not None
    assert_same_buffer(
        Buffer(found.values[finite], found.scales[finite]),
        Buffer(expected.values[finite], expected.scales[finite]),
    )
    assert found.scales[0] == 1
    values = found.values.float() * found.scales
    assert (values[0] == 0).all()
    # The error is at most 1/16 of the number, or half a subnormal step of the scale if larger.
    error = (values[finite] - source[finite].float()).abs()
    bound = torch.maximum(source[finite].float().abs() / 16, found.scales[finite] / 1024)
    assert (error <= bound * 1.001).all()
    # A non-finite number must not become finite: the product's whole row becomes NaN.
    assert values[4].isnan().any()
    assert values[5].isnan().any()


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_row_stays_alone(module: Any, bad: float, device: torch.device) -> None:
    weight = norm_weight(device, 40, is_rms=True)
    for dtype in (FP8, torch.bfloat16):
        residual = numbers(device, 3, 40)
        residual[1, 5] = bad
        out = buffer(device, 3, 40, dtype)
        module.norm(residual, None, None, weight, "nothing", out)
        is_bad = out.values.float().isnan().any(dim=1).cpu()
        assert is_bad.tolist() == [False, True, False]


@pytest.mark.parametrize("half", [5, 16])
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "has_norm", "turns"),
    [
        (3, 2, False, True),
        (3, 2, True, True),
        (3, 0, True, True),
        (0, 2, True, True),
        (2, 2, True, False),
    ],
)
def test_rotate(
    num_queries: int, num_keys: int, has_norm: bool, turns: bool, half: int, device: torch.device
) -> None:
    shape = AttentionShape(3, 2, 2 * half, 1.0, None, True)
    # The two heads that hold the values are not changed.
    columns = (num_queries + num_keys + 2) * 2 * half
    positions = torch.tensor([0, 6, 3], dtype=torch.int32, device=device)
    rotation = Rotation(numbers(device, 7, half), numbers(device, half, 7).T.contiguous())
    norms = [
        norm_weight(device, 2 * half, True, shift=shift) if has_norm and count else None
        for shift, count in ((0, num_queries), (4, num_keys))
    ]
    for dtype in (torch.float32, torch.bfloat16):
        given = numbers(device, 3, columns, dtype=dtype)
        results = []
        for module in (kernels, reference):
            values = given.clone()
            module.rotate(
                values, positions, rotation if turns else None, shape, num_queries, num_keys, *norms
            )
            results.append(values)
        assert_same(*results)
        assert torch.equal(results[0][:, -4 * half :], given[:, -4 * half :])
        assert not torch.equal(results[0], given)


def tiles_of(lengths: Sequence[int], tile_queries: int, device: torch.device) -> torch.Tensor:
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    return torch.from_numpy(tile_table(ends, tile_queries).astype(np.int32)).to(device)


@pytest.mark.parametrize(
    ("is_causal", "window", "cap", "has_bias", "heads", "head_dim", "dtype"),
    [
        (True, None, None, False, (2, 2), 32, torch.float32),
        (True, None, None, False, (2, 1), 64, torch.bfloat16),
        (False, None, None, False, (2, 2), 12, torch.float32),
        (False, None, None, True, (2, 2), 32, torch.float32),
        (False, None, None, True, (4, 2), 16, torch.bfloat16),
        (True, 9, None, False, (2, 1), 32, torch.float32),
        (False, 9, None, False, (2, 1), 32, torch.float32),
        (True, 70, 0.7, False, (2, 1), 16, torch.float32),
        (False, 70, 0.7, False, (2, 2), 10, torch.bfloat16),
        (True, None, None, False, (1, 1), 256, torch.bfloat16),
        # Blocks of fewer keys than queries: some queries attend to no key of the first block.
        (True, 5, None, False, (1, 1), 144, torch.bfloat16),
        (False, 5, 0.7, True, (2, 2), 16, torch.float32),
        # Windows of several blocks: a left edge, fully visible blocks, and a right edge.
        (True, 100, None, False, (4, 1), 16, torch.bfloat16),
        (False, 70, None, False, (2, 2), 16, torch.bfloat16),
        (True, 64, None, False, (1, 1), 16, torch.float16),
        # Numbers of heads per key that are not powers of two.
        (True, None, None, False, (6, 1), 8, torch.bfloat16),
        (True, None, None, False, (3, 1), 16, torch.float32),
        (True, None, None, False, (32, 1), 8, torch.bfloat16),
    ],
)
def test_attend(
    is_causal: bool,
    window: int | None,
    cap: float | None,
    has_bias: bool,
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    num_heads, kv_heads = heads
    lengths = [3, LONG_TILE_ROWS + 7, 1]
    num_tokens = sum(lengths)
    shape = AttentionShape(num_heads, kv_heads, head_dim, 1.3 * head_dim**-0.5, cap, is_causal)
    qkv = 2 * numbers(device, num_tokens, (num_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    bias = numbers(device, num_heads, 2 * max(lengths) - 1) if has_bias else None
    encoder = replace(
        fake_spec().encoder, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim
    )
    outs = [torch.full((num_tokens, num_heads * head_dim), torch.nan, device=device).to(dtype)]
    tiles = tiles_of(lengths, 64, device)
    reference.attend(qkv, qkv, tiles, 64, shape, window, bias, outs[0])
    sizes = (tile_queries(encoder, is_short=i, itemsize=dtype.itemsize) for i in (True, False))
    for queries in set(sizes):
        tiles = tiles_of(lengths, queries, device)
        outs.append(torch.full_like(outs[0], torch.nan))
        kernels.attend(qkv, qkv, tiles, queries, shape, window, bias, outs[-1])
    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    for found in outs[1:]:
        torch.testing.assert_close(found, outs[0], rtol=tolerance, atol=tolerance)


def test_tiles_may_be_launched_in_slices(device: torch.device) -> None:
    shape = AttentionShape(2, 1, 16, 0.25, None, True)
    lengths = [5, 60, 20]
    qkv = numbers(device, sum(lengths), 4 * 16)
    tiles = tiles_of(lengths, 8, device)
    whole, parts = (torch.full((sum(lengths), 2 * 16), torch.nan, device=device) for _ in "ab")
    kernels.attend(qkv, qkv, tiles, 8, shape, None, None, whole)
    for start, stop in ((0, 1), (1, 6), (6, len(tiles))):
        kernels.attend(qkv, qkv, tiles[start:stop], 8, shape, None, None, parts)
    assert torch.equal(whole, parts)


def test_attention_of_single_rows(device: torch.device) -> None:
    """Queries in a separate matrix, as in the last layer; an empty tile has no effect."""
    shape = AttentionShape(2, 1, 16, 0.25, None, True)
    lengths = [5, 70]
    qkv = numbers(device, 75, 4 * 16)
    whole = torch.empty(75, 2 * 16, device=device)
    kernels.attend(qkv, qkv, tiles_of(lengths, 8, device), 8, shape, None, None, whole)
    rows = [4, 0, 74]
    table = [[0, 1, 4, 0, 5], [1, 1, 0, 0, 5], [0] * 5, [2, 1, 69, 5, 70]]
    tiles = torch.tensor(table, dtype=torch.int32, device=device)
    out = torch.empty(3, 2 * 16, device=device)
    kernels.attend(
        qkv[rows, :32].contiguous(), qkv[:, 32:].contiguous(), tiles, 1, shape, None, None, out
    )
    torch.testing.assert_close(out, whole[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_never_looks_into_another_sequence(
    module: Any, is_causal: bool, device: torch.device
) -> None:
    shape = AttentionShape(2, 2, 16, 0.25, None, is_causal)
    first = 16 + 3
    lengths = [first, 4, 2]
    qkv = numbers(device, sum(lengths), 6 * 16)
    qkv[first + 2] = torch.nan  # the third of its four tokens
    out = torch.zeros(sum(lengths), 2 * 16, device=device)
    module.attend(qkv, qkv, tiles_of(lengths, 16, device), 16, shape, None, None, out)
    bad = set(out.isnan().any(dim=1).nonzero().flatten().tolist())
    # Tokens that attend to the third one; others of its sequence may also get NaN (0 * NaN).
    assert {first + 2, first + 3} <= bad <= set(range(first, first + 4))
    assert is_causal or len(bad) == 4


@pytest.mark.parametrize("leaves_out", [False, True])
@pytest.mark.parametrize("modes", [*([mode] for mode in POOLING_MODES), POOLING_MODES])
def test_pool(modes: tuple[PoolingMode, ...], leaves_out: bool, device: torch.device) -> None:
    lengths = [3, 70, 1, 0, 32, 2]
    hidden = numbers(device, sum(lengths), 72)
    ends = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device)
    skipped = torch.tensor([1, 40, 0, 0, 0, 2], dtype=torch.int32, device=device)
    left_out = skipped if leaves_out else None
    found, expected = (torch.full((6, 72 * len(modes)), torch.nan, device=device) for _ in "ab")
    kernels.pool(hidden, ends, left_out, modes, found)
    reference.pool(hidden, ends, left_out, modes, expected)
    assert_same(found, expected)
    assert (found[3] == 0).all()
    if modes == ["max"] and leaves_out:
        assert (found[5] == MASKED).all()
    if modes == ["cls"]:  # of a sequence that is all prompt the first token
        rows = [1, 3 + 40, 73, 74, 106] if leaves_out else [0, 3, 73, 74, 106]
        assert_same(found[[0, 1, 2, 4, 5]], hidden[rows])


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_pooling_shows_what_is_not_finite(mode: PoolingMode, device: torch.device) -> None:
    hidden = numbers(device, 6, 4)
    hidden[[0, 2]] = torch.nan
    ends = torch.tensor([0, 3, 6], dtype=torch.int32, device=device)
    out = torch.zeros(2, 4, device=device)
    kernels.pool(hidden, ends, None, (mode,), out)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_every_launch_says_how_numbers_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's default differs between versions, which would change the last bits."""
    launched: list[tuple[str, object]] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, _: object) -> Kernel:
            return self

        def __call__(self, *_: object, **options: object) -> None:
            launched.append((self.name, options.get("enable_fp_fusion")))

    modules = (row_kernels, rotate_kernel, attention_kernel, pool_kernel, expert_kernels)
    modules = (*modules, convolution_kernel, few_rows)
    names = {
        name: module for module in modules for name in vars(module) if name.endswith("_kernel")
    }
    for name, module in names.items():
        monkeypatch.setattr(module, name, Kernel(name))
    cpu = torch.device("cpu")
    rows, ints = numbers(cpu, 2, 32), torch.zeros(2, dtype=torch.int32)
    out, weight = buffer(cpu, 2, 32, torch.float32), norm_weight(cpu, 32, is_rms=True)
    shape = AttentionShape(1, 1, 8, 1.0, None, True)
    kernels.embed(ints, ints, ints, Embeddings(rows, None, None, 1.0), out)
    kernels.norm(rows, None, None, weight, "sum", out)
    kernels.quantize(rows, out)
    kernels.rotate(rows, ints, None, shape, 1, 1, weight, weight)
    kernels.attend(rows, rows, tiles_of([2], 16, cpu), 16, shape, None, None, rows)
    kernels.pool(rows, ints, None, ("cls",), rows)
    kernels.choose_experts(rows, rows, 1, rows)
    kernels.activate_experts(rows, rows[:, :4], "gelu")
    kernels.convolve(rows, ints, Convolution(rows, None), rows)
    half = torch.zeros(64, 128, dtype=torch.bfloat16)
    kernels.linear(Buffer(half[:2]), LinearWeight(half, None, None), Buffer(half[:2]))
    assert sorted(launched) == sorted((name, True) for name in names)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8])
def test_linear(dtype: torch.dtype, has_bias: bool, device: torch.device) -> None:
    rows, weights = numbers(device, 5, 64), numbers(device, 48, 64)
    plain = torch.bfloat16 if dtype == FP8 else dtype
    bias = numbers(device, 48).to(plain) if has_bias else None
    source, weight = buffer(device, 5, 64, dtype), buffer(device, 48, 64, dtype)
    for target, values in ((source, rows), (weight, weights)):
        reference.quantize(values, target)
    scales = None if weight.scales is None else weight.scales.T
    matrix = LinearWeight(weight.values, scales, bias)
    found, expected = (buffer(device, 5, 48, plain) for _ in range(2))
    kernels.linear(source, matrix, found)
    reference.linear(source, matrix, expected)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found.values, expected.values, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 5, 16, 17, 33, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8])
def test_few_rows(dtype: torch.dtype, num_rows: int, has_bias: bool, device: torch.device) -> None:
    plain = torch.bfloat16 if dtype == FP8 else dtype
    bias = numbers(device, 128).to(plain) if has_bias else None
    source, weight = buffer(device, num_rows, 512, dtype), buffer(device, 128, 512, dtype)
    for target in (source, weight):
        reference.quantize(numbers(device, *target.values.shape), target)
    matrix = LinearWeight(
        weight.values, None if weight.scales is None else weight.scales.T.contiguous(), bias
    )
    is_served = few_rows.serves_few_rows(source.values, matrix.values)
    assert is_served == (dtype == FP8 or num_rows <= 32)
    if not is_served:
        return
    # A row beyond the last one is not written.
    found, expected = (buffer(device, num_rows + 1, 128, plain) for _ in range(2))
    found.values.fill_(7.0)
    few_rows.multiply_few_rows(source, matrix, Buffer(found.values[:num_rows]))
    reference.linear(source, matrix, Buffer(expected.values[:num_rows]))
    assert (found.values[num_rows] == 7.0).all()
    torch.testing.assert_close(
        found.values[:num_rows], expected.values[:num_rows], rtol=0.02, atol=0.2
    )


@pytest.mark.parametrize(
    ("num_rows", "columns", "inputs", "dtype"),
    [
        (65, 128, 512, FP8),
        (33, 128, 512, torch.bfloat16),
        (1, 96, 512, FP8),
        (1, 128, 384, FP8),
        (1, 128, 512, torch.float32),
    ],
)
def test_other_products_are_the_library_s(
    num_rows: int, columns: int, inputs: int, dtype: torch.dtype
) -> None:
    source, weight = torch.empty(num_rows, inputs), torch.empty(columns, inputs)
    assert not few_rows.serves_few_rows(source.to(dtype), weight.to(dtype))


@pytest.mark.parametrize(
    ("capability", "is_served"), [((8, 9), False), ((9, 0), True), ((10, 0), False)]
)
def test_few_rows_are_for_hopper(
    capability: tuple[int, int], is_served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnGpu:
        is_cuda, device = True, torch.device("cuda:0")

        def __len__(self) -> int:
            return 3

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    weight = torch.empty(128, 512).to(FP8)
    assert few_rows.serves_few_rows(cast(Any, OnGpu()), weight) == is_served
