"""`POST /v1/search`: a question to the rows that answer it. The dialect is embedlib's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Lane
from embedlib.errors import ConfigError
from embedlib.indexing.options import CANDIDATES, SEARCH_ROWS
from embedlib.indexing.searches.hits import SearchHit, SearchOptions, choose_hits
from embedlib.indexing.searches.hybrid import Asked
from embedlib.indexing.searches.searching import check_question
from embedlib.indexing.sinks.protocol import Hit
from embedlib.packages.foreign_options import FOREIGN_SEARCH_OPTIONS
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.dialects.ranking import check_one_score
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.compute import Work, embed, embed_tokens, score_by_tokens, score_pairs
from embedlib.serve.models.destinations import Destination
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Common, Exchange, usage_of
from embedlib.serve.wire import check_count
from embedlib.session.scoring import activate

MAX_QUESTIONS = 64
"""Of one request. They are answered one after the other, and others wait."""
MAX_CHARACTERS_IN_LOOP = 1000
"""Longer filters are read by a thread: the longest takes some 20 milliseconds."""
MAX_ROWS = 1000
"""Rows of an answer, or for a reranker."""


class SearchBody(Common, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/search`. Another field, such as `where`, would change the answer."""

    foreign: ClassVar[Mapping[str, str]] = {
        name: "filter" if here == "where" else here
        for name, here in (*FOREIGN_SEARCH_OPTIONS.items(), ("where", "where"))
    }
    """What other fields are called here."""

    query: str | list[str]
    """A question, or several."""
    top_k: int = SEARCH_ROWS
    """Rows of an answer, at most."""
    filter: str | None = None
    """Which rows, such as `year >= 2020 and lang = "de"`."""
    min_score: float | None = None
    """Leave out rows with a lower score."""
    hybrid: bool | Literal["sparse", "text"] = False
    """Search with sparse vectors, or else for the question's words, as well, and fuse the two by
    rank; "sparse" or "text" names one."""
    rerank: bool | str = False
    """Let the server's reranker, or the one of this name, order the nearest rows."""
    num_candidates: int = CANDIDATES
    """Rows that the reranker reads."""
    collection: str | None = None
    """The name of the destination, of a server that searches several."""


async def search(exchange: Exchange) -> Response:
    """Answer `POST /v1/search`."""
    body = await exchange.read(SearchBody)
    destination = exchange.shared.destinations.find(body.collection)
    questions = _questions(body.query)
    if len(body.filter or "") <= MAX_CHARACTERS_IN_LOOP:
        options = _options(body)
    else:
        options = await exchange.in_thread(lambda: _options(body))
    model = exchange.model = destination.open()
    if body.model not in (None, model.name):
        raise HTTPError(
            400,
            f"model = {body.model!r:.60}; the rows of {destination.name} are those of "
            f"{model.name}, leave it out",
            "wrong_model",
            param="model",
        )
    second = destination.second_ranking(body.hybrid)
    reranker = _find_reranker(exchange, body.rerank) if body.rerank else None
    exchange.work.lane = exchange.work.lane or Lane.QUERY
    exchange.work.field = "query"
    started = perf_counter()
    vectors: Iterable[NDArray[np.float32]]
    if model.task == "embed_multi_vector":
        vectors = await embed_tokens(model, questions, exchange.work, "multi_vector", role="query")
    else:
        vectors = await embed(model, questions, exchange.work, role="query")
    asked = await _ask(exchange, destination, second, questions)
    embedded = perf_counter()
    found = await _gather(
        destination.find_rows(vector, each, options.num_rows, options.where)
        for vector, each in zip(vectors, asked, strict=True)
    )
    searched = perf_counter()
    scores: list[Any] = [None] * len(questions)
    if reranker is not None:
        scores = await _rerank(exchange, reranker, questions, found)
    ended = perf_counter()
    stages = {
        "embed": embedded - started,
        "search": searched - embedded,
        "rerank": ended - searched if reranker is not None else 0.0,
    }
    exchange.shared.metrics.searched(destination.name, stages)

    def content() -> dict[str, Any]:
        answers = [
            [_written(hit, reranker is not None) for hit in choose_hits(rows, each, options)]
            for rows, each in zip(found, scores, strict=True)
        ]
        return {
            "object": "search",
            "collection": destination.name,
            "model": model.name,
            **({} if second is None else {"hybrid": second}),
            **({} if reranker is None else {"reranker": reranker.name}),
            "results": answers[0] if isinstance(body.query, str) else answers,
            "timings_ms": {
                stage: round(seconds * 1e3, 3)
                for stage, seconds in (*stages.items(), ("total", ended - started))
            },
            "usage": usage_of(exchange),
        }

    return await exchange.answer(content, sum(map(len, found)))


def _questions(query: str | list[str]) -> list[str]:
    questions = [query] if isinstance(query, str) else query
    check_count(questions, "query", MAX_QUESTIONS)
    try:
        for question in questions:
            check_question(question)
    except ConfigError as error:
        raise HTTPError(400, str(error), "empty", param="query") from None
    return questions


def _options(body: SearchBody) -> SearchOptions:
    for name in ("top_k", "num_candidates"):
        value = getattr(body, name)
        if not 1 <= value <= MAX_ROWS:
            raise HTTPError.wrong_value(name, value, f"it must be 1 to {MAX_ROWS}")
    try:
        return SearchOptions.checked(
            body.top_k,
            body.filter,
            body.min_score,
            bool(body.rerank),
            body.num_candidates,
            filter_name="filter",
        )
    except ConfigError as error:  # the numbers are checked
        raise HTTPError(400, str(error), param="filter") from None


def _find_reranker(exchange: Exchange, named: bool | str) -> ServedModel:
    try:
        name = None if named is True else str(named)
        found = exchange.shared.catalog.find(name, "rerank", "embed_multi_vector")
        found.open()
        if found.task == "rerank":
            check_one_score(found)
    except HTTPError as error:
        error.param = "rerank"
        raise
    return found


async def _ask(
    exchange: Exchange,
    destination: Destination,
    second: Literal["sparse", "text"] | None,
    questions: list[str],
) -> Sequence[Asked | None]:
    """Return what the second ranking is asked for each question; None: there is none."""
    if second is None:
        return [None] * len(questions)
    if second == "text":
        return questions
    assert destination.sparse is not None, "second_ranking finds it"
    work = Work(lane=exchange.work.lane)
    started = perf_counter()
    asked = await embed_tokens(destination.sparse, questions, work, "sparse", role="query")
    _count(exchange, destination.sparse, work, started)
    return asked


def _count(exchange: Exchange, model: ServedModel, work: Work, started: float) -> None:
    """Count what another model than that of the rows has computed."""
    seconds = perf_counter() - started
    exchange.shared.metrics.answered(model, work.lane or Lane.QUERY, work.usage, seconds)


async def _rerank(
    exchange: Exchange, reranker: ServedModel, questions: list[str], found: list[list[Hit]]
) -> list[list[float]]:
    """Return the scores of the rows of each question, as `POST /rerank` gives them."""
    if not any(found):
        return [[] for _ in questions]
    work = Work(lane=exchange.work.lane)
    started = perf_counter()
    if reranker.task == "embed_multi_vector":
        texts = [[hit.text for hit in hits] for hits in found]
        late = await score_by_tokens(reranker, questions, texts, work, ("query", "query"))
        _count(exchange, reranker, work, started)
        return [each.tolist() for each in late]
    pairs = [
        (question, hit.text)
        for question, hits in zip(questions, found, strict=True)
        for hit in hits
    ]
    outputs: NDArray[Any] = await score_pairs(reranker, pairs, work, raw_scores=True)
    _count(exchange, reranker, work, started)
    scores = iter(activate(outputs, "sigmoid")[:, 0].tolist())
    return [[next(scores) for _ in hits] for hits in found]


async def _gather(searches: Any) -> list[list[Hit]]:
    """Return the rows of every search; the first error drops those that have not begun."""
    tasks = [asyncio.ensure_future(each) for each in searches]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _written(hit: SearchHit, is_reranked: bool) -> dict[str, Any]:
    return {
        "id": str(hit.id),
        "score": hit.score,
        **({"vector_score": hit.vector_score} if is_reranked else {}),
        "text": hit.text,
        # Not msgspec's: a row may hold integers of any length.
        "metadata": msgspec.Raw(json.dumps(dict(hit.metadata), ensure_ascii=False).encode()),
        "source_id": hit.source_id,
        "chunk": hit.chunk,
    }


ROUTES = (
    Route("POST", "/v1/search", search, OPENAI, "The rows that answer a question.", SearchBody),
)
