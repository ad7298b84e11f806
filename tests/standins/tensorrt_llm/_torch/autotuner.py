"""Which kernel computes a product: measured in the warm-up, and kept in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch

FALLBACK = -1


class AutoTuner:
    """The results of the process, for all models."""

    _instance: ClassVar[AutoTuner | None] = None

    def __init__(self) -> None:
        self.tactics: dict[str, int] = {}
        self.is_tuning = False
        self.missed: set[str] = set()
        """Products that are computed by the slow kernel, since no result is known."""

    @classmethod
    def get(cls) -> AutoTuner:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def choose(self, product: str) -> int:
        if self.is_tuning:
            return self.tactics.setdefault(product, 0)
        if product not in self.tactics:
            self.missed.add(product)
        return self.tactics.get(product, FALLBACK)

    def load(self, path: Path) -> None:
        """Replace all results of the process by those in the file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        # The library does not look, and runs the kernel with this number in another GPU's list.
        made_on = content["metadata"]["device_name"]
        assert made_on == torch.cuda.get_device_name(), f"results of a GPU {made_on}"
        self.tactics = content["rank_0"]

    def save(self, path: Path) -> None:
        metadata = {"device_name": torch.cuda.get_device_name()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"metadata": metadata, "rank_0": self.tactics}))


@contextmanager
def autotune(cache_path: str | None) -> Iterator[None]:
    tuner = AutoTuner.get()
    path = Path(cache_path) if cache_path is not None else None
    if path is not None and os.path.exists(path):
        tuner.load(path)
    tuner.is_tuning = True
    try:
        yield
    finally:
        tuner.is_tuning = False
        if path is not None:
            tuner.save(path)
