"""The rows that are compared: an Embedder's vectors, a Reranker's or Classifier's raw scores.

Scores are arranged in rows too, so that one cosine serves all models. A classifier's row has the
raw scores of all labels for one text. Of a single score only differences matter: a row has the
scores of a query for a few candidates, or of a text and a few others, minus their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.classifier import Classifier
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.fidelity.texts import FidelityTexts
from embedlib.reranker import Reranker

NUM_CANDIDATES: Final = 8
"""Scores of a row. Chosen: enough for an order that can change, and few enough to compute for every
query; it was not measured."""
NUM_ROWS_PER_QUERY: Final = 2
"""With two, the built-in queries give more rows than the `MIN_TEXTS` of a report that counts."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The rows of `FidelityTexts`."""

    queries: NDArray[np.float32]
    """float32[number of queries, D]; all rows if the model computes scores."""
    documents: NDArray[np.float32]
    """float32[number of documents, D]; no rows if the model computes scores."""

    @property
    def all(self) -> NDArray[np.float32]:
        """float32[N, D]: queries, then documents."""
        return np.concatenate([self.queries, self.documents])


def embed(session: Embedder | Reranker | Classifier, texts: FidelityTexts) -> Embedded:
    """Return the rows of texts; an Embedder adds its prompts of queries and documents.

    Raises:
        ConfigError: there are too few texts.
    """
    if not texts.all:
        raise ConfigError("texts is empty; give one text or more")
    if isinstance(session, Embedder):
        dim = session.get_embedding_dimension()
        # Both at once: an engine that computes layer by layer then reads the weights once.
        both = [
            session.submit_batch(texts.queries, role="query"),
            session.submit_batch(texts.documents, role="document"),
        ]
        try:
            queries, documents = (np.reshape(future.result(), (-1, dim)) for future in both)
        finally:  # of Ctrl-C: nobody wants them any more
            for future in both:
                future.cancel()
        return Embedded(queries=queries, documents=documents)
    if isinstance(session, Reranker):
        scores = session.predict(_pairs(texts), raw_scores=True)
        rows = _centred(scores.reshape(-1, NUM_CANDIDATES))
    else:
        rows = session.predict_scores(texts.all, raw_scores=True)
        if session.num_labels == 1:
            num_texts = len(rows)
            if num_texts < 2:
                raise ConfigError(
                    "texts has 1 text; a model with one score is measured on 2 or more"
                )
            others = [place * num_texts // NUM_CANDIDATES for place in range(NUM_CANDIDATES)]
            rows = _centred(np.hstack([np.roll(rows, -shift, axis=0) for shift in others]))
    return Embedded(queries=rows, documents=np.zeros((0, rows.shape[1]), np.float32))


def _centred(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32[rows, candidates] minus the mean of each row."""
    centred: NDArray[np.float32] = scores - scores.mean(axis=1, keepdims=True)
    return centred


def _pairs(texts: FidelityTexts) -> list[tuple[str, str]]:
    """Return pairs of each query with documents of all lengths, row by row."""
    documents = texts.documents
    if not texts.queries or len(documents) < 2:
        raise ConfigError(
            f"texts has {len(texts.queries)} queries and {len(documents)} documents; a reranker is "
            "measured on at least 1 query and 2 documents"
        )
    num_places = NUM_CANDIDATES * NUM_ROWS_PER_QUERY
    return [
        (query, documents[(index + place * len(documents) // num_places) % len(documents)])
        for index, query in enumerate(texts.queries)
        for row in range(NUM_ROWS_PER_QUERY)
        for place in range(row, num_places, NUM_ROWS_PER_QUERY)
    ]
