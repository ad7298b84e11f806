"""The contestants of `--task rerank`: the texts they encode are the candidates of one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedlib.bench.contestants import compile_int8, finish_preparing, is_first_start
from embedlib.bench.sentence_transformers_contestants import SentenceTransformersContestant
from embedlib.measuring.child import Memory, own_memory
from embedlib.measuring.texts import RERANK_QUERY
from embedlib.vectors.arrays import Vectors

if TYPE_CHECKING:
    from embedlib.reranker import Reranker


class RerankerContestant:
    """This library's Reranker."""

    packages: tuple[str, ...] = ("openvino", "tokenizers", "numpy")

    def __init__(self) -> None:
        self._reranker: Reranker | None = None

    def import_library(self) -> None:
        """Import it; the engine's library is imported by the constructor."""
        import embedlib.reranker  # noqa: F401

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Make a Reranker; the engine is compiled the first time and cached."""
        from embedlib.reranker import Reranker

        self._reranker = Reranker(
            folder,
            threads=threads,
            engine_cache_dir=cache_dir,
            on_truncate="ignore",
            prepare=is_first_start(cache_dir),
            **options,
        )

    def fill_cache(self, cache_dir: Path) -> None:
        """Wait for what the load measures beside the work."""
        finish_preparing(self._loaded, cache_dir)

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Rank the texts and return their scores, float32[N], in the texts' order."""
        return _in_order(self._loaded.rank(RERANK_QUERY, texts, show_progress_bar=False))

    def query(self, text: str) -> Vectors:
        """Score one pair."""
        return np.array([self._loaded.predict((RERANK_QUERY, text))], np.float32)

    def precision(self) -> str:
        """Return the precision that the Reranker has chosen."""
        return self._loaded.precision.split()[0]

    def memory(self) -> Memory:
        """Return the memory of this process."""
        return own_memory()

    def stats(self) -> dict[str, float]:
        """Return the counts since the model was loaded."""
        stats = self._loaded.stats()
        return {"num_tokens": stats.num_tokens, "num_truncated": stats.num_truncated}

    @property
    def _loaded(self) -> Reranker:
        assert self._reranker is not None, "load comes first; this is a bug in embedlib"
        return self._reranker


class Int8RerankerContestant(RerankerContestant):
    """This library's Reranker in int8, with as many layers kept as it takes to pass the gate."""

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Make a Reranker; the first time the layers to keep are searched, which takes minutes."""
        compile_int8(folder, cache_dir, threads)
        super().load(folder, cache_dir, threads, {**options, "precision": "int8"})


class CrossEncoderContestant(SentenceTransformersContestant):
    """sentence-transformers' CrossEncoder with its torch backend."""

    def _construct(self, folder: Path, cache_dir: Path, threads: int) -> Any:
        import torch
        from sentence_transformers import CrossEncoder

        return CrossEncoder(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": torch.float32},
        )

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Rank the texts in batches of `batch_size`; the library sorts them by length."""
        assert batch_size is not None, "peers get a batch size; this is a bug in embedlib"
        ranking = self._model.rank(
            RERANK_QUERY, texts, batch_size=batch_size, show_progress_bar=False
        )
        return _in_order(ranking)

    def query(self, text: str) -> Vectors:
        """Score one pair."""
        score = self._model.predict((RERANK_QUERY, text), show_progress_bar=False)
        return np.array([score], np.float32)


def _in_order(ranking: Sequence[Mapping[str, Any]]) -> Vectors:
    """Return the scores of a ranking, float32[N], in the order of the documents."""
    scores = np.empty(len(ranking), np.float32)
    scores[[entry["corpus_id"] for entry in ranking]] = [entry["score"] for entry in ranking]
    return scores
