from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch

from embedlib.engines.cuda.buffers import Workspace
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.cuda.plan import (
    Attend,
    Linear,
    MultiplyDistances,
    Norm,
    NormColumns,
    PutPooled,
    Rotate,
    TakePooled,
)
from embedlib.engines.cuda.prefix_keys import prefix_keys
from embedlib.engines.cuda.support import COMPUTED_MODULES
from embedlib.engines.first_tokens import can_keep_prefix
from embedlib.engines.gpu_memory import MAX_PREFIX_TOKENS, needed_bytes
from embedlib.errors import EngineUnsupportedError
from embedlib.models.encoder_parts import Convolutions, Experts, RelativePositions, Rope, WideHeads
from embedlib.models.spec import Encoder, ModelSpec, Module, Pooling, PoolingMode, SpladePooling
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.testing import fake_spec
from tests.acceptance.gpu.models import SHAPES

RELATIVE = RelativePositions(num_buckets=8, max_distance=16)
CONVOLUTIONS = Convolutions(layers=(0, 2), width=3, has_bias=False)


def decoder(modes: tuple[PoolingMode, ...] = ("last_token",), **traits: object) -> ModelSpec:
    spec = fake_spec(modules=(Pooling(modes=modes),))
    given = {
        "hidden_size": 32,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "is_gated": True,
        "norm": "rms_norm",
        "norm_placement": "pre",
        "rope": Rope(),
        "windows": (None, None, None),
        **traits,
    }
    return replace(spec, encoder=replace(spec.encoder, **given))  # type: ignore[arg-type]


def names(spec: ModelSpec, layer: int, quantized: set[str] | None = None) -> list[str]:
    plan = build_plan(spec, quantized or ())
    return [type(step).__name__ for step in plan.layers[layer]]


def test_the_launches_of_a_layer() -> None:
    spec = decoder()
    roles = set(linear_roles(spec.encoder))
    bf16 = ["Linear", "Rotate", "Attend", "Linear", "Norm", "Linear", "Activate", "Linear", "Norm"]
    assert names(spec, 1) == bf16
    assert names(spec, 0) == ["Embed", "Norm", *bf16]
    # In FP8, the kernel that computes a matrix quantizes it, except for attention's output.
    assert names(spec, 1, roles) == [*bf16[:3], "Quantize", *bf16[3:]]
    assert names(spec, 1, roles - {"layers.1.o"}) == bf16


def test_what_one_pooled_token_saves() -> None:
    pruned, whole = build_plan(decoder(("cls", "last_token"))), build_plan(decoder(("mean",)))
    assert (pruned.pooled_modes, whole.pooled_modes) == (("cls", "last_token"), ())
    assert pruned.hidden.rows == "pooled"
    rows = {step.roles[0]: step.out.rows for step in pruned.steps if isinstance(step, Linear)}
    assert {role for role, kind in rows.items() if kind == "pooled"} == {
        *("layers.2.q", "layers.2.o", "layers.2.gate", "layers.2.down"),
    }
    assert rows["layers.2.k"] == "token"
    assert Counter(type(step) for step in pruned.steps)[TakePooled] == 2
    assert Counter(type(step) for step in whole.steps)[TakePooled] == 0
    assert {step.out.rows for step in whole.steps if isinstance(step, Linear)} == {"token"}


def test_pooled_rows_without_fp8_go_beside_all_others() -> None:
    spec = decoder()
    roles = set(linear_roles(spec.encoder))
    plan = build_plan(spec, roles, splits_pooled=True)
    of_rows: dict[str, list[str]] = {"token": [], "pooled": []}
    for step in plan.steps:
        if isinstance(step, Linear):
            assert step.source.is_fp8 == (step.source.rows == "token")
            of_rows[step.source.rows] += step.roles
    asks = {f"layers.2.{leaf}" for leaf in ("q", "o", "gate", "up", "down")}
    assert sorted(of_rows["pooled"]) == sorted(roles)
    assert sorted(of_rows["token"]) == sorted(roles - asks)
    # A pooled token's keys and values are put back before they are rotated and read.
    for layer in plan.layers:
        kinds = [type(step) for step in layer]
        assert kinds.index(PutPooled) < kinds.index(Rotate) < kinds.index(Attend)
        assert kinds.count(PutPooled) == kinds.count(Attend) == 1
    with pytest.raises(EngineUnsupportedError, match="'pooled_rows', and the pooling modes are me"):
        build_plan(decoder(("mean",)), splits_pooled=True)


def test_every_weight_is_read_once() -> None:
    for modes in (("mean",), ("last_token",)):
        spec = decoder(modes)  # type: ignore[arg-type]
        steps = [step for step in build_plan(spec).steps if isinstance(step, Linear)]
        assert sorted(role for step in steps for role in step.roles) == sorted(
            linear_roles(spec.encoder)
        )


def test_quantized_layers_read_fp8_and_no_other_does() -> None:
    spec = decoder()
    roles = {role for role in linear_roles(spec.encoder) if not role.endswith("down")}
    for step in build_plan(spec, roles).steps:
        if isinstance(step, Linear):
            assert step.source.is_fp8 == (step.roles[0] in roles)
            assert not step.out.is_fp8


def test_a_norm_behind_the_sum_is_written_once() -> None:
    # In bfloat16 the residual is the norm's output, and the next layer reads it there.
    plan = build_plan(decoder(norm_placement="post", norm="layer_norm"))
    inner = [step for step in plan.steps if isinstance(step, Norm)][:-1]
    assert all((step.keeps, step.out) == ("norm", None) for step in inner)
    roles = linear_roles(decoder().encoder)
    plan = build_plan(decoder(norm_placement="post", norm="layer_norm"), roles)
    inner = [step for step in plan.steps if isinstance(step, Norm)][:-1]
    assert all(step.keeps == "norm" and step.out and step.out.is_fp8 for step in inner)


def test_norms_of_all_heads_come_before_attention_and_two_behind_it() -> None:
    spec = decoder(
        norm_placement="post", norm="layer_norm", rope=None, has_qk_norm=True,
        qk_norm_joins_heads=True, norms_attention_twice=True,
    )  # fmt: skip
    plan = build_plan(spec)
    queries, keys = (
        count * spec.encoder.head_dim
        for count in (spec.encoder.num_heads, spec.encoder.num_kv_heads)
    )
    first, *_, last = (
        [step for step in layer if isinstance(step, NormColumns)] for layer in plan.layers
    )
    assert [(step.start, step.stop) for step in first] == [(0, queries), (queries, queries + keys)]
    # The last layer has queries of the pooled tokens alone, in a matrix of their own.
    assert {(step.values.name, step.start, step.stop) for step in last} == {
        ("query", 0, queries), ("key_value", 0, keys),
    }  # fmt: skip
    assert not any(isinstance(step, Rotate) for step in plan.steps)
    roles = [step.role for step in plan.steps if isinstance(step, Norm)]
    place = roles.index("layers.0.attention_out_norm")
    assert roles[place + 1] == "layers.0.attention_norm"


def test_a_convolution_stands_for_attention() -> None:
    spec = decoder(is_causal=False, convolutions=CONVOLUTIONS)
    roles = set(linear_roles(spec.encoder))
    behind = ["Linear", "Norm", "Linear", "Activate", "Linear", "Norm"]
    assert names(spec, 0) == ["Embed", "Norm", "Linear", "Convolve", *behind]
    assert names(spec, 1) == ["Linear", "Rotate", "Attend", *behind]
    # The last layer convolves all tokens and continues with the pooled ones.
    assert names(spec, 2, roles) == [
        "Linear",
        "Convolve",
        "TakePooled",
        "TakePooled",
        "Quantize",
        *behind,
    ]
    plan = build_plan(spec, roles, splits_pooled=True)
    for layer in plan.layers[::2]:
        kinds = [type(step).__name__ for step in layer]
        assert kinds.index("PutPooled") < kinds.index("Convolve")
    rows = {
        step.roles[0]: step.out.rows for step in build_plan(spec).steps if isinstance(step, Linear)
    }
    assert (rows["layers.2.conv_in"], rows["layers.2.conv_out"]) == ("token", "pooled")


def test_queries_and_keys_meet_the_vectors_of_distances_before_attention() -> None:
    spec = decoder(rope=None, num_kv_heads=4, relative_positions=RELATIVE)
    for layer in build_plan(spec).layers:
        attend = next(step for step in layer if isinstance(step, Attend))
        of_queries, of_keys = (step for step in layer if isinstance(step, MultiplyDistances))
        assert attend.by_distance == (of_queries.out, of_keys.out)
        assert (of_queries.source, of_keys.source) == (attend.query, attend.key_value)
        # Queries first, then keys and values, 64 columns each; the last layer's queries are alone.
        assert (of_queries.start, of_keys.start) == (0, of_keys.source.columns - 128)
        assert (of_queries.role[-2:], of_keys.role[-2:]) == (".k", ".q")
        assert {step.out.columns for step in (of_queries, of_keys)} == {4 * 16}
        assert of_keys.out.rows == "token"
        assert of_queries.out.rows == attend.out.rows
    assert attend.by_distance[0] != attend.by_distance[1]
    assert all(
        step.by_distance == () for step in build_plan(decoder()).steps if isinstance(step, Attend)
    )


@pytest.mark.parametrize(
    ("traits", "quantized", "told"),
    [
        ({"head_dim": 257}, (), r"head_dim = 257; the attention kernel allows at most 256"),
        ({"relative_positions": RELATIVE}, (), "relative_positions of .* heads that share keys"),
        ({"relative_positions": RELATIVE, "num_kv_heads": 4, "is_causal": True}, (), "of a causal"),
        ({"has_v_norm": True}, (), "has_v_norm is not implemented"),
        ({"wide_heads": WideHeads(head_dim=8, num_kv_heads=1)}, (), "wide_heads"),
        ({"layer_input_size": 4}, (), "layer_input_size"),
        ({"convolutions": CONVOLUTIONS, "is_causal": True}, (), "convolutions of a causal"),
        ({"convolutions": CONVOLUTIONS, "rope": None}, (), "or of one without rotary positions"),
        ({"head_dim": 10}, ("layers.0.o",), r"layers.0.o is 32 x 40; FP8 needs multiples of 16"),
        ({"intermediate_size": 40}, ("layers.1.down",), r"layers.1.down is 32 x 40; FP8 needs mul"),
        ({}, ("layers.0.k", "layers.0.q"), r"layers.0.k is FP8 and layers.0.v is not; q, k, v are"),
        ({}, ("layers.0.up",), r"layers.0.up is FP8 and layers.0.gate is not"),
        ({}, ("layers.3.up",), r"'layers.3.up' is not a linear layer"),
    ],
)
def test_what_is_refused(traits: dict[str, object], quantized: tuple[str, ...], told: str) -> None:
    with pytest.raises(EngineUnsupportedError, match=told):
        build_plan(decoder(**traits), quantized)  # type: ignore[arg-type]


def test_every_trait_of_an_encoder_is_known_here() -> None:
    # A new trait must be lowered, or rejected, before it is added to this list.
    names = """family vocab_size hidden_size num_layers num_heads num_kv_heads head_dim
    intermediate_size activation is_gated norm norm_eps has_norm_bias norm_placement
    norms_embeddings embedding_scale num_positions position_offset pad_token_id
    num_token_types num_task_types rope window_rope position_bias is_causal windows
    attention_scale embedding_size attention_cap has_qk_norm has_qkv_bias has_output_bias
    has_mlp_bias has_down_bias
    relative_positions experts has_v_norm wide_heads layer_input_size
    qk_norm_joins_heads norms_attention_twice convolutions"""
    assert {field.name for field in fields(Encoder)} == set(names.split())
    pooling = {"modes", "include_prompt", "skipped_token_id"}
    assert {field.name for field in fields(Pooling)} == pooling
    assert set(get_args(Module)) == {*COMPUTED_MODULES, SpladePooling}


def test_memory_that_is_taken_at_the_start_was_estimated() -> None:
    """For every kind of layer: with distances, gates, experts, few keys and kept ones."""
    deberta = SHAPES["deberta-v3-base"].spec
    sizes = {"relative_positions": None, "rope": Rope(), "num_token_types": 1}
    experts = Experts(count=8, num_chosen=2, layers=(1, 3, 5, 7, 9, 11))
    nomic = replace(deberta, encoder=replace(deberta.encoder, experts=experts, **sizes))  # type: ignore[arg-type]
    meta = torch.device("meta")
    for spec in (nomic, *(shape.spec for shape in SHAPES.values())):
        space = Workspace(build_plan(spec), 16_384, 2048, torch.bfloat16, meta)
        taken = sum(buffer.values.nbytes for buffer in space._buffers.values())
        if can_keep_prefix(spec):
            kept = prefix_keys(spec, MAX_PREFIX_TOKENS, torch.bfloat16, meta)
            taken += sum(keys.nbytes for keys in kept)
        estimated = needed_bytes(spec, "bf16", (), 16_384) - needed_bytes(spec, "bf16", (), 0)
        assert 0.95 * taken <= estimated <= 1.3 * taken


def test_a_module_that_is_not_computed_is_refused() -> None:
    spec = replace(decoder(), modules=(SpladePooling(vocab_size=8),))
    with pytest.raises(EngineUnsupportedError, match="module SpladePooling is not implemented"):
        build_plan(spec)


def test_skipping_tokens_goes_with_single_tokens_only() -> None:
    pooling = Pooling(modes=("last_token", "mean"), skipped_token_id=0)
    with pytest.raises(EngineUnsupportedError, match="skipped_token_id with the pooling modes"):
        build_plan(replace(decoder(), modules=(pooling,)))
