"""End to end: emulated FP8 against another engine's float32, and kernels against emulation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.engines.cuda import kernels, loaded_model, reference, short_batches
from embedlib.engines.cuda.buffers import Buffer, Workspace, matrices
from embedlib.engines.cuda.device_weights import WeightLoader
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.executor import Executor, device_batch
from embedlib.engines.cuda.groups import whole
from embedlib.engines.cuda.inputs import fill, layout_of, tile_queries
from embedlib.engines.cuda.lowering import build_plan
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import ModelSpec, Pooling, PoolingMode
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles
from embedlib.testing import make_batch
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide|All-NaN):RuntimeWarning"
)

HAS_GPU = torch.cuda.is_available()


def sized(spec: ModelSpec) -> ModelSpec:
    """Return the spec with sizes that FP8 supports, and only modules of these sizes."""
    encoder = replace(
        spec.encoder, hidden_size=64, head_dim=16, intermediate_size=96, num_positions=200
    )
    return replace(
        spec, encoder=encoder, modules=spec.modules[:1], embedding_dim=64, max_seq_tokens=150
    )


def weights_of(spec: ModelSpec) -> dict[str, NDArray[np.float32]]:
    """Return Gaussian weights scaled as after training: no layer dominates the residual."""
    random = np.random.default_rng(0)
    weights = {}
    for role, shape in encoder_shapes(spec.encoder).items():
        values = random.standard_normal(shape).astype(np.float32)
        if "norm.weight" in role:
            values = 1 + values / 10
        elif len(shape) == 2 and role.startswith("layers."):
            values *= shape[1] ** -0.5 / (1 if role[-8] in "qkv" else 2)
        weights[role] = values
    return weights


def batch_of(spec: ModelSpec, lengths: tuple[int, ...]) -> Batch:
    random = np.random.default_rng(1)
    return make_batch([random.integers(3, spec.encoder.vocab_size, length) for length in lengths])


def run(
    spec: ModelSpec,
    weights: dict[str, NDArray[np.float32]],
    lengths: tuple[int, ...],
    **options: Any,
) -> NDArray[np.float32]:
    engine = CudaEngine(spec, weights, max_batch_tokens=256, **options)
    done = threading.Event()
    pending = engine.submit(batch_of(spec, lengths), done.set)
    assert done.wait(WAIT_SECONDS)
    vectors = pending.result()
    engine.close()
    return vectors


def cosines(found: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    result: NDArray[np.float32] = (found * expected).sum(axis=1) / lengths
    return result


FAMILIES = [
    "bert",
    "modernbert",
    "nomic_bert",
    "nomic_bert-moe",
    "mpnet",
    "deberta-v2",
    "mistral",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "lfm2",
]


@pytest.mark.parametrize("variant", FAMILIES)
def test_fp8_is_near_and_bfloat16_nearer(
    variant: str, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16,))
    spec = sized(read_model_files(tiny_folder(variant)).spec)
    weights = weights_of(spec)
    lengths = (1, 5, 90, 40)
    exact, half, fp8 = (
        run(spec, weights, lengths, precision=precision, device="cpu")
        for precision in ("float32", "bf16", "fp8")
    )
    assert 0.97 < cosines(fp8, exact).min() < 0.99999
    assert cosines(half, exact).min() > 0.9995
    roles = linear_roles(spec.encoder)
    without_down, without_any = (
        run(spec, weights, lengths, precision="fp8", excluded=excluded, device="cpu")
        for excluded in ([role for role in roles if role.endswith("down")], roles)
    )
    np.testing.assert_array_equal(without_any, half)
    assert all((without_down != other).all() for other in (fp8, half))
    assert cosines(without_down, exact).min() > 0.97


@pytest.mark.parametrize(
    "variant", ["bert", "deberta-v2", "modernbert", "mistral", "gemma2", "lfm2"]
)
def test_pooled_rows_without_fp8(
    variant: str, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sized(read_model_files(tiny_folder(variant)).spec)
    modes: tuple[PoolingMode, ...] = ("last_token",) if spec.encoder.is_causal else ("cls",)
    spec = replace(spec, modules=(Pooling(modes=modes),))
    weights = weights_of(spec)
    fp8 = {"precision": "fp8", "device": "cpu"}
    split = {**fp8, "excluded": ["pooled_rows"]}
    half = {"precision": "bf16", "device": "cpu"}
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (32,))
    # With one token each, all rows are pooled; a recording also has rows of no sequence.
    for lengths in ((1, 1, 1), (1,) * 20):
        expected = run(spec, weights, lengths, **half)
        np.testing.assert_array_equal(run(spec, weights, lengths, **split), expected)
        assert (run(spec, weights, lengths, **fp8) != expected).any()
    lengths = (1, 5, 50, 30)
    exact = run(spec, weights, lengths, precision="float32", device="cpu")
    errors = [1 - cosines(run(spec, weights, lengths, **o), exact) for o in (half, split, fp8)]
    assert errors[0].mean() < errors[1].mean() < 0.8 * errors[2].mean()


@pytest.mark.parametrize(
    ("variant", "precision"), [("mistral", "fp8"), ("mpnet", "bf16"), ("deberta-v2", "bf16")]
)
def test_kernels_do_what_the_emulation_does(
    variant: str,
    precision: str,
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16,) if HAS_GPU else (8,))
    spec = sized(read_model_files(tiny_folder(variant)).spec)
    spec = replace(spec, encoder=replace(spec.encoder, num_layers=2, windows=(None, 5)))
    weights = weights_of(spec)
    results = []
    for module in (kernels, reference):

        def chosen(_: object, module: ModuleType = module) -> ModuleType:
            return module

        monkeypatch.setattr(loaded_model, "kernels_for", chosen)
        # The emulation reads numbers back from the GPU, which a recording does not allow.
        device = "cuda" if HAS_GPU and module is kernels else "cpu"
        results.append(run(spec, weights, (1, 5, 3), precision=precision, device=device))
    assert cosines(*results).min() > (0.9995 if precision == "bf16" else 0.998)


@pytest.mark.parametrize("variant", FAMILIES)
def test_every_layer_of_the_kernels_is_that_of_the_emulation(
    variant: str, tiny_folder: Callable[[str], Path], device: torch.device
) -> None:
    """Each layer starts from the emulation's output of the layer before, so errors do not add up.

    FP8 with pooled rows in bfloat16 covers every kind of step, in every family.
    """
    spec = sized(read_model_files(tiny_folder(variant)).spec)
    modes: tuple[PoolingMode, ...] = ("last_token",) if spec.encoder.is_causal else ("cls",)
    spec = replace(spec, modules=(Pooling(modes=modes),))
    plan = build_plan(spec, linear_roles(spec.encoder), splits_pooled=True)
    dtype = torch.bfloat16
    loaded = WeightLoader(spec, weights_of(spec), dtype, device).load(plan)
    batch = batch_of(spec, (1, 19, 5))
    tile = tile_queries(spec.encoder, is_short=True, itemsize=dtype.itemsize)
    layout = layout_of(batch, plan.pooled_modes, tile)
    values = np.empty(layout.size, np.int32)
    fill(values, batch, layout, spec, plan.pooled_modes)
    on_device = device_batch(torch.from_numpy(values).to(device), layout)
    found, expected = (
        Workspace(plan, layout.num_tokens, layout.num_seqs, dtype, device) for _ in range(2)
    )
    for matrix in matrices(plan):  # steps may leave columns as they are
        expected.rows(matrix, layout).values.view(torch.uint8).zero_()
    compared = set()
    for layer in plan.layers:
        for matrix in matrices(plan):
            given, target = (space.rows(matrix, layout) for space in (expected, found))
            target.values.view(torch.uint8).copy_(given.values.view(torch.uint8))
            if target.scales is not None and given.scales is not None:
                target.scales.copy_(given.scales)
        for module, space in ((kernels, found), (reference, expected)):
            Executor(spec, plan, loaded, module).run(whole(layer), on_device, space)
        for matrix in matrices(replace(plan, layers=(layer,))):
            ours, theirs = (as_numbers(space.rows(matrix, layout)) for space in (found, expected))
            off = (ours - theirs).norm() / theirs.norm()
            # The output of a layer is equal up to bfloat16 rounding. Inside it, a number halfway
            # between two e4m3 values may be rounded either way, a difference of one sixteenth.
            assert off < (0.01 if matrix.name in ("residual", "hidden") else 0.05), matrix
            compared.add(matrix)
    assert compared == set(matrices(plan))


def as_numbers(buffer: Buffer) -> torch.Tensor:
    values = buffer.values.double()
    return values if buffer.scales is None else values * buffer.scales
