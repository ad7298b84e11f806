"""From the rows that a destination finds to the answer: candidates, scores, the least score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from embedlib.checks import COUNT, SWITCH, Kind, is_number, optional
from embedlib.errors import ConfigError
from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.filters.parser import parse_filter
from embedlib.indexing.options import SEARCH_ROWS
from embedlib.indexing.sinks.protocol import Hit

_SCORE = optional(
    Kind("a number", lambda value: is_number(value) and value == value, float), "a number or None"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchHit(Hit):
    """One row of an answer; `score` is the reranker's where there is one.

    Attributes:
        vector_score: the similarity of the vectors; of a hybrid search, the score of its fusion.
    """

    vector_score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTimes:
    """Milliseconds of a search; of several questions, those of the whole call.

    Attributes:
        embed_ms: from the questions to their vectors.
        search_ms: in the destination.
        rerank_ms: in the reranker; 0 without one.
        total_ms: from call to answer.
    """

    embed_ms: float = 0.0
    search_ms: float = 0.0
    rerank_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchResults(Sequence[SearchHit]):
    """The answer to one question: its hits, best first.

    Attributes:
        hits: the rows.
        times: how long each stage took.
    """

    hits: tuple[SearchHit, ...]
    times: SearchTimes

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, index: int) -> SearchHit: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SearchHit, ...]: ...

    def __getitem__(self, index: int | slice) -> SearchHit | tuple[SearchHit, ...]:
        return self.hits[index]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """What a search is asked for; `checked` makes it of what a caller gave.

    Attributes:
        top_k: rows of an answer, at most.
        where: which rows; None: all.
        min_score: leave out rows with a lower score.
        num_candidates: rows that the reranker reads; None: none does.
    """

    top_k: int = SEARCH_ROWS
    where: Filter | None = None
    min_score: float | None = None
    num_candidates: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows to ask the destination for."""
        return self.num_candidates or self.top_k

    @classmethod
    def checked(
        cls,
        top_k: object,
        where: Any,
        min_score: object,
        rerank: bool,
        num_candidates: object,
        *,
        filter_name: str = "where",
    ) -> SearchOptions:
        """Check the arguments of a search.

        Args:
            top_k: as in `Search.search`.
            where: the same.
            min_score: the same.
            rerank: whether there is a reranker, and it is to be used.
            num_candidates: as in `Search.search`.
            filter_name: what messages call the filter.

        Raises:
            ConfigError: one is out of range.
        """
        rows: int = COUNT.take("top_k", top_k)
        candidates: int = COUNT.take("num_candidates", num_candidates)
        return cls(
            top_k=rows,
            where=None if where is None else parse_filter(where, filter_name),
            min_score=_SCORE.take("min_score", min_score),
            num_candidates=max(rows, candidates) if rerank else None,
        )


def choose_hits(
    found: Sequence[Hit], scores: Sequence[float] | None, options: SearchOptions
) -> tuple[SearchHit, ...]:
    """Return the hits of an answer, best first.

    Args:
        found: the candidates, nearest first.
        scores: the reranker's, one for each; None: there is none.
        options: how many are wanted, and with which score.
    """
    given = [hit.score for hit in found] if scores is None else scores
    least = options.min_score
    ranked = sorted(zip(given, found, strict=True), key=lambda pair: -pair[0])
    return tuple(
        SearchHit(
            score=score,
            id=hit.id,
            source_id=hit.source_id,
            chunk=hit.chunk,
            text=hit.text,
            metadata=hit.metadata,
            vector_score=hit.score,
        )
        for score, hit in ranked[: options.top_k]
        if least is None or score >= least
    )


def check_rerank(rerank: object, has_reranker: bool) -> bool:
    """Return whether a search is reranked.

    Raises:
        ConfigError: the value is neither None, True nor False, or there is no reranker.
    """
    if rerank is None:
        return has_reranker
    reranks: bool = SWITCH.take("rerank", rerank)
    if reranks and not has_reranker:
        raise ConfigError("rerank = True; there is no reranker here, name one at the start")
    return reranks


def make_answers(
    found: Sequence[Sequence[Hit]],
    scores: Sequence[Sequence[float] | None],
    options: SearchOptions,
    instants: tuple[float, float, float, float],
) -> list[SearchResults]:
    """Return the answers to several questions.

    Args:
        found: the candidates of each, as for `choose_hits`.
        scores: of each, in the same way.
        options: of the search.
        instants: in seconds: of the call, and the ends of embedding, searching and ranking.
    """
    started, embedded, searched, ended = instants
    times = SearchTimes(
        embed_ms=(embedded - started) * 1e3,
        search_ms=(searched - embedded) * 1e3,
        rerank_ms=0.0 if options.num_candidates is None else (ended - searched) * 1e3,
        total_ms=(ended - started) * 1e3,
    )
    pairs = zip(found, scores, strict=True)
    return [SearchResults(choose_hits(*pair, options), times) for pair in pairs]
