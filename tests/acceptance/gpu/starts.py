"""A start as a user has it: a folder, an Embedder, the first vector."""

from __future__ import annotations

import time
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

OPTIONS: Final = MappingProxyType(
    {
        "cuda": {"engine": "cuda", "precision": "fp8"},
        # The engine measured here needs a GPU to be taken by an Embedder.
        "cpu": {"engine": "openvino", "precision": "float32"},
    }
)


class StartCalls:
    """The calls that the parent can make."""

    def __init__(self, device: str) -> None:
        self._device = device

    def first_vector(self, folder: str, cache_dir: str) -> dict[str, Any]:
        """Load a model, compiling it where the cache has none yet, and encode one text."""
        from embedlib.embedder import Embedder

        begin = time.perf_counter()
        options: dict[str, Any] = {**OPTIONS[self._device], "engine_cache_dir": Path(cache_dir)}
        with Embedder(folder, **options) as embedder:
            embedder.encode("1 2 3", show_progress_bar=False)
            return {"constructor_s": time.perf_counter() - begin}
