"""Workers are objects of this process here."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def models_end_with_their_workers() -> Iterator[None]:
    """A worker ends by its process and closes no model; here later tests would see its threads."""
    yield
    gc.collect()
