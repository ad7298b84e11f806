"""Tests that need a GPU; the other files of this folder also run on one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.engines.base import Lane
from embedlib.engines.cuda import kernels, prefixes, reference
from embedlib.engines.cuda.buffers import FP8, Buffer
from embedlib.engines.cuda.device_weights import LinearWeight
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.kind import EMULATED_BUCKETS
from embedlib.engines.cuda.loaded_model import CudaPrecision
from embedlib.errors import EngineBuildError
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import TINY_VARIANTS, check_engine, make_batch
from tests.tiny_models.groups import OPENVINO_ALONE
from tests.waiting import WAIT_SECONDS

TOLERANCES: dict[CudaPrecision, float] = {"float32": 5e-5, "bf16": 0.1, "fp16": 0.02, "fp8": 0.4}
"""Maximum difference of an element. Elements are around 1 in size: not all tiny models normalize.
Products of different sizes are summed in a different order, so some numbers are rounded the other
way. Emulated, with noise of 1e-5 to 1e-4 of a row's size added to every product, the difference is
up to 0.02 in bf16 and 0.11 in FP8."""

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.parametrize("variant", sorted(TINY_VARIANTS.keys() - OPENVINO_ALONE))
def test_a_text_has_one_vector_recorded_or_not_in_any_batch(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    files = read_model_files(tiny_folder(variant))
    precisions: tuple[CudaPrecision, ...] = ("float32", "bf16", "fp16")
    for precision in precisions:
        weights = load_weights(files)
        engine = CudaEngine(files.spec, weights, precision=precision, max_batch_tokens=4096)
        check_engine(engine, files.spec, tolerance=TOLERANCES[precision])


@pytest.mark.parametrize("variant", ["bert", "mpnet", "mistral", "qwen2", "nomic_bert"])
def test_fp8_keeps_its_promises(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder(variant))
    engine = CudaEngine(files.spec, load_weights(files), precision="fp8", max_batch_tokens=4096)
    check_engine(engine, files.spec, tolerance=TOLERANCES["fp8"])


@pytest.mark.parametrize("variant", sorted(TINY_VARIANTS.keys() - OPENVINO_ALONE))
def test_the_gpu_computes_what_the_emulation_computes(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    files = read_model_files(tiny_folder(variant))
    random = np.random.default_rng(0)
    longest = files.spec.max_seq_tokens
    lengths = [1, 2, min(17, longest), longest] * 20  # more tokens than bulk may have recorded
    texts = [random.integers(0, files.spec.encoder.vocab_size, length) for length in lengths]
    limits: tuple[tuple[CudaPrecision, float], ...] = (("float32", 1e-4), ("bf16", 0.05))
    for precision, limit in limits:
        results = []
        for device, sizes in (("cuda", None), ("cpu", EMULATED_BUCKETS)):
            engine = CudaEngine(
                files.spec,
                load_weights(files),
                precision=precision,
                device=device,
                bucket_tokens=sizes,
            )
            # Recorded, and launched in groups.
            pending = [engine.submit(make_batch(texts, lane), lambda: None) for lane in Lane]
            engine.close()
            results.append([batch.result() for batch in pending])
        both, (expected, _) = results
        for found in both:
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
    # Emulated, with partial sums truncated to 13 bits every 32 products, as on Hopper: 2.4e-3 and
    # 3.7e-3, of which rounding to bfloat16 is 2e-3. FP8 itself changes a product by 4e-2.
    assert (found - expected).norm() / expected.norm() < 8e-3


def test_pooled_rows_without_fp8(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("mistral"))
    options: dict[str, Any] = {"precision": "fp8", "excluded": ["pooled_rows"]}
    engine = CudaEngine(files.spec, load_weights(files), max_batch_tokens=4096, **options)
    check_engine(engine, files.spec, tolerance=TOLERANCES["fp8"])


@pytest.mark.parametrize("num_seqs", [1, 200])  # a recording, a long batch
def test_a_kept_prefix_changes_no_vector(
    num_seqs: int, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 4)
    monkeypatch.setattr(prefixes, "MIN_VOTES", 1)
    files = read_model_files(tiny_folder("mistral"))
    length = 24
    ids = np.tile(np.arange(5, 5 + length, dtype=np.int32), num_seqs)
    ids[20::length] = np.arange(num_seqs) % 50
    batch = make_batch(np.split(ids, num_seqs), Lane.QUERY)
    results = []
    for keeps in (False, True):
        engine = CudaEngine(
            files.spec, load_weights(files), precision="float32", keeps_prefix=keeps
        )
        has_kept = threading.Event()
        keep = engine._prefixes.keep

        def tell(
            ids: NDArray[np.int32],
            keep: Callable[[NDArray[np.int32]], None] = keep,
            has_kept: threading.Event = has_kept,
        ) -> None:
            keep(ids)
            has_kept.set()

        monkeypatch.setattr(engine._prefixes, "keep", tell)
        engine.submit(batch, lambda: None)
        assert not keeps or has_kept.wait(WAIT_SECONDS)
        pending = engine.submit(batch, lambda: None)
        engine.close()
        results.append(pending.result())
    np.testing.assert_allclose(*results, atol=1e-4)


def test_vectors_on_their_way_are_not_written_over(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("mistral"))
    engine = CudaEngine(files.spec, load_weights(files), precision="float32")
    batches = []
    for number in range(200):  # recordings and long batches alternate; no result is read in between
        num_seqs = 3 if number % 2 else 200
        batches.append(make_batch([[number % 50] * 3] * num_seqs))
    pending = [engine.submit(batch, lambda: None) for batch in batches]
    engine.close()
    alone = CudaEngine(files.spec, load_weights(files), precision="float32", device="cpu")
    expected = [alone.submit(batch, lambda: None) for batch in batches]
    alone.close()
    for found, right in zip(pending, expected, strict=True):
        np.testing.assert_allclose(found.result(), right.result(), atol=1e-3)


def test_memory_is_flat(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("mistral"))
    engine = CudaEngine(files.spec, load_weights(files), precision="bf16", max_batch_tokens=4096)
    random = np.random.default_rng(0)
    reserved = []
    for number in range(400):
        # The largest first, so that torch has allocated what copies of ids and vectors need.
        most = 512 if number < 20 else random.integers(1, 512)
        lengths = (
            np.full(most, 8, np.int32) if number < 20 else random.integers(1, 9, most, np.int32)
        )
        batch = make_batch([random.integers(5, 50, length) for length in lengths])
        done = threading.Event()
        pending = engine.submit(batch, done.set)
        assert done.wait(WAIT_SECONDS)
        pending.result()
        reserved.append(torch.cuda.memory_reserved())
    engine.close()
    assert reserved[-1] == reserved[19]


def streams_of(engine: CudaEngine) -> set[int]:
    device: Any = engine._model.device
    return {stream.cuda_stream for stream in device._streams}


def test_engines_are_made_and_closed_beside_one_that_computes(
    tiny_folder: Callable[[str], Path],
) -> None:
    """Each records its short batches and waits for the whole GPU while others do the same."""
    files = read_model_files(tiny_folder("mistral"))
    options: dict[str, Any] = {"precision": "bf16", "max_batch_tokens": 1024}
    engine = CudaEngine(files.spec, load_weights(files), **options)

    streams = streams_of(engine)

    def make_some() -> None:
        for _ in range(6):  # with their three streams each, more than torch has in a pool
            other = CudaEngine(files.spec, load_weights(files), **options)
            assert not streams & streams_of(other)
            check_engine(other, files.spec, tolerance=TOLERANCES["bf16"])

    def run(num_seqs: int) -> NDArray[np.float32]:
        batch = make_batch([[7] * 8] * num_seqs)
        done = threading.Event()
        pending = engine.submit(batch, done.set)
        assert done.wait(WAIT_SECONDS)
        return pending.result()

    expected = {num_seqs: run(num_seqs) for num_seqs in (1, 100)}  # recorded, and launched
    with ThreadPoolExecutor(2) as pool:
        makers = [pool.submit(make_some) for _ in range(2)]
        while not all(maker.done() for maker in makers):
            for num_seqs, vectors in expected.items():
                np.testing.assert_allclose(run(num_seqs), vectors, atol=TOLERANCES["bf16"])
        for maker in makers:
            maker.result()
    engine.close()


def test_a_model_that_does_not_fit(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("bert"))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    try:
        with pytest.raises(EngineBuildError, match="do not fit into") as kept:
            CudaEngine(
                files.spec,
                load_weights(files),
                precision="float32",
                max_batch_tokens=1 << 24,
                memory_fraction=0.001,
            )
        assert torch.cuda.memory_reserved() <= before, str(kept.value)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
