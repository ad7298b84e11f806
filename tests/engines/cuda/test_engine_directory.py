from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.engines.cuda import short_batches
from embedlib.engines.cuda.device_weights import Fp8Matrix, quantize_fp8
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.engine_directory import open_weights
from embedlib.errors import ModelWeightsError
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.fp8 import quantize_rows
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.testing import make_batch
from embedlib.testing.models.table import SCORING_VARIANTS
from tests.waiting import WAIT_SECONDS


@pytest.fixture(autouse=True)
def _buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16,))


def vectors(engine: CudaEngine) -> NDArray[np.float32]:
    batch = make_batch([[5, 6, 7, 8], [9, 4]])
    done = threading.Event()
    pending = engine.submit(batch, done.set)
    assert done.wait(WAIT_SECONDS)
    result = pending.result()
    engine.close()
    return result


@pytest.mark.parametrize(
    ("variant", "precision", "excluded"),
    [
        ("mistral", "fp8", ()),  # three shards, bfloat16
        ("mistral", "fp8", ("layers.1.down", "layers.0.o")),
        ("nomic_bert", "fp8", ()),  # q, k and v in one tensor
        ("bert-cls-dense", "fp8", ()),  # modules with weights
        ("deberta-v2", "fp8", ()),  # whose layers project the vectors of distances too
        ("nomic_bert-moe", "bf16", ()),
        ("lfm2", "bf16", ()),  # convolutions, of three axes
        ("gemma2", "bf16", ()),  # norm weights stored minus one
    ],
)
def test_an_engine_directory_is_its_model_rounded_at_load(
    variant: str,
    precision: str,
    excluded: tuple[str, ...],
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    files = read_model_files(tiny_folder(variant))
    folder = compile_model(files, precision, excluded, Config(), out=tmp_path / "out")
    compiled = read_model_files(folder, is_compiled=True)
    options = {"precision": precision, "excluded": excluded, "device": "cpu"}
    expected = vectors(CudaEngine(files.spec, load_weights(files), **options))
    for source in (files, compiled):
        weights = open_weights(source, folder)
        assert set(weights) == set(load_weights(files))
        found = vectors(CudaEngine(files.spec, weights, **options))
        # The model's own norms and modules are float32, those of the directory bfloat16.
        assert np.linalg.norm(found - expected) <= 0.2 * np.linalg.norm(expected)
    stored = {role for role, values in weights.items() if isinstance(values, Fp8Matrix)}
    layers = linear_roles(files.spec.encoder) if precision == "fp8" else ()
    assert stored == {f"{role}.weight" for role in layers if role not in excluded}
    for role in stored:
        codes, scales = quantize_rows(np.ascontiguousarray(load_weights(files)[role]))
        matrix = weights[role]
        assert isinstance(matrix, Fp8Matrix)
        np.testing.assert_array_equal(matrix.codes.view(torch.uint8), codes)
        np.testing.assert_array_equal(matrix.scales, scales)


def test_every_role_has_its_own_numbers(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    for variant in ("nomic_bert", "gemma2"):
        files = read_model_files(tiny_folder(variant))
        folder = compile_model(files, "bf16", (), Config(), out=tmp_path / variant)
        weights, expected = open_weights(files, folder), load_weights(files)
        for role, values in weights.items():
            assert isinstance(values, torch.Tensor)
            np.testing.assert_allclose(values.float().numpy(), expected[role], rtol=0.01, atol=0.01)


def test_a_head_is_read_too(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    for variant in ("bert-reranker", "qwen3-answers", "qwen2-answers", "llama-logit-score"):
        template = SCORING_VARIANTS[variant].template
        files = read_model_files(tiny_folder(variant), with_head=True, template=template)
        folder = compile_model(files, "bf16", (), Config(), out=tmp_path / variant)
        weights, expected = open_weights(files, folder), load_weights(files)
        roles = [role for role in expected if role.startswith("modules.")]
        assert roles
        for role in roles:
            np.testing.assert_allclose(weights[role].float(), expected[role], rtol=0.01, atol=0.02)


def test_what_does_not_fit_is_told(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    files = read_model_files(tiny_folder("bert-cls-dense"))
    folder = compile_model(files, "fp8", (), Config(), out=tmp_path / "out")
    wider = replace(files.spec.encoder, vocab_size=7)
    wrong = replace(files, spec=replace(files.spec, encoder=wider))
    with pytest.raises(ModelWeightsError, match=r"word_embeddings.weight is BF16 \[\d+, 32\]; exp"):
        open_weights(wrong, folder)
    (folder / files.module_dirs[1].name / "model.safetensors").unlink()
    with pytest.raises(ModelWeightsError, match=r"tensor linear.weight \[\d+, 32\] is missing"):
        open_weights(files, folder)


def test_fp8_does_not_pass_for_more(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    files = read_model_files(tiny_folder("mistral"))
    folder = compile_model(files, "fp8", (), Config(), out=tmp_path / "out")
    weights = open_weights(files, folder)
    for precision, excluded in (("bf16", ()), ("fp8", ("layers.1.o",)), ("fp8", ("pooled_rows",))):
        with pytest.raises(
            ModelWeightsError, match=r"layers\.\d\.[qo] is needed in torch.bfloat16"
        ):
            CudaEngine(files.spec, weights, precision=precision, excluded=excluded, device="cpu")


def test_weights_are_rounded_as_compile_rounds_them() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((6, 300)).astype(np.float32)
    weight[1] = 0
    weight[2] *= 1e-36  # its scale would be subnormal
    weight[3, 0] = 1e4
    weight[4] = np.linspace(-448, 448, 300)  # the ties
    codes, scales = quantize_rows(weight)
    found = quantize_fp8(torch.from_numpy(weight))
    np.testing.assert_array_equal(found.codes.view(torch.uint8).numpy(), codes)
    np.testing.assert_array_equal(found.scales.numpy(), scales)
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(found.codes.float().numpy(), numbers)
