"""A destination that is only memory, and an Embedder that computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from embedlib.embedder import Embedder
from embedlib.testing import FakeEngine, FakeStore, fake_embedder


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as made:
        yield made
