"""The tests that LangChain asks every Embeddings class to pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_embedlib import EmbedlibEmbeddings

# These two are coroutines without a marker and may not be overridden.
for coroutine in ("test_aembed_query", "test_aembed_documents"):
    pytest.mark.asyncio(getattr(EmbeddingsIntegrationTests, coroutine))


class Tiny:
    """What both suites test: a tiny model, loaded as a user loads one."""

    embeddings_class = EmbedlibEmbeddings

    @pytest.fixture(autouse=True)
    def _write_model(self, tiny_folder: Callable[[str], Path], engine_cache: Path) -> None:
        self.folder = tiny_folder("bert-prompt")
        self.cache_dir = engine_cache

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": self.folder, "model_kwargs": {"engine_cache_dir": self.cache_dir}}


class TestUnit(Tiny, EmbeddingsUnitTests):
    pass


class TestIntegration(Tiny, EmbeddingsIntegrationTests):
    pass
