"""Tests of sources run in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.indexing.sources.reading import Told


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
