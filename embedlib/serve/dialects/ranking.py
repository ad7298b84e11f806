"""How well documents answer a query, for the routes of all dialects that tell it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.reranker import Reranker
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel, Tasks
from embedlib.serve.models.compute import embed, score_by_tokens, score_pairs
from embedlib.serve.models.estimate import check_lengths
from embedlib.serve.requests.exchange import Exchange
from embedlib.session.scoring import activate
from embedlib.vectors.similarity import similarity

RANKING: Final[Tasks] = ("rerank", "embed_multi_vector", "embed")
"""What can tell how well a document answers a query, the best first."""


async def rank_scores(
    exchange: Exchange,
    name: str | None,
    query: str,
    documents: list[str],
    *,
    raw_scores: bool,
    instruction: str | None = None,
    field: str = "documents",
) -> NDArray[np.float32]:
    """Return how well documents answer a query: float32[N], from 0 to 1 unless `raw_scores`.

    By a reranker; where a server has none, by MaxSim of a late-interaction model, which has no
    bounds, or by the cosine of vectors. `field` of the body has the documents.

    Raises:
        HTTPError: there is no such model, or it has no place.
    """
    model = exchange.find(name, *RANKING)
    fields = "query", field
    if model.task == "embed_multi_vector":
        (scores,) = await score_by_tokens(model, [query], [documents], exchange.work, fields)
        return scores
    if model.task == "embed":
        vectors = await embed_both(exchange, model, [query], documents, fields)
        return await exchange.make(lambda: similarity("cosine", *vectors)[0], len(documents))
    check_one_score(model)
    check_lengths([query], len(query), "query")
    exchange.work.field = field
    outputs = await score_pairs(
        model,
        [(query, document) for document in documents],
        exchange.work,
        raw_scores=True,
        instruction=instruction,
    )
    numbers = outputs[:, 0]
    # Of a model whose own scores have no bounds too: clients of all dialects compare with 0 to 1.
    return numbers if raw_scores else activate(outputs, "sigmoid")[:, 0]


def check_one_score(model: ServedModel) -> None:
    """Check that a reranker has one score for a pair.

    Raises:
        HTTPError: it has several, or is not loaded.
    """
    session = model.open_as(Reranker)
    if session.num_labels != 1:
        raise HTTPError(
            400,
            f"model {model.name!r} has {session.num_labels} scores for a pair; serve a reranker "
            "with one, or ask POST /predict for all of them",
            "wrong_model",
            param="model",
        )


async def embed_both(
    exchange: Exchange,
    model: ServedModel,
    queries: list[str],
    documents: list[str],
    fields: tuple[str, str],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the vectors of queries, and those of documents; the fields of the body have them."""
    lane = exchange.work.lane
    exchange.work.field = fields[0]
    first = await embed(model, queries, exchange.work, role="query")
    exchange.work.field = fields[1]
    exchange.work.lane = lane  # as asked for, not that of the queries
    return first, await embed(model, documents, exchange.work, role="document")
