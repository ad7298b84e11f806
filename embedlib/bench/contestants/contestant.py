"""What every contestant is: a library that is loaded and called in a process of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from embedlib.measuring.child import Memory, memory_of
from embedlib.vectors.arrays import Vectors


class Contestant(ABC):
    """A library that makes vectors of texts.

    As it is here, it keeps no cache, counts nothing, and multiplies in float32 in this process.
    """

    library: ClassVar[str | None] = None
    """The module that the constructor is timed without; None: there is none."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide the speed."""

    def __init__(self) -> None:
        self._model: Any = None
        self._one_at_a_time = threading.Lock()
        """For libraries whose model must not be called from two threads at once."""

    def import_library(self) -> None:
        """Import what is needed, so that the constructor can be timed without it."""
        if self.library is not None:
            import_module(self.library)

    @abstractmethod
    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Load a model as the name of the contestant says.

        `cache_dir` outlives the process and is empty the first time.
        """

    def fill_cache(self, cache_dir: Path) -> None:  # noqa: B027 - most have nothing to leave
        """Leave in `cache_dir` what makes the next start quicker, unless loading did."""

    @abstractmethod
    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Return float32[N, D]: a bulk job. A size is given to those that make batches by it."""

    def query(self, text: str) -> Vectors:
        """Return float32[D] of a single text, as soon as possible."""
        vector: Vectors = self.encode([text], None)[0]
        return vector

    def stats(self) -> dict[str, float]:
        """Return the counts since the model was loaded; may be empty."""
        return {}

    def precision(self) -> str:
        """Return what the loaded model multiplies in: "float32", "bf16", "int8" or a form of it."""
        return "float32"

    def memory(self) -> Memory:
        """Return the memory of the process that holds the model."""
        return memory_of("self")
