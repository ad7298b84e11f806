"""NaN in the weights: no operator of the plugin may make a number of it that looks like any other.

Its ReLU makes 0 of NaN, and its maximum passes NaN over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import matrices
from embedlib.engines.openvino.graphs.matrices import check_finite
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.errors import ModelWeightsError
from embedlib.models.folders import read_folder
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.spec import Pooling
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.mapped import StoredBits
from embedlib.testing import make_batch, write_tiny_model
from embedlib.testing.models.table import SCORING_VARIANTS
from tests.tiny_models.sparse import SPARSE_VARIANTS, write_sparse_model

BATCH = make_batch([[2, 9, 8, 3], [2, 7, 3]])


def write(folder: Path, name: str) -> ModelFiles:
    if name in SPARSE_VARIANTS:
        return read_folder(write_sparse_model(folder, name))
    return read_model_files(write_tiny_model(folder, name), with_head=name in SCORING_VARIANTS)


def computed(files: ModelFiles, weights: Mapping[str, Any]) -> NDArray[np.float32]:
    engine = OpenVINOEngine(files.spec, weights, Layout(threads=1))
    try:
        return np.asarray(engine.compute(BATCH))
    finally:
        engine.close()


def with_nan(files: ModelFiles, role: str) -> dict[str, NDArray[Any]]:
    weights = {name: np.array(array) for name, array in load_weights(files).items()}
    weights[role].reshape(-1)[-1] = np.nan
    return weights


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("bert-bare", "layers.1.up.weight"),
        ("bert-bare", "layers.1.up.bias"),
        ("t5", "layers.1.up.weight"),
        ("bert-splade", "modules.2.weight"),
        ("bert-splade", "modules.2.bias"),
        ("roberta-splade", "modules.2.bias"),
    ],
)
def test_weights_of_a_relu_are_refused(name: str, role: str, tmp_path: Path) -> None:
    files = write(tmp_path, name)
    with pytest.raises(ModelWeightsError, match=rf"^{role} has a number that is not finite"):
        computed(files, with_nan(files, role))


@pytest.mark.parametrize(
    "name", ["bert-bare", "t5", "distilbert-classifier", "bert-splade", "roberta-splade"]
)
def test_a_vector_that_is_not_finite_is_seen(name: str, tmp_path: Path) -> None:
    files = write(tmp_path, name)
    weights = with_nan(files, "tokens")
    weights["tokens"][7] = np.nan
    of_first, of_second = computed(files, weights)
    assert np.isfinite(of_first).all()
    assert np.isnan(of_second).all()


def test_a_maximum_of_tokens_keeps_nan(tmp_path: Path) -> None:
    files = write(tmp_path, "bert")
    spec = replace(files.spec, modules=(Pooling(modes=("max",)),))
    weights = with_nan(files, "tokens")
    weights["tokens"][7] = np.nan
    of_first, of_second = computed(replace(files, spec=spec), weights)
    assert np.isfinite(of_first).all()
    assert np.isnan(of_second).all()


@pytest.mark.parametrize(
    ("dtype", "greatest", "infinity", "nan"),
    [("BF16", 0x7F7F, 0xFF80, 0x7F81), ("F16", 0x7BFF, 0xFC00, 0x7E00)],
)
def test_bits_that_are_not_finite(
    dtype: Literal["BF16", "F16"],
    greatest: int,
    infinity: int,
    nan: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bits = np.array([[0, 1], [greatest, greatest]], np.uint16)
    monkeypatch.setattr(matrices, "stored_bits", lambda *_: StoredBits(dtype, bits))
    check_finite({}, "up.weight")
    for odd in (infinity, nan):
        bits[1, 1] = odd
        check_finite({}, "up.weight", slice(1))
        with pytest.raises(ModelWeightsError, match=r"^up\.weight has a number"):
            check_finite({}, "up.weight")


def test_a_scale_that_is_not_finite() -> None:
    weights = {
        "up.weight": np.ones((2, 4), np.int8),
        "up.weight_scale": np.array([[1], [np.nan]], np.float32),
    }
    check_finite(weights, "up.weight", slice(1))
    with pytest.raises(ModelWeightsError, match=r"^up\.weight has a number"):
        check_finite(weights, "up.weight")
