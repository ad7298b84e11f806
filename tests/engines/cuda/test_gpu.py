"""What only a GPU can show; the other files of this folder run there as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda import kernels, reference
from embedlib.engines.cuda.buffers import FP8, Buffer
from embedlib.engines.cuda.device_weights import LinearWeight
from embedlib.engines.cuda.engine import CudaEngine, Precision
from embedlib.errors import EngineBuildError
from embedlib.models.files import read_model_files
from embedlib.models.weights import load_weights
from embedlib.testing import TINY_VARIANTS, check_engine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.parametrize("variant", TINY_VARIANTS)
def test_a_text_has_one_vector_recorded_or_not_in_any_batch(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    files = read_model_files(tiny_folder(variant))
    for precision in ("float32", "bf16", "fp16"):
        weights = load_weights(files)
        engine = CudaEngine(files.spec, weights, precision=precision, max_batch_tokens=4096)
        check_engine(engine, files.spec, tolerance=1e-5 if precision == "float32" else 1e-2)


@pytest.mark.parametrize("variant", ["bert", "mpnet", "mistral", "qwen2", "nomic_bert"])
def test_fp8_keeps_its_promises(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder(variant))
    engine = CudaEngine(files.spec, load_weights(files), precision="fp8", max_batch_tokens=4096)
    check_engine(engine, files.spec, tolerance=1e-2)


@pytest.mark.parametrize("variant", TINY_VARIANTS)
def test_the_gpu_computes_what_the_emulation_computes(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    files = read_model_files(tiny_folder(variant))
    random = np.random.default_rng(0)
    longest = files.spec.max_seq_tokens
    lengths = [1, 2, min(17, longest), longest] * 20  # beyond the largest recording
    batch = Batch(
        lane=Lane.BULK,
        token_ids=random.integers(0, files.spec.encoder.vocab_size, sum(lengths)).astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        num_prompt_tokens=np.zeros(len(lengths), np.int32),
        num_first_tokens=np.array(lengths, np.int32),
    )
    limits: tuple[tuple[Precision, float], ...] = (("float32", 1e-4), ("bf16", 0.05))
    for precision, limit in limits:
        results = []
        for device in ("cuda", "cpu"):
            engine = CudaEngine(files.spec, load_weights(files), precision=precision, device=device)
            pending = engine.submit(batch, lambda: None)
            engine.close()
            results.append(pending.result())
        found, expected = results
        errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert errors.max() <= limit


@pytest.mark.parametrize(("rows", "columns"), [(16, 4096), (300, 14336)])
def test_the_short_sum_of_fp8_is_long_enough(rows: int, columns: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    buffers = []
    for size in (rows, 4096):
        values = torch.randn(size, columns, device="cuda", generator=generator)
        codes = torch.empty(size, columns, device="cuda", dtype=FP8)
        buffers.append(Buffer(codes, torch.empty(size, 1, device="cuda")))
        reference.quantize(values, buffers[-1])
    source, weight = buffers
    assert weight.scales is not None
    matrix = LinearWeight(weight.values, weight.scales.T, None)
    outs = []
    for module in (kernels, reference):
        outs.append(Buffer(torch.empty(rows, 4096, device="cuda", dtype=torch.bfloat16)))
        module.linear(source, matrix, outs[-1])
    found, expected = (out.values.float() for out in outs)
    assert (found - expected).norm() / expected.norm() < 4e-3  # rounding to bfloat16 is 2e-3


def test_a_model_that_does_not_fit(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("bert"))
    try:
        with pytest.raises(EngineBuildError, match="do not fit into"):
            CudaEngine(
                files.spec,
                load_weights(files),
                precision="float32",
                max_batch_tokens=1 << 24,
                memory_fraction=0.001,
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
