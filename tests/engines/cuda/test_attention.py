from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from embedlib.engines.base import Batch
from embedlib.engines.cuda import attention, groups, loaded_model, reference
from embedlib.engines.cuda.attention import (
    Varlen,
    attend_rows,
    choose_attention,
    flash_attention_3,
)
from embedlib.engines.cuda.device import CpuDevice
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.executor import attention_shape
from embedlib.engines.cuda.inputs import tile_table
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.cuda.plan import Attend
from embedlib.engines.cuda.reference import AttentionShape
from embedlib.errors import EngineUnsupportedError
from embedlib.models.encoder_parts import PositionBias, RelativePositions, Rope
from embedlib.models.spec import Encoder, ModelSpec, Pooling
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.testing import fake_spec, make_batch
from tests.waiting import WAIT_SECONDS

LENGTHS = (90, 1, 7, 130, 40, 60, 200)
"""More tokens than the largest recording."""
HOPPER = (9, 0)


class FlashAttention:
    """`flash_attn_varlen_func` in plain torch: rejects what the original rejects.

    Source: `flash_attn_varlen_func` in Dao-AILab/flash-attention, hopper/flash_attn_interface.py,
    and the checks of `mha_fwd` in hopper/flash_api.cpp.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.returns_sums = False
        self.factor = 1.0
        self.refusal: str | None = None

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        self.num_calls += 1
        if self.refusal:
            raise RuntimeError(self.refusal)
        _, num_heads, head_dim = q.shape
        assert q.dtype in (torch.bfloat16, torch.float16), "only fp16 and bf16"
        assert q.dtype == k.dtype == v.dtype, "query and key must have the same dtype"
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "contiguous last dimension"
        assert k.shape == v.shape == (len(k), k.shape[1], head_dim)
        assert head_dim % 8 == 0, "head_size should be a multiple of 8"
        assert head_dim <= 256, "head dimension at most 256"
        assert num_heads % k.shape[1] == 0, "heads in key must divide heads in query"
        assert causal or window_size == (-1, -1)
        for ends, rows, longest in (
            (cu_seqlens_q, q, max_seqlen_q),
            (cu_seqlens_k, k, max_seqlen_k),
        ):
            assert ends.dtype == torch.int32, "cu_seqlens must have dtype torch.int32"
            assert (int(ends[0]), int(ends[-1])) == (0, len(rows))
            assert type(longest) is int
            assert int(ends.diff().max()) == longest, "it reads no further than it is told"
        out = torch.full_like(q, torch.nan)
        rows = zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)
        for query_rows, key_rows in _between(list(rows)):
            left, right = window_size[0], 0 if causal else window_size[1]
            hidden = ~_seen(query_rows, key_rows, left, right)
            queries, keys, values = q[query_rows].float(), k[key_rows].float(), v[key_rows].float()
            repeats = num_heads // k.shape[1]
            keys, values = (part.repeat_interleave(repeats, dim=1) for part in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * softmax_scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
            mixed = torch.einsum("hqk,khd->qhd", weights, values)
            out[query_rows] = (self.factor * mixed).to(out.dtype)
        return (out, torch.zeros(1)) if self.returns_sums else out


def _between(rows: list[tuple[int, int]]) -> list[tuple[slice, slice]]:
    """Return the rows of queries and of keys of every sequence."""
    return [(slice(q, q_end), slice(k, k_end)) for (q, k), (q_end, k_end) in pairwise(rows)]


def _seen(query_rows: slice, key_rows: slice, left: int, right: int) -> torch.Tensor:
    """Return bool[queries, keys]; the last query is at the last key's position. -1: unbounded."""
    num_queries, num_keys = (rows.stop - rows.start for rows in (query_rows, key_rows))
    places = torch.arange(num_queries, device="cpu")[:, None] + num_keys - num_queries
    distance = torch.arange(num_keys, device="cpu") - places
    return ((distance >= -left) | (left < 0)) & ((distance <= right) | (right < 0))


def use_device(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    """Make engines use a CPU device that reports this compute capability."""
    device = CpuDevice()
    device.capability = capability
    monkeypatch.setattr(loaded_model, "open_device", lambda *_: device)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> FlashAttention:
    """Install the stand-in, and make many groups start in the middle of a sequence."""
    function = FlashAttention()
    module = ModuleType("flash_attn_interface")
    module.flash_attn_varlen_func = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    use_device(monkeypatch, HOPPER)
    monkeypatch.setattr(groups, "MAX_GROUP_WORK", 2e6)
    monkeypatch.setattr(groups, "CUT_ROWS", 64)
    return function


def model(pooling: Any = "mean", **traits: Any) -> ModelSpec:
    base = fake_spec(max_seq_tokens=256, modules=(Pooling(modes=(pooling,)),))
    given = {
        "hidden_size": 32,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 8,
        "intermediate_size": 48,
        "norm_placement": "pre",
        "norm": "rms_norm",
        "rope": Rope(theta=1e4),
        "windows": (None,) * 3,
        **dict.fromkeys(("has_qkv_bias", "has_output_bias", "has_mlp_bias"), False),
        "has_down_bias": False,
        **traits,
    }
    return replace(base, encoder=replace(base.encoder, **given), embedding_dim=32)


CAUSAL = model(is_causal=True)


def weights_of(encoder: Encoder) -> Mapping[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)
    weights = {}
    for role, shape in encoder_shapes(encoder).items():
        values = random.standard_normal(shape).astype(np.float32)
        if "norm.weight" in role:
            values = 1 + values / 10
        elif len(shape) == 2:
            values *= 2 * shape[1] ** -0.5
        weights[role] = values
    return weights


def batch_of(lengths: tuple[int, ...]) -> Batch:
    random = np.random.default_rng(1)
    return make_batch([random.integers(3, 256, length) for length in lengths])


def run(spec: ModelSpec, **options: Any) -> NDArray[np.float32]:
    given = {"precision": "bf16", "max_batch_tokens": 1024, **options}
    engine = CudaEngine(spec, weights_of(spec.encoder), **given)
    done = threading.Event()
    pending = engine.submit(batch_of(LENGTHS), done.set)
    assert done.wait(WAIT_SECONDS)
    engine.close()
    return pending.result()


def off(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(errors.max())


def choose(spec: ModelSpec, name: Any = "auto") -> Mapping[Attend, Varlen]:
    return choose_attention(
        name,
        build_plan(spec),
        attention_shape(spec.encoder),
        has_bias=False,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        capability=HOPPER,
        own=reference.attend,
    )


@pytest.mark.parametrize("pooling", ["mean", "last_token"])
@pytest.mark.parametrize(
    "traits",
    [
        {"is_causal": True},
        {"is_causal": False},
        {"is_causal": True, "num_kv_heads": 2},
        {"is_causal": True, "windows": (20, None, 20)},
        {"is_causal": True, "attention_cap": 2.0, "attention_scale": 0.7},
        {"is_causal": False, "num_kv_heads": 1, "windows": (None, 20, None)},
    ],
)
def test_flash_attention_computes_what_our_kernel_computes(
    traits: dict[str, Any], pooling: str, flash: FlashAttention, caplog: pytest.LogCaptureFixture
) -> None:
    spec = model(pooling, **traits)
    with caplog.at_level(logging.INFO):
        found = run(spec)
    assert off(found, run(spec, attention="own")) < 0.02
    windows = traits.get("windows", (None,) * 3)
    ours = {index for index in range(3) if not spec.encoder.is_causal and windows[index]}
    ours |= {2} if pooling == "last_token" else set()
    assert f"flash_attention_3 in {3 - len(ours)} of 3 steps" in caplog.text
    assert ("only the pooled tokens have queries" in caplog.text) == (pooling == "last_token")
    # Trials, and several groups of every layer.
    assert flash.num_calls >= 2 + 3 * (3 - len(ours))


def test_both_number_types_that_it_takes_and_both_returns(flash: FlashAttention) -> None:
    flash.returns_sums = True
    for precision in ("fp16", "bf16"):
        before = flash.num_calls
        found = run(CAUSAL, precision=precision, attention="flash_attention_3")
        assert flash.num_calls > before
        assert off(found, run(CAUSAL, precision=precision, attention="own")) < 0.02


BIASED = model(rope=None, position_bias=PositionBias(num_buckets=8, max_distance=16))
RELATIVE = RelativePositions(num_buckets=8, max_distance=16)


@pytest.mark.parametrize(
    ("spec", "precision", "capability", "told"),
    [
        (CAUSAL, "float32", HOPPER, r"torch.float32, it supports bfloat16 and"),
        (
            model(head_dim=12),
            "bf16",
            HOPPER,
            r"head_dim = 12, it supports multiples of 8 up to 256",
        ),
        (BIASED, "bf16", HOPPER, r"it supports no position bias"),
        (
            model(rope=None, relative_positions=RELATIVE),
            "bf16",
            HOPPER,
            r"it supports no relative positions",
        ),
        (CAUSAL, "bf16", (8, 9), r"compute capability 8.9, it needs 9.x"),
        (CAUSAL, "bf16", (10, 0), r"compute capability 10.0, it needs 9.x"),
        (model(windows=(5,) * 3), "bf16", HOPPER, r"a window on both sides"),
        (CAUSAL, "bf16", None, r"there is no GPU"),
    ],
)
def test_what_it_cannot_do_it_is_never_asked(
    spec: ModelSpec,
    precision: str,
    capability: tuple[int, int] | None,
    told: str,
    flash: FlashAttention,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_device(monkeypatch, capability)
    with caplog.at_level(logging.INFO):
        found = run(spec, precision=precision)
    assert flash.num_calls == 0
    assert off(found, run(spec, precision=precision, attention="own")) == 0
    assert "flash_attention_3 in 0 of 3 steps" in caplog.text
    with pytest.raises(
        EngineUnsupportedError, match=rf"cannot compute any layer: .*{told}.*; use att"
    ):
        run(spec, precision=precision, attention="flash_attention_3")


def test_recorded_batches_are_our_kernels(flash: FlashAttention) -> None:
    weights = weights_of(CAUSAL.encoder)
    engine = CudaEngine(CAUSAL, weights, precision="bf16", max_batch_tokens=1024)
    after_start = flash.num_calls
    assert after_start > 0
    pending = engine.submit(batch_of((3,)), lambda: None)
    engine.close()
    assert pending.result().shape == (1, 32)
    assert flash.num_calls == after_start


@pytest.mark.parametrize(
    ("factor", "refusal", "told"),
    [
        (1.1, None, r"it failed a trial: its result differs from our kernel's by 0\.1"),
        (float("nan"), None, r"it failed a trial: its result differs from our kernel's by nan"),
        (1.0, "no such head size\nin this build", r"a trial: RuntimeError: no such head size; use"),
    ],
)
def test_what_fails_a_trial_does_not_serve(
    factor: float,
    refusal: str | None,
    told: str,
    flash: FlashAttention,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flash.factor, flash.refusal = factor, refusal
    with caplog.at_level(logging.INFO):
        found = run(CAUSAL)
    assert off(found, run(CAUSAL, attention="own")) == 0
    assert "flash_attention_3 in 0 of 3 steps" in caplog.text
    with pytest.raises(EngineUnsupportedError, match=told):
        run(CAUSAL, attention="flash_attention_3")


def test_a_trial_does_not_depend_on_the_default_device(flash: FlashAttention) -> None:
    with torch.device("meta"):  # as `torch.set_default_device("cuda")`
        assert choose(CAUSAL)
    assert flash.num_calls


def test_a_trial_is_launched_on_the_device_of_the_engine(
    flash: FlashAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton uses the thread's current device, which is the first GPU on a new thread."""
    entered: list[int] = []

    class DeviceOf:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.calls = flash.num_calls
            assert tensor.numel()

        def __enter__(self) -> None:
            entered.append(flash.num_calls - self.calls)

        def __exit__(self, *_: object) -> None:
            entered.append(flash.num_calls - self.calls)

    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    choose(CAUSAL)
    assert entered[:2] == [0, 2]  # both parts of the trial run inside


@pytest.mark.skipif(
    importlib.util.find_spec("flash_attn_interface") is not None, reason="FlashAttention 3 is here"
)
def test_without_it_everything_is_our_kernels(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert choose(CAUSAL) == {}
    assert "in 0 of 3 steps, our own kernel in the others (flash_attention_3 cannot" in caplog.text
    assert "No module named 'flash_attn_interface'" in caplog.text


@pytest.mark.parametrize("cuts", [(3,), (1, 90, 91), (100, 101, 227), ()])
@pytest.mark.parametrize(("is_causal", "window"), [(True, None), (True, 9), (False, None)])
def test_parts_are_the_whole(
    is_causal: bool, window: int | None, cuts: tuple[int, ...], flash: FlashAttention
) -> None:
    """Cuts at the end of a sequence, inside one, and several sequences in one part."""
    shape = AttentionShape(4, 2, 16, 0.3, None, is_causal)
    ends = batch_of(LENGTHS).cu_seqlens
    num_rows = int(ends[-1])
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(num_rows, 8 * 16, generator=generator).bfloat16()
    found, expected = (torch.full((num_rows, 4 * 16), torch.nan).bfloat16() for _ in "ab")
    bounds = (0, *cuts, num_rows)
    for start, stop in pairwise(bounds):
        cut = slice(start, stop) if cuts else None
        cu_seqlens = torch.from_numpy(ends)
        varlen_function = flash_attention_3()
        attend_rows(varlen_function, qkv, qkv, ends, cu_seqlens, cut, shape, window, found)
    assert flash.num_calls == len(cuts) + 1
    reference.attend(
        qkv, qkv, torch.from_numpy(tile_table(ends, 32)), 32, shape, window, None, expected
    )
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0"])
def test_torch_is_asked_as_it_wants(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's function runs only on GPUs: the stand-in checks its arguments."""
    signature = inspect.signature(varlen.varlen_attn)
    if version == "2.13.0" and "enable_gqa" not in signature.parameters:
        pytest.skip(f"torch {torch.__version__} has an older function")
    # torch 2.11 has only these, and no argument for heads that share keys.
    old = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "scale"]
    monkeypatch.setattr(torch, "__version__", version)

    def stand_in(*args: Any, **options: Any) -> torch.Tensor:
        given = signature.bind(*args, **options).arguments
        query, key, value = (given[name].transpose(0, 1) for name in ("query", "key", "value"))
        if version == "2.13.0":
            assert given["enable_gqa"] == (len(query) != len(key))
        else:
            assert set(given) == {*old, "window_size"}
        out = torch.empty_like(query)
        rows = zip(given["cu_seq_q"].tolist(), given["cu_seq_k"].tolist(), strict=True)
        for query_rows, key_rows in _between(list(rows)):
            out[:, query_rows] = scaled_dot_product_attention(
                query[:, query_rows],
                key[:, key_rows],
                value[:, key_rows],
                _seen(query_rows, key_rows, *given["window_size"]),
                scale=given["scale"],
                enable_gqa=True,
            )
        return out.transpose(0, 1)

    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    for traits in (
        {"is_causal": True, "num_kv_heads": 2},
        {"is_causal": False, "attention_scale": 0.9},
        {"is_causal": True, "windows": (20,) * 3},
    ):
        assert len(choose(model(**traits), "torch")) == 1  # equal steps are the same key
    with pytest.raises(EngineUnsupportedError, match=r"attention = 'torch' .* no cap on scores"):
        choose(model(is_causal=True, attention_cap=2.0), "torch")


def test_a_trial_is_long_enough_to_see_a_mask() -> None:
    longest = attention.TRIAL_LENGTHS[-1]
    assert longest > 3 * attention.TRIAL_WINDOW
    start = sum(attention.TRIAL_LENGTHS) - longest
    assert start + 10 < attention.TRIAL_CUT < start + longest - attention.TRIAL_WINDOW


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ["flash_attention_3", "torch"])
@pytest.mark.parametrize("traits", [{"is_causal": True, "num_kv_heads": 2}, {"is_causal": False}])
def test_on_a_gpu_it_computes_what_our_kernel_computes(name: str, traits: dict[str, Any]) -> None:
    if name == "flash_attention_3":
        pytest.importorskip("flash_attn_interface")
    spec = model(head_dim=64, **traits)
    found, expected = (run(spec, attention=other) for other in (name, "own"))
    assert off(found, expected) < 0.02
