"""`embedlib.search`: the rows of a destination that are nearest to a question."""

from __future__ import annotations

from contextlib import closing

from embedlib.checks import is_count
from embedlib.errors import ConfigError, SinkError, shown
from embedlib.indexing.embedders import QueryEmbedder, check_embedder
from embedlib.indexing.options import SEARCH_ROWS
from embedlib.indexing.sinks.protocol import Hit, Sink, SinkState
from embedlib.indexing.sinks.urls import check_is_sink, open_sink
from embedlib.indexing.stored_model import describe_other_model, stands_beside


def stored_state(sink: Sink) -> SinkState:
    """Return what a destination holds.

    Raises:
        SinkError: it holds nothing.
    """
    state = sink.inspect()
    if state is None:
        raise SinkError(f"{sink.name} holds nothing; load it with embedlib index")
    return state


def search(
    question: str, sink: str | Sink, *, embedder: QueryEmbedder, k: int = SEARCH_ROWS
) -> list[Hit]:
    """Return the `k` rows nearest to a question, best first.

    Args:
        question: embedded on the query lane with the model's prompt for queries.
        sink: where to search: a URL, or a `Sink`, which stays open.
        embedder: an `Embedder` of the model that made the rows, or an object with the members of
            `embedlib.indexing.QueryEmbedder`.
        k: how many rows.

    Raises:
        ConfigError: an argument has another type or lacks a member, the question is empty, or `k`
            is less than 1.
        SinkError: the destination cannot be read, or was made by another model or with other
            options; the message says which, where that is known.
    """
    check_is_sink(sink)
    check_embedder(embedder, QueryEmbedder)
    check_query(question, k)
    if isinstance(sink, str):
        with closing(open_sink(sink)) as opened:
            return search(question, opened, embedder=embedder, k=k)
    state = stored_state(sink)
    if not stands_beside(embedder, state):
        raise SinkError(describe_other_model(state, sink.name, embedder, "search"))
    return sink.search(embedder.encode_query(question), k)


def check_query(question: object, k: object) -> None:
    """Check what is searched for and how many rows are wanted.

    Raises:
        ConfigError: the question is no text or empty, or `k` is less than 1.
    """
    if not isinstance(question, str):
        raise ConfigError(f"question = {shown(question)}; it must be a str")
    if not question.strip():
        raise ConfigError(
            f"question = {shown(question)}; it is empty, and any row would be an answer"
        )
    if not is_count(k) or k < 1:
        raise ConfigError(f"k = {shown(k)}; it must be a whole number of at least 1")
