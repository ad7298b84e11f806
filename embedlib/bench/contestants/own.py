"""embedlib as a contestant, in each of its precisions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedlib.bench.contestants.contestant import Contestant
from embedlib.bench.contestants.own_cache import share_measurements
from embedlib.bench.peers import EMBEDLIB, FLOAT32, INT8
from embedlib.config import Config
from embedlib.vectors.arrays import Vectors

if TYPE_CHECKING:
    from embedlib.embedder import Embedder
    from embedlib.reranker import Reranker

# The contestants of `--task rerank`.
RERANKER = "embedlib-reranker"
INT8_RERANKER = "embedlib-int8-reranker"
CROSS_ENCODER = "sentence-transformers-cross-encoder"

OURS = (EMBEDLIB, FLOAT32, INT8, RERANKER, INT8_RERANKER)
"""They make batches by a token budget, and take embedlib's options."""

BATCH_SIZES = (4, 8, 16, 32, 64)
"""Tried for a peer that makes batches by a number of texts; it then runs at its best."""


class OwnContestant(Contestant):
    """This library as it comes, on the CPU as its peers: without what the environment sets."""

    packages = ("openvino", "tokenizers", "numpy")

    def __init__(self, precision: str = "auto") -> None:
        super().__init__()
        self._precision = precision

    @abstractmethod
    def _make(self, folder: Path, config: Config) -> Embedder | Reranker:
        """Load the model."""

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Load the model; the engine is compiled the first time and cached.

        For int8 the layers to keep are searched the first time, which takes minutes.
        """
        if self._precision == "int8":
            compile_int8(folder, cache_dir, threads)
        own = {
            "device": "cpu",
            "threads": threads,
            "engine_cache_dir": cache_dir,
            "on_truncate": "ignore",
            "precision": self._precision,
            # Later starts measure nothing: a search would go on beside the peers' turns.
            "prepare": not any(cache_dir.iterdir()),
        }
        self._folder, self._config = folder, Config(**{**own, **options})
        self._model = self._make(folder, self._config)

    def fill_cache(self, cache_dir: Path) -> None:
        """End the model, and wait for what it would have measured beside the work."""
        self._model.close()
        finish_preparing(self._model, cache_dir)
        # What the user's cache knew is measured, but not compiled: a start with it keeps that.
        self._make(self._folder, replace(self._config, prepare=False)).close()

    def precision(self) -> str:
        """Return the precision that the model has chosen."""
        precision: str = self._model.precision
        return precision.split()[0]


class EmbedlibContestant(OwnContestant):
    """This library's Embedder."""

    library = "embedlib.embedder"

    def _make(self, folder: Path, config: Config) -> Embedder:
        from embedlib.embedder import Embedder

        return Embedder(folder, config=config)

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Encode on the bulk lane; batches are made by token budget."""
        vectors: Vectors = self._model.encode(texts, show_progress_bar=False)
        return vectors

    def query(self, text: str) -> Vectors:
        """Encode on the query lane."""
        vector: Vectors = self._model.encode(text, show_progress_bar=False)
        return vector

    def stats(self) -> dict[str, float]:
        """Return the counts of `Embedder.stats` that tell where time went."""
        stats = self._model.stats()
        return {
            "num_tokens": stats.num_tokens,
            "num_truncated": stats.num_truncated,
            "padding_share": stats.padding_share,
            "engine_idle_share": stats.engine_idle_share,
        }


def finish_preparing(model: Embedder | Reranker, cache_dir: Path) -> None:
    """Wait for what a model measures beside the work, and for a search for layers to keep.

    The program of a user lives on until then; that of a contestant has only a first query. What the
    user's own cache knows of the model is not measured again.
    """
    from embedlib.engines.machine import Machine
    from embedlib.engines.openvino.kind import KIND
    from embedlib.engines.worthwhile import worthwhile
    from embedlib.fidelity.preparing import prepare
    from embedlib.session.preparing import Task

    if model.spec.encoder.is_table:
        return  # it has float32 alone
    *faster, _ = worthwhile(KIND, Machine().cpu_features(), lambda _: True)
    if model.config.precision == "auto" and faster:
        share_measurements(Path(model.model_name), cache_dir)
        options = {"threads": model.config.threads, "engine_cache_dir": str(cache_dir)}
        task = Task(
            model=model.model_name,
            precisions=tuple(faster),
            is_background=True,
            options=options,
        )
        prepare(task)


def compile_int8(folder: Path, cache_dir: Path, threads: int) -> None:
    """Compile a model to int8 as the gate allows, unless the cache has it."""
    from embedlib.fidelity import compile_to_gate
    from embedlib.models.compiled.cache import compiled_versions
    from embedlib.models.compiled.fidelity_report import Gate
    from embedlib.models.reading.files import is_scoring_model, read_model_files

    files = read_model_files(folder, with_head=is_scoring_model(folder))
    config = Config(engine_cache_dir=cache_dir, threads=threads)
    versions = compiled_versions(files, config)
    reports = [version.report for version in versions if version.precision == "int8"]
    if not any(report and report.passes(Gate()) for report in reports):
        compile_to_gate(folder, "int8", config=config)
