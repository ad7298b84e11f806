"""An MLP that is cut into parts, and a residual stream in bf16: the same vectors up to rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.engines.base import Batch
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.kept.model_cache import ModelCache, WeightsFile
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.plans.memory import memory_needs
from embedlib.engines.openvino.sizes import mlp_sizes
from embedlib.engines.openvino.sizes.mlp_sizes import (
    COLUMNS_STEP,
    copied_bytes,
    num_mlp_parts,
    parts_of,
)
from embedlib.models.encoder_parts import Experts
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.spec import ModelSpec, Pooling
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import mapped_paths
from embedlib.testing import fake_spec, make_batch, write_tiny_model
from embedlib.vectors.bfloat16 import bfloat16_bits
from tests.comparing import relative_errors
from tests.tiny_encoders import CASES, HIDDEN, MAX_TOKENS, PLAIN, computed, weights_of

AMX = frozenset({"avx512_vnni", "avx512_bf16", "amx_bf16"})
FLOATS = [name for name, (*_, is_int8) in CASES.items() if not is_int8]


def use(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Let graphs be built with these options, whatever this CPU is."""
    monkeypatch.setattr(Layout, "graph_options", lambda *_, **__: GraphOptions(**options))


def as_bf16(numbers: Any) -> Any:
    return (bfloat16_bits(numbers).astype(np.uint32) << 16).view(np.float32)


@cache
def whole(name: str) -> tuple[ModelSpec, dict[str, Any], Batch, NDArray[np.float32]]:
    """Return a case's spec, weights, a batch and its vectors; computed once for all its tests."""
    encoder, pooling, _ = CASES[name]
    spec = replace(fake_spec(MAX_TOKENS), encoder=encoder, modules=(pooling,), embedding_dim=HIDDEN)
    dice = np.random.default_rng(0)
    weights = weights_of(spec, dice)
    for role in weights:  # which the copies of parts are rounded to
        weights[role] = as_bf16(weights[role]) if role.endswith("down.weight") else weights[role]
    batch = make_batch([dice.integers(0, encoder.vocab_size, n, np.int32) for n in (9, 2, 17)])
    return spec, weights, batch, computed(OpenVINOEngine(spec, weights, Layout(threads=1)), batch)


@pytest.mark.parametrize(
    ("num_parts", "max_stages"), [(2, 1), (3, 8)], ids=["a model a lane", "in stages"]
)
@pytest.mark.parametrize("name", FLOATS)
def test_parts_add_up(
    name: str, num_parts: int, max_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, weights, batch, right = whole(name)
    monkeypatch.setattr(mlp_sizes, "COLUMNS_STEP", 8)
    use(monkeypatch, mlp_parts=num_parts, max_stages=max_stages)
    layout = Layout(threads=1, shares_lanes=max_stages > 1)
    found = computed(OpenVINOEngine(spec, weights, layout), batch)
    assert relative_errors(found, right).max() <= 2e-5


@pytest.mark.parametrize("max_stages", [1, 8])
@pytest.mark.parametrize("name", FLOATS)
def test_a_residual_stream_in_bf16(
    name: str, max_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, weights, batch, right = whole(name)
    use(monkeypatch, has_narrow_residual=True, max_stages=max_stages)
    layout = Layout(threads=1, shares_lanes=max_stages > 1)
    found = computed(OpenVINOEngine(spec, weights, layout), batch)
    # Here the library computes in float32: what goes from stage to stage is rounded, if it is cut.
    is_cut = max_stages > 1 and spec.encoder.num_layers > 1
    assert relative_errors(found, right).max() <= (0.02 if is_cut else 2e-5)


@pytest.mark.parametrize("variant", ["bert", "mistral"])  # in float32 and in 16 bits
def test_a_kept_graph_has_the_parts(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = read_model_files(write_tiny_model(tmp_path / "model", variant))
    weights = load_weights(files)
    batch = make_batch([[5, 6, 7, 8, 9, 10], [8]])
    right = computed(OpenVINOEngine(files.spec, weights, Layout(threads=1)), batch)
    use(monkeypatch, mlp_parts=2, max_stages=8)
    file = WeightsFile(mapped_paths(weights)[0], is_packed_at_once=variant == "bert")
    cache = ModelCache(tmp_path / "cache", "these weights", file)
    layout = Layout(threads=1, shares_lanes=True, is_large=True)
    rows = [computed(OpenVINOEngine(files.spec, weights, layout, cache), batch) for _ in range(2)]
    assert list((tmp_path / "cache").glob("*/model.blob"))
    assert (rows[0] == rows[1]).all()
    assert relative_errors(rows[0], right).max() <= 0.01


@pytest.mark.parametrize(
    ("hidden", "inner", "layers", "apart", "shared"),
    [
        pytest.param(384, 1536, 6, 1, 1, id="MiniLM: its matrices stay in the cache"),
        pytest.param(768, 3072, 12, 3, 6, id="BERT-base"),
        pytest.param(1024, 4096, 24, 4, 8, id="BERT-large"),
        pytest.param(1024, 3072, 28, 3, 6, id="Qwen3-0.6B"),
        pytest.param(1024, 2624, 28, 3, 6, id="ModernBERT-large"),
        pytest.param(4096, 14336, 32, 1, 1, id="Mistral-7B: too much to copy"),
    ],
)
def test_how_many_parts(hidden: int, inner: int, layers: int, apart: int, shared: int) -> None:
    encoder = replace(PLAIN, hidden_size=hidden, intermediate_size=inner, num_layers=layers)
    assert num_mlp_parts(encoder, 2, shares_lanes=False) == apart
    assert num_mlp_parts(encoder, 2, shares_lanes=True) == shared


def test_many_threads_share_larger_parts() -> None:
    encoder = replace(PLAIN, hidden_size=1024, intermediate_size=4096, num_layers=24)
    for threads, parts in [(4, 8), (8, 4), (16, 2), (32, 1), (48, 1)]:
        assert num_mlp_parts(encoder, threads, shares_lanes=True) == parts


def test_experts_are_not_copied() -> None:
    encoder = replace(PLAIN, hidden_size=1024, intermediate_size=4096, num_layers=24)
    experts = Experts(count=8, num_chosen=2, layers=tuple(range(1, 24, 2)))
    assert 2 * copied_bytes(replace(encoder, experts=experts)) == copied_bytes(encoder)


@pytest.mark.skipif(
    "amx_bf16" not in Machine().cpu_features(), reason="this CPU has no AMX, which it is for"
)
@pytest.mark.parametrize("modes", [("cls",), ("last_token",), ("mean",)])
def test_the_plugin_takes_the_residual_stream_in_bf16(modes: Any) -> None:
    pooling = Pooling(modes=modes)
    spec = replace(fake_spec(MAX_TOKENS), encoder=PLAIN, modules=(pooling,), embedding_dim=HIDDEN)
    weights = weights_of(spec, np.random.default_rng(0))
    for shares_lanes in (False, True):
        layout = Layout(threads=1, precision="bf16", shares_lanes=shares_lanes)
        engine = OpenVINOEngine(spec, weights, layout)
        computed(engine, make_batch([[5, 6, 7]]))
        stages = engine._models._compiled[-1]
        nodes = [node for stage in stages for node in stage.get_runtime_model().get_ops()]
        facts = [node.get_rt_info() for node in nodes]
        norms = [
            fact["runtimePrecision"].astype(str)
            for fact in facts
            if fact["layerType"].astype(str) == "MVN"
        ]
        assert len(norms) == 2 * PLAIN.num_layers + 1
        # The first one has the table of tokens before it, which is in float32.
        assert sum(norm == "bf16" for norm in norms) >= len(norms) - 2
        engine.close()


@given(size=st.integers(1, 20_000), num_parts=st.integers(1, 20))
def test_parts_are_the_whole(size: int, num_parts: int) -> None:
    assume(size > COLUMNS_STEP * (num_parts - 1))
    parts = parts_of(size, num_parts)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    assert all(part.start % COLUMNS_STEP == 0 for part in parts)
    lengths = [part.stop - part.start for part in parts]
    assert min(lengths) > 0
    assert max(lengths) - min(lengths) <= 2 * COLUMNS_STEP


@pytest.mark.parametrize(
    ("precision", "features", "is_cut"),
    [("bf16", AMX, True), ("float32", AMX, False), ("bf16", AMX - {"amx_bf16"}, False)],
)
def test_only_where_amx_multiplies(
    precision: Any,
    features: frozenset[str],
    is_cut: bool,
    files: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Machine, "cpu_features", lambda self: features)
    encoder = replace(PLAIN, hidden_size=1024, intermediate_size=4096, num_layers=24)
    layout = Layout(threads=2, precision=precision, library="any")
    options = layout.graph_options(None, encoder)  # type: ignore[arg-type]
    assert options.mlp_parts == (4 if is_cut else 1)
    assert options.has_narrow_residual == is_cut
    assert options.max_stages == 1
    big = replace(files, spec=replace(files.spec, encoder=replace(encoder, windows=(None,) * 24)))
    with_copies = memory_needs(big, ChosenPrecision(name=precision), Config(threads=2))
    monkeypatch.setattr(mlp_sizes, "MAX_COPIED_BYTES", 0)
    without = memory_needs(big, ChosenPrecision(name=precision), Config(threads=2))
    assert copied_bytes(encoder) == 0
    copied = 2 * 1024 * 4096 * 24 if is_cut else 0
    assert with_copies.shared - without.shared == copied


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return read_model_files(write_tiny_model(tmp_path / "model", "bert"))
