"""`embedlib.search`: the rows of a destination that are nearest to a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from embedlib.checks import COUNT, TEXT
from embedlib.errors import ConfigError, SinkError, nearest, shown
from embedlib.indexing.embedders import ModelIdentity, QueryEmbedder, check_embedder
from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.filters.parser import parse_filter
from embedlib.indexing.options import SEARCH_ROWS
from embedlib.indexing.searches.hybrid import Asked, text_sink
from embedlib.indexing.sinks.opening import check_is_sink, open_sink
from embedlib.indexing.sinks.protocol import Hit, Sink, SinkState, identify
from embedlib.indexing.sinks.replaceable import ReplacedError, can_replace, models_of
from embedlib.indexing.sparse_rows import ARM_ROWS, fuse, sparse_sink
from embedlib.indexing.stored_model import describe_other_model, stands_beside
from embedlib.packages.foreign_options import FOREIGN_SEARCH_OPTIONS

_MAX_ROWS: Final = 2**31 - 1
"""Rows that a destination is asked for at most. Databases refuse numbers that do not fit in their
integers, each in words of its own, and no answer has so many rows."""
_OF_SEARCH: Final = (
    *("hybrid", "reranker", "sparse", "config"),
    *("min_score", "rerank", "num_candidates"),
)
"""Options of `Search` and its `search`, which the function has not."""


def stored_state(sink: Sink) -> SinkState:
    """Return what a destination holds.

    Raises:
        SinkError: it holds nothing.
    """
    return _expect_rows(sink, sink.inspect())


def identified_state(sink: Sink) -> SinkState:
    """Return what a destination holds, but the number of rows, which may take long to count.

    Raises:
        SinkError: it holds nothing.
    """
    return _expect_rows(sink, identify(sink))


def _expect_rows(sink: Sink, state: SinkState | None) -> SinkState:
    if state is None:
        raise SinkError(f"{sink.name} holds nothing; load it with embedlib index")
    return state


def held_state(sink: Sink, embedders: Sequence[ModelIdentity] = ()) -> SinkState:
    """Return which rows of a destination are searched, and keep its searches to these.

    They are those that it holds now; or those that it keeps since a change of model, if an embedder
    made them and none made the others. They may not be counted.

    Raises:
        SinkError: it holds nothing.
    """
    state = identified_state(sink)
    if not can_replace(sink):
        return state
    if embedders and not any(stands_beside(each, state) for each in embedders):
        old = sink.old()
        if old is not None and any(stands_beside(each, old) for each in embedders):
            state = old
    sink.hold(state)
    return state


def counted_state(sink: Sink, held: SinkState) -> SinkState:
    """Return what a destination holds of the models of a `held_state`, with the number of rows.

    Raises:
        ReplacedError: there are no such rows any more.
    """
    now = sink.inspect()
    for state in (now, sink.old() if can_replace(sink) else None):
        if state is not None and models_of(state) == models_of(held):
            return state
    raise ReplacedError(sink.name, held, None if now is None else now.model)


def search(
    question: str,
    sink: str | Sink,
    *,
    embedder: QueryEmbedder,
    top_k: int = SEARCH_ROWS,
    where: str | None = None,
    **unknown: NoReturn,
) -> list[Hit]:
    """Return the `top_k` rows nearest to a question, best first.

    A destination answers one thread at a time; threads share a `Search`, which takes turns.

    Args:
        question: embedded on the query lane with the model's prompt for queries.
        sink: where to search: a URL, or a `Sink`, which stays open.
        embedder: an `Embedder` of the model that made the rows, or an object with the members of
            `embedlib.indexing.QueryEmbedder`.
        top_k: how many rows.
        where: a filter on the metadata, such as `year >= 2020 and lang = "de"`.
        **unknown: raises, with what another library's option is called here.

    Raises:
        TypeError: there is no such option.
        ConfigError: an argument has another type or lacks a member, the question is empty,
            `top_k` is less than 1, or the filter is not understood.
        SinkError: the destination cannot be read, has no filters, or was made by another model or
            with other options; the message says which, where that is known.
    """
    refuse_unknown("search", unknown, ("embedder", "top_k", "where"))
    check_is_sink(sink)
    check_embedder(embedder, QueryEmbedder)
    check_query(question, top_k)
    passes = None if where is None else parse_filter(where)
    if isinstance(sink, str):
        with closing(open_sink(sink)) as opened:
            return search(question, opened, embedder=embedder, top_k=top_k, where=where)
    state = held_state(sink, [embedder])
    if not stands_beside(embedder, state):
        raise SinkError(describe_other_model(state, sink.name, embedder, "search"))
    return find_rows(sink, embedder.encode_query(question), top_k, passes)


def find_rows(sink: Sink, vector: NDArray[np.float32], k: int, where: Filter | None) -> list[Hit]:
    """Return the `k` rows nearest to float32[D] that pass a filter; None: all pass.

    Raises:
        SinkError: the destination cannot be read, or has no filters.
    """
    num_rows = min(k, _MAX_ROWS)
    if where is None:
        return sink.search(vector, num_rows)
    search_where = getattr(sink, "search_where", None)
    if search_where is None:
        raise SinkError(
            f"{sink.name} has no filters, since its sink has no search_where; leave the filter out"
        )
    found: list[Hit] = search_where(vector, num_rows, where)
    return found


def find_fused(
    sink: Sink, vector: NDArray[np.float32], asked: Asked | None, k: int, where: Filter | None
) -> list[Hit]:
    """Return the `k` rows that are best by two searches, with vectors and in a second ranking.

    Args:
        sink: where to search.
        vector: float32[D], of the question.
        asked: of the second ranking; None: the vectors alone decide.
        k: how many rows.
        where: None: all rows pass.

    Raises:
        SinkError: the destination cannot be read, has no filters, or no such ranking.
    """
    if asked is None:
        return find_rows(sink, vector, k, where)
    num_rows = min(max(ARM_ROWS, 2 * k), _MAX_ROWS)
    by_vector = find_rows(sink, vector, num_rows, where)
    return fuse([by_vector, _find_second(sink, asked, num_rows, where)], k)


def _find_second(sink: Sink, asked: Asked, k: int, where: Filter | None) -> list[Hit]:
    if isinstance(asked, str):
        return text_sink(sink).search_text(asked, k, where)
    return sparse_sink(sink).search_sparse(asked, k, where) if asked else []


def refuse_unknown(function: str, unknown: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that a search does not have.

    Raises:
        TypeError: there is one; the message says what it is called here, or who has it.
    """
    for name in unknown:
        here = FOREIGN_SEARCH_OPTIONS.get(name, name)
        if here in known:
            hint = f"pass {here}="
        elif here in _OF_SEARCH:
            hint = f"embedlib.Search has it: {here}="
        else:
            hint = nearest(name, known)
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; {hint}")


def check_query(question: object, top_k: object) -> None:
    """Check what is searched for and how many rows are wanted.

    Raises:
        ConfigError: the question is no text or empty, or `top_k` is less than 1.
    """
    check_question(question)
    COUNT.take("top_k", top_k)


def check_question(question: object) -> None:
    """Check what is searched for.

    Raises:
        ConfigError: the question is no text or empty.
    """
    if not TEXT.take("question", question).strip():
        raise ConfigError(f"question = {shown(question)}; it is empty; ask something")
