"""Relative positions: the rows that batches need, the products, and attention that picks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.engines.base import Engine, Lane
from embedlib.engines.cuda import kernels, reference, short_batches
from embedlib.engines.cuda.distances import (
    ALIGNED_ROWS,
    ByDistance,
    Distances,
    rows_by_distance,
)
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.inputs import tile_table
from embedlib.engines.cuda.reference import AttentionShape
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.encoder_parts import RelativePositions
from embedlib.models.position_bias import signed_buckets
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import ModelSpec, Pooling, PoolingMode
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.testing import make_batch
from tests.comparing import relative_errors
from tests.engines.cuda.seeded import numbers
from tests.tiny_encoders import computed

# In the interpreter, numpy warns about operations that a GPU computes silently.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide|All-NaN):RuntimeWarning"
)

HEADS, DIM = 2, 16
SHAPE = AttentionShape(HEADS, HEADS, DIM, (3 * DIM) ** -0.5, None, False)
NEAR = RelativePositions(num_buckets=16, max_distance=200)
"""Up to 8 tokens away each distance has a row of its own."""


def distances_of(relative: RelativePositions, num_positions: int) -> Distances:
    rows = rows_by_distance(relative, num_positions)
    vectors = torch.zeros(1, 2 * relative.num_buckets, 1)
    firsts = rows[len(rows) // 2 :]
    return Distances(torch.from_numpy(rows), firsts, {"layers.0.k": vectors})


@pytest.mark.parametrize(("num_buckets", "num_positions"), [(256, 512), (16, 200), (4, 9)])
def test_the_rows_of_short_texts_are_few_and_all_that_they_have(
    num_buckets: int, num_positions: int
) -> None:
    relative = RelativePositions(num_buckets=num_buckets, max_distance=num_positions)
    distances = distances_of(relative, num_positions)
    for longest in range(1, num_positions + 1):
        needed = distances.needed(longest)
        rows = signed_buckets(relative, np.arange(1 - longest, longest))
        assert needed.start <= rows.min() < needed.start + ALIGNED_ROWS
        assert needed.stop - ALIGNED_ROWS <= rows.max() < needed.stop <= 2 * num_buckets
        assert needed.start % ALIGNED_ROWS == 0
    assert distances.needed(10 * num_positions) == distances.needed(num_positions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_the_rows_that_are_needed(dtype: torch.dtype, device: torch.device) -> None:
    columns = numbers(device, 5, 3 * HEADS * DIM).to(dtype)
    vectors = numbers(device, HEADS, 32, DIM).to(dtype)
    heads, needed = columns[:, HEADS * DIM : 2 * HEADS * DIM], slice(8, 24)
    expected = torch.einsum(
        "thd,hrd->thr", heads.double().unflatten(1, (HEADS, DIM)), vectors.double()
    )
    for module in (kernels, reference):
        out = torch.full((5, HEADS * 32), torch.nan, device=device).to(dtype)
        module.multiply_distances(heads, vectors, needed, out)
        found = out.double().unflatten(1, (HEADS, 32))
        step = 1e-5 if dtype == torch.float32 else 2**-7
        torch.testing.assert_close(
            found[:, :, needed], expected[:, :, needed], rtol=step, atol=step
        )
        assert found[:, :, :8].isnan().all()
        assert found[:, :, 24:].isnan().all()


def pair_by_pair(
    qkv: torch.Tensor, by_query: torch.Tensor, by_key: torch.Tensor, lengths: list[int]
) -> NDArray[np.float64]:
    """Return attention as the paper has it: every pair of tokens with its own vector's products."""
    rows, out = rows_by_distance(NEAR, 200), []
    query, key, value, of_query, of_key = (
        part.double().cpu().numpy().reshape(len(qkv), HEADS, -1)
        for part in (*qkv.split(HEADS * DIM, dim=1), by_query, by_key)
    )
    for start, end in pairwise(np.cumsum([0, *lengths])):
        for i in range(start, end):
            row = rows[np.arange(start, end) - i + 199]
            for h in range(HEADS):
                scores = key[start:end, h] @ query[i, h]
                scores += of_query[i, h, row] + of_key[np.arange(start, end), h, row]
                weights = np.exp(scores * SHAPE.scale - (scores * SHAPE.scale).max())
                out.append(weights @ value[start:end, h] / weights.sum())
    return np.reshape(out, (len(qkv), HEADS * DIM))


@pytest.mark.parametrize(
    ("module", "dtype", "tile_queries"),
    [
        (reference, torch.float32, 64),
        (kernels, torch.float32, 16),
        (kernels, torch.bfloat16, 64),
        (kernels, torch.bfloat16, 128),
    ],
)
def test_attention_picks_the_products_of_each_pair(
    module: Any, dtype: torch.dtype, tile_queries: int, device: torch.device
) -> None:
    lengths = [3, 139, 1, 64]
    num_tokens, num_rows = sum(lengths), 2 * NEAR.num_buckets
    qkv = numbers(device, num_tokens, 3 * HEADS * DIM).to(dtype)
    by_query, by_key = (
        3 * numbers(device, num_tokens + 1, HEADS * num_rows)[part].to(dtype)
        for part in (slice(1, None), slice(-1))
    )
    expected = torch.from_numpy(pair_by_pair(qkv, by_query, by_key, lengths)).to(device)
    rows = torch.from_numpy(rows_by_distance(NEAR, 200)).to(device)
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    table = torch.from_numpy(tile_table(ends, tile_queries).astype(np.int32)).to(device)
    out = torch.full((num_tokens, HEADS * DIM), torch.nan, device=device).to(dtype)
    products = ByDistance(rows, by_query, by_key)
    module.attend(qkv, qkv, table, tile_queries, SHAPE, None, None, out, by_distance=products)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    # Queries of single tokens, in matrices of their own.
    places = [2, 3, 141, 205]
    tiles = [[0, 1, 2, 0, 3], [1, 1, 0, 3, 139], [2, 1, 138, 3, 139], [0] * 5, [3, 1, 62, 143, 64]]
    query = qkv[places, : HEADS * DIM].contiguous()
    products = ByDistance(rows, by_query[places].contiguous(), by_key)
    few = torch.full((4, HEADS * DIM), torch.nan, device=device).to(dtype)
    table = torch.tensor(tiles, dtype=torch.int32, device=device)
    module.attend(query, qkv, table, 1, SHAPE, None, None, few, by_distance=products)
    torch.testing.assert_close(few.double(), expected[places], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("module", [kernels, reference])
def test_no_other_product_is_read(module: Any, device: torch.device) -> None:
    """Rows that no pair of a text has, and those of other texts, may hold anything."""
    lengths, own = [20, 6, 18], slice(20, 26)
    qkv = numbers(device, 44, 3 * HEADS * DIM)
    products = torch.full((2, 44, HEADS, 32), torch.nan, device=device)
    rows = rows_by_distance(NEAR, 200)
    # Of this text the distances are at most 5.
    products[:, own, :, rows[199 + 5] : rows[199 - 5] + 1] = 1.0
    by_query, by_key = products.flatten(2)
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    table = torch.from_numpy(tile_table(ends, 16).astype(np.int32)).to(device)
    out = torch.zeros(44, HEADS * DIM, device=device)
    by_distance = ByDistance(torch.from_numpy(rows).to(device), by_query, by_key)
    module.attend(qkv, qkv, table, 16, SHAPE, None, None, out, by_distance=by_distance)
    assert out[own].isfinite().all()
    assert out[:20].isnan().any()


def spec_of(files_spec: ModelSpec, mode: PoolingMode) -> ModelSpec:
    """Return a model with DeBERTa-v3's own numbers of vectors and positions."""
    relative = RelativePositions(num_buckets=256, max_distance=512)
    encoder = replace(files_spec.encoder, num_positions=512, relative_positions=relative)
    return replace(
        files_spec, encoder=encoder, max_seq_tokens=512, modules=(Pooling(modes=(mode,)),)
    )


def vectors(engine: Engine, ids: list[NDArray[np.int32]], lane: Lane) -> NDArray[np.float32]:
    return computed(engine, make_batch(ids, lane))


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_vectors_are_the_reference_engines_where_distances_share_rows(
    mode: PoolingMode, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose vectors are those of transformers at these lengths: tests/frameworks has it."""
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16, 140))
    spec = spec_of(read_model_files(tiny_folder("deberta-v2")).spec, mode)
    dice = np.random.default_rng(0)
    weights = {
        role: dice.standard_normal(shape, np.float32)
        for role, shape in encoder_shapes(spec.encoder).items()
    }
    exact = OpenVINOEngine(spec, weights, Layout(threads=1))
    engine = CudaEngine(spec, weights, precision="float32", device="cpu", max_batch_tokens=1024)
    lengths = [[1], [127, 2], [128], [129], [130], [512, 257], [511, 1, 256, 255, 1]]
    for lane, batch in zip([Lane.QUERY, Lane.BULK] * 4, lengths, strict=False):
        ids = [dice.integers(5, spec.encoder.vocab_size, length, np.int32) for length in batch]
        errors = relative_errors(vectors(engine, ids, lane), vectors(exact, ids, lane))
        assert errors.max() <= 2e-5
    engine.close()
    exact.close()


def test_the_vectors_of_distances_are_made_with_the_rounded_layers(
    tiny_folder: Callable[[str], Path],
) -> None:
    """So that an engine directory, which has these alone, gives the vectors that were measured."""
    spec = read_model_files(tiny_folder("deberta-v2")).spec
    dice = np.random.default_rng(0)
    weights = {
        role: dice.standard_normal(shape, np.float32)
        for role, shape in encoder_shapes(spec.encoder).items()
    }
    found = []
    for excluded in ((), ("layers.0.q", "layers.0.k", "layers.0.v")):
        engine = CudaEngine(spec, weights, precision="fp8", excluded=excluded, device="cpu")
        distances = engine._model.executor.weights.distances
        assert distances is not None
        found.append(distances.vectors)
        engine.close()
    rounded, plain = found
    for role in ("layers.0.q", "layers.0.k"):
        off = (rounded[role] - plain[role]).float().norm() / plain[role].float().norm()
        assert 0.01 < off < 0.05
    assert torch.equal(rounded["layers.1.q"], plain["layers.1.q"])
