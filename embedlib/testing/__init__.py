"""Tools for testing code that uses or extends embedlib: a fake engine, tiny models, checks.

    embedder = fake_embedder()
    vectors = embedder.encode(["a", "b"])
    assert (vectors[0] == fake_vector([97])).all()

Nothing here sleeps or reads the clock: a fake engine holds batches until the test releases them.
"""

from __future__ import annotations

from embedlib.testing.batches import make_batch
from embedlib.testing.check_engine import check_engine
from embedlib.testing.check_replaceable import check_replaceable
from embedlib.testing.check_sink import check_sink
from embedlib.testing.engine import (
    FAKE_DIM,
    FakeEngine,
    byte_tokenizer,
    fake_embedder,
    fake_spec,
    fake_vector,
)
from embedlib.testing.fake_sink import FakeSink, FakeStore
from embedlib.testing.models.table import VARIANTS as TINY_VARIANTS
from embedlib.testing.models.write import write_tiny_model

__all__ = [
    "FAKE_DIM",
    "TINY_VARIANTS",
    "FakeEngine",
    "FakeSink",
    "FakeStore",
    "byte_tokenizer",
    "check_engine",
    "check_replaceable",
    "check_sink",
    "fake_embedder",
    "fake_spec",
    "fake_vector",
    "make_batch",
    "write_tiny_model",
]
