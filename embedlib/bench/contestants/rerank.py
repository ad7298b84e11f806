"""The contestants of `--task rerank`: the texts they encode are the candidates of one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedlib.bench.contestants.own import OwnContestant
from embedlib.bench.contestants.sentence_transformers import SentenceTransformersContestant
from embedlib.measuring.texts import RERANK_QUERY
from embedlib.vectors.arrays import Vectors

if TYPE_CHECKING:
    from embedlib.config import Config
    from embedlib.reranker import Reranker


class RerankerContestant(OwnContestant):
    """This library's Reranker."""

    library = "embedlib.reranker"

    def _make(self, folder: Path, config: Config) -> Reranker:
        from embedlib.reranker import Reranker

        return Reranker(folder, config=config)

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Rank the texts and return their scores, float32[N], in the texts' order."""
        return _in_order(self._model.rank(RERANK_QUERY, texts, show_progress_bar=False))

    def query(self, text: str) -> Vectors:
        """Score one pair."""
        return np.array([self._model.predict((RERANK_QUERY, text))], np.float32)

    def stats(self) -> dict[str, float]:
        """Return the counts since the model was loaded."""
        stats = self._model.stats()
        return {"num_tokens": stats.num_tokens, "num_truncated": stats.num_truncated}


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
