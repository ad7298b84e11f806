"""An Embedder on two fake engines: one of vectors, one of the vectors of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.session.model import ModelAroundEngine
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec, fake_vector


def token_vectors(text: str) -> NDArray[np.float32]:
    ids = text.encode()
    return np.array([fake_vector(ids[: end + 1]) for end in range(len(ids))])


@dataclass(frozen=True, kw_only=True)
class ModelWithTwoEngines(ModelAroundEngine):
    lower: Callable[[], Engine]

    def lower_tokens(self) -> Engine:
        return self.lower()


@contextmanager
def two_engines(
    lower: Callable[[], Engine], spec: Any = None, **options: Any
) -> Iterator[tuple[Embedder, FakeEngine]]:
    """An Embedder whose engine for tokens is made by `lower`, and its first engine."""
    first = FakeEngine()
    model = ModelWithTwoEngines(
        spec=spec or fake_spec(),
        tokenizer=byte_tokenizer(),
        engine=first,
        files=cast(Any, SimpleNamespace(queries=None)),  # only their presence counts
        lower=lower,
    )
    embedder = Embedder.__new__(Embedder)
    embedder._hold("fake", model, Config(**options))
    try:
        yield embedder, first
    finally:
        embedder.close()
