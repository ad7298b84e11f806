from __future__ import annotations

from dataclasses import replace

import pytest

from embedlib.measuring.openvino_products import ROWS
from embedlib.measuring.sgemm import SgemmCalls, flop_per_token, linear_shapes
from embedlib.measuring.spread import Latency, Spread, aba_ratios
from embedlib.models.encoder_parts import Convolutions, Experts, WideHeads
from embedlib.models.spec import Encoder

MINILM = Encoder(
    family="bert",
    vocab_size=30522,
    hidden_size=384,
    num_layers=6,
    num_heads=12,
    num_kv_heads=12,
    head_dim=32,
    intermediate_size=1536,
    activation="gelu",
    is_gated=False,
    norm="layer_norm",
    norm_eps=1e-12,
    norm_placement="post",
    num_positions=512,
    windows=(None,) * 6,
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    has_down_bias=True,
)
GROUPED = replace(
    MINILM, num_layers=2, hidden_size=10, num_heads=4, num_kv_heads=2, head_dim=3, is_gated=True,
    intermediate_size=7, windows=(None, None),
)  # fmt: skip


def test_flop_of_a_bert() -> None:
    # Per layer: four 384 x 384 and two 384 x 1536.
    assert flop_per_token(MINILM) == 2 * 6 * (4 * 384 * 384 + 2 * 384 * 1536) == 21_233_664


def test_flop_with_grouped_heads_and_a_gate() -> None:
    assert linear_shapes(GROUPED) == [
        *((10, 12), (10, 6), (10, 6), (12, 10)),
        *((10, 7), (10, 7), (7, 10)),
    ]
    assert flop_per_token(GROUPED) == 2 * 2 * (120 + 60 + 60 + 120 + 70 + 70 + 70)


def test_flop_of_layers_that_differ() -> None:
    """Experts, convolutions and heads of another width are no attention with one MLP."""
    chosen = Experts(count=8, num_chosen=2, layers=(1,))
    attention, mlp = 120 + 60 + 60 + 120, 70 + 70 + 70
    plain = replace(GROUPED, is_gated=False, experts=chosen)
    assert flop_per_token(plain) == 2 * (2 * attention + 2 * 70 + 8 * 10 + 2 * 2 * 70)
    short = Convolutions(layers=(0,), width=3, has_bias=False)
    convolved = replace(GROUPED, convolutions=short)
    assert flop_per_token(convolved) == 2 * (30 * 10 + 10 * 10 + attention + 2 * mlp)
    wide = replace(GROUPED, windows=(4, None), wide_heads=WideHeads(head_dim=6, num_kv_heads=2))
    assert flop_per_token(wide) == 2 * (attention + 2 * attention + 2 * mlp)


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 8.0, 2.0]) == Spread(
        median=2.5, min=1.0, max=8.0, values=(3.0, 1.0, 8.0, 2.0)
    )


def test_latency() -> None:
    latency = Latency.of([float(ms) for ms in range(101)][::-1])
    assert latency == Latency(num_queries=101, p50_ms=50, p99_ms=99, max_ms=100)


def test_a_slow_drift_of_the_machine_cancels_out() -> None:
    # Twice as fast, on a machine that loses 10 with every turn.
    assert aba_ratios([200, 160, 120], [90, 70]) == pytest.approx([2, 2])


def test_sgemm_adds_up_what_the_threads_do() -> None:
    ticks = iter(range(1_000_000))
    # Every look at the clock is a second later: one call per thread, then the time is over.
    rates = SgemmCalls(1, clock=lambda: float(next(ticks))).measure([(4, 8), (8, 4)], seconds=1)
    assert rates["float32"]["numpy"] == 2 * ROWS * (32 + 32)
    assert rates.keys() == {"float32", "bf16", "int8"}
    assert rates["int8"]["openvino"] == rates["float32"]["numpy"]


def test_sgemm_on_several_threads_with_a_real_clock() -> None:
    rates = SgemmCalls(2).measure([(4, 8)], seconds=1e-6)
    assert rates["float32"]["numpy"] > 0


def test_an_error_in_a_thread_ends_the_measurement() -> None:
    def fail() -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        SgemmCalls(2)._race([lambda: None, fail], 1e-6)
