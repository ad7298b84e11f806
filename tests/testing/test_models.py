from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.weight_files import weights_digest
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.write import splitmix64, uniform, write_tiny_model

GOLDENS = Path(__file__).parents[1] / "goldens"


def test_splitmix64_gives_the_published_sequence() -> None:
    # Source: the first outputs of https://prng.di.unimi.it/splitmix64.c with the state 0.
    assert splitmix64(0, 3).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_uniform_is_spread_evenly_and_depends_on_the_seed() -> None:
    values = uniform("seed", (100, 100))
    assert values.dtype == np.float32
    assert values.min() >= -1
    assert values.max() < 1
    assert abs(float(values.mean())) < 0.02
    assert float(values.var()) == pytest.approx(1 / 3, abs=0.01)
    assert not np.array_equal(values, uniform("other seed", (100, 100)))


def test_the_same_variant_is_the_same_model(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        write_tiny_model(folder, "mistral")
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_stored_outputs_were_made_with_these_weights(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    # The table of tensor names both writes and reads a tiny model, so two swapped names in it would
    # not change the vectors. These digests are of weights whose names transformers has read.
    stored = json.loads((GOLDENS / "weights.json").read_text())
    assert weights_digest(read_model_files(tiny_folder(variant)), FileHashes()) == stored[variant]


def test_every_variant_has_stored_outputs_and_every_output_a_variant() -> None:
    stored = {path.stem for path in GOLDENS.glob("*.npz")} - {"adapters", "rope", "buckets"}
    assert stored == set(VARIANTS)
