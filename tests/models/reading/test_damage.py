"""Every kind of damage to a folder: its files are read, or refused in one line."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.config import Config
from embedlib.errors import EmbedlibError
from embedlib.models.opening import OpenedModel
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.models.weights.load import load_weights
from tests.campaign.damage import DAMAGES, damage


@pytest.mark.parametrize("variant", ["bert-cls-dense", "mistral", "bert-reranker"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_folder(
    kind: str, variant: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    for seed in range(3):
        folder = shutil.copytree(tiny_folder(variant), tmp_path / str(seed))
        report = DAMAGES[kind](random.Random(seed), folder)
        try:
            opened = OpenedModel.find(folder, Config())
            files = opened.read_files(with_head=opened.has_head)
            weights = load_weights(files)
            assert all(weights[role].ndim for role in weights)
            fingerprint(files, None, {})
        except EmbedlibError as error:
            message = str(error)
            assert len(message.splitlines()) == 1, report
            assert len(message) < 2000, report


def test_a_damage_is_the_same_again_and_reported_on_one_line(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    for seed in range(60):
        reports = {
            damage(
                random.Random(seed),
                shutil.copytree(tiny_folder("bert"), tmp_path / f"{seed}-{number}"),
            )
            for number in range(2)
        }
        [report] = reports
        assert len(report.splitlines()) == 1
        assert len(report) < 400
