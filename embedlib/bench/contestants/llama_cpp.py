"""llama.cpp by way of llama-cpp-python."""

from __future__ import annotations

import ctypes
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from embedlib.bench.contestants.contestant import Contestant
from embedlib.bench.contestants.gguf_file import write_gguf
from embedlib.vectors.arrays import Vectors

BATCH_TOKENS: Final = 2048
"""Of its batch, and of the longest text. Its default, 512, is slower and cuts longer ones."""

_FILE_TYPES: Final = {"float32": 0, "bf16": 32, "q8_0": 7}
"""Source: `enum llama_ftype` in llama.h."""


class LlamaCppContestant(Contestant):
    """llama.cpp with a GGUF file in one of its types."""

    library = "llama_cpp"
    packages = ("llama-cpp-python", "gguf", "numpy")

    def __init__(self, file_type: str) -> None:
        super().__init__()
        self._file_type = file_type

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Map the GGUF file; convert the model to it the first time."""
        path = cache_dir / f"{self._file_type}.gguf"
        if not path.exists():
            self._convert(folder, path)
        self._model = import_module("llama_cpp").Llama(
            str(path),
            embedding=True,
            n_ctx=BATCH_TOKENS,
            n_batch=BATCH_TOKENS,
            n_ubatch=BATCH_TOKENS,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def _convert(self, folder: Path, path: Path) -> None:
        llama_cpp = import_module("llama_cpp")
        stored = path.with_name("stored.gguf")
        write_gguf(folder, stored)
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = _FILE_TYPES[self._file_type]
        status = llama_cpp.llama_model_quantize(
            bytes(stored), bytes(path), ctypes.byref(parameters)
        )
        if status != 0:
            raise RuntimeError(f"llama_model_quantize ended with {status}")
        stored.unlink()

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Embed all texts in one call; the library fills its batches."""
        with self._one_at_a_time:
            return np.array(self._model.embed(texts, normalize=True), np.float32)

    def precision(self) -> str:
        """Return what the matrices are stored in."""
        return {"q8_0": "int8"}.get(self._file_type, self._file_type)
