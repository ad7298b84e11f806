"""Asking a destination a question: the other end of a bulk load."""

from __future__ import annotations

import os
from contextlib import closing
from typing import get_args

from embedlib.config import PrecisionName, is_count
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing.options import SEARCH_ROWS
from embedlib.indexing.rows import model_digest
from embedlib.indexing.sinks.protocol import Hit, Sink, SinkState, open_sink


def stored_state(sink: Sink) -> SinkState:
    """Return what a destination holds.

    Raises:
        SinkError: nothing.
    """
    state = sink.inspect()
    if state is None:
        raise SinkError(f"{sink.name} holds nothing; load it with embedlib index")
    return state


def search(
    question: str, sink: str | Sink, *, embedder: Embedder, k: int = SEARCH_ROWS
) -> list[Hit]:
    """Return the `k` rows nearest to a question, best first.

    Args:
        question: embedded on the query lane with the model's prompt for queries.
        sink: where to look: a URL, or a `Sink`, which stays open.
        embedder: must be the one the rows were made with.
        k: how many rows.

    Raises:
        ConfigError: an argument is of another type, or `k` is not at least 1.
        SinkError: the destination cannot be read, or was made by another model or with other
            options; says which, as far as it can be told.
    """
    check_arguments(sink, embedder)
    if not isinstance(question, str):
        raise ConfigError(f"question = {question!r:.60}; it must be a str")
    if not is_count(k) or k < 1:
        raise ConfigError(f"k = {k!r:.60}; it must be a whole number of at least 1")
    if isinstance(sink, str):
        with closing(open_sink(sink)) as opened:
            return search(question, opened, embedder=embedder, k=k)
    state = stored_state(sink)
    if model_digest(state.fingerprint) != model_digest(embedder.fingerprint):
        raise SinkError(describe_other_model(state, sink.name, embedder, "search"))
    return sink.search(embedder.encode_query(question), k)


def check_arguments(sink: object, embedder: object) -> None:
    """Refuse what is no destination, or no Embedder.

    Raises:
        ConfigError: says what it must be.
    """
    if not isinstance(sink, str) and not hasattr(sink, "begin"):
        raise ConfigError(
            f"sink = {sink!r:.60}; it must be a URL, such as 'edge:PATH' or 'jsonl:FILE', or a Sink"
        )
    if not isinstance(embedder, Embedder):
        raise ConfigError(
            f"embedder = {embedder!r:.60}; it must be an Embedder, which is made with "
            "Embedder(MODEL)"
        )


def stored_name(embedder: Embedder) -> str:
    """Return a model's name as it is stored: a search may be started in another folder."""
    name = embedder.model_name
    return os.path.abspath(name) if os.path.isdir(name) else name


def describe_other_model(state: SinkState, name: str, embedder: Embedder, verb: str) -> str:
    """Return why an Embedder's vectors do not belong to stored ones, and what to do.

    Args:
        state: what is there, with another fingerprint.
        name: of the destination.
        embedder: what was to be used.
        verb: what for.
    """
    dim = embedder.get_embedding_dimension()
    if state.dim != dim:
        return (
            f"{name} was made by {state.model!r} with {state.dim} dimensions, this is "
            f"{embedder.model_name!r} with {dim}; {verb} with the same model and truncate_dim"
        )
    made_in = _precision_of(state, embedder)
    config = embedder.config
    if made_in is not None:
        why = ", which precision='auto' takes here" if config.precision == "auto" else ""
        return (
            f"{name} was made in {made_in}, this is {embedder.precision}{why}; "
            f"pass precision={made_in!r} (--precision {made_in})"
        )
    if state.model != stored_name(embedder):
        return (
            f"{name} was made by {state.model!r} with fingerprint {state.fingerprint}, this is "
            f"{embedder.model_name!r} with {embedder.fingerprint}; {verb} with the same model and "
            "options"
        )
    options = {
        "max_seq_tokens": embedder.max_seq_length,
        "truncate_dim": config.truncate_dim,
        "on_truncate": config.on_truncate,
        "precision": embedder.precision,
        "revision": config.revision,
        "default_prompt_name": config.default_prompt_name,
        "examples": config.examples,
        "prompts": dict(embedder.prompts),
    }
    listed = ", ".join(f"{option}={value!r:.60}" for option, value in options.items())
    return (
        f"{name} was made by {state.model!r} too, but with other files or another option than "
        f"here: {listed}; {verb} with the same model and options"
    )


def _precision_of(state: SinkState, embedder: Embedder) -> PrecisionName | None:
    """Return the option `precision` with which an Embedder would have the stored fingerprint."""
    # What is stored is a digest, which cannot be read, only guessed.
    wanted = model_digest(state.fingerprint)
    precisions: tuple[PrecisionName, ...] = get_args(PrecisionName)
    for precision in precisions:
        guess = None if precision == "auto" else embedder.fingerprint_in(precision)
        if guess is not None and model_digest(guess) == wanted:
            return precision
    return None
