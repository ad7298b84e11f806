"""Late-interaction models as rerankers: candidates in the order of MaxSim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.models.opening import OpenedModel
from embedlib.reranker import Reranker
from embedlib.session.arguments import config_beside
from embedlib.vectors.maxsim import maxsim


class LateRanking:
    """Scores documents by MaxSim; their vectors are computed for every question.

    Any number of threads may call it, as an `Embedder`.
    """

    def __init__(self, embedder: Embedder) -> None:
        """Rank with a late-interaction model, which `close` closes."""
        self._embedder = embedder
        self.close = embedder.close

    def rank(self, query: str, documents: Sequence[str], /) -> list[Mapping[str, Any]]:
        """Return {"corpus_id", "score"} of each document, in their order."""
        question = self._embedder.encode_query(query)
        is_mean = self._embedder.similarity_fn_name == "meanmaxsim"
        vectors = self._embedder.encode_document(list(documents))
        scores = maxsim(question, vectors, is_mean=is_mean)[0].tolist()
        return [{"corpus_id": index, "score": score} for index, score in enumerate(scores)]


def ranking_config(config: Config | None) -> Config:
    """Return the options of a reranker beside an embedder.

    Args:
        config: of the embedder; what it says of the machine, the hub and long texts is meant for
            both. None: the environment sets what it sets for a model of its own.
    """
    names = ["engine", "device"]
    if config is not None and config.on_truncate != "chunk":  # scores have no mean
        names.append("on_truncate")
    return config_beside(config, *names)


def load_ranking(name: str, config: Config) -> Reranker | LateRanking:
    """Load a reranker, or a late-interaction model as one.

    Raises:
        what `Reranker` raises, also for an embedding model of another kind.
    """
    with OpenedModel.described(name, config) as opened:
        spec = opened.read_files(with_head=opened.has_head).spec
    if spec.late_interaction is not None:
        # Not every engine and device has vectors of tokens.
        return LateRanking(Embedder(name, config=replace(config, engine="auto", device=None)))
    return Reranker(name, config=config)


def as_ranking(given: Any) -> Any:
    """Return what ranks: a late-interaction `Embedder` does so by MaxSim, others as they are."""
    is_late = isinstance(given, Embedder) and given.spec.late_interaction is not None
    return LateRanking(given) if is_late else given
