"""Asking a destination a question: the other end of a bulk load."""

from __future__ import annotations

from contextlib import closing

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing.rows import model_digest
from embedlib.indexing.sinks import Hit, Sink, SinkState, open_sink


def stored_state(sink: Sink) -> SinkState:
    """Return what a destination holds.

    Raises:
        SinkError: nothing.
    """
    state = sink.inspect()
    if state is None:
        raise SinkError(f"{sink.name} holds nothing; load it with embedlib index")
    return state


def search(question: str, sink: str | Sink, *, embedder: Embedder, k: int = 10) -> list[Hit]:
    """Return the `k` rows nearest to a question, best first.

    Args:
        question: embedded on the query lane with the model's prompt for queries.
        sink: where to look: a URL, or a `Sink`, which stays open.
        embedder: must be the one the rows were made with.
        k: how many rows.

    Raises:
        ConfigError: `k` is not at least 1.
        SinkError: the destination cannot be read or was made by another model.
    """
    if k < 1:
        raise ConfigError(f"k = {k}; it must be at least 1")
    if isinstance(sink, str):
        with closing(open_sink(sink)) as opened:
            return search(question, opened, embedder=embedder, k=k)
    state = stored_state(sink)
    if model_digest(state.fingerprint) != model_digest(embedder.fingerprint):
        raise SinkError(
            f"{sink.name} was made by {state.model!r} with fingerprint {state.fingerprint}, this "
            f"is {embedder.model_name!r} with {embedder.fingerprint}; search with the same model "
            "and options"
        )
    return sink.search(embedder.encode_query(question), k)
