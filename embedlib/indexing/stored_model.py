"""The model noted in a destination, and how an embedder at hand differs from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

from embedlib.config import Config, PrecisionName
from embedlib.embedder import Embedder
from embedlib.errors import EmbedlibError, ModelNotFoundError, SinkError
from embedlib.indexing.embedders import ModelIdentity
from embedlib.indexing.rows import model_digest
from embedlib.indexing.sinks.protocol import SinkState, Tell
from embedlib.models.reading.pack_file import is_pack


def name_to_store(embedder: ModelIdentity) -> str:
    """Return the model's name to store.

    A folder or a pack gets an absolute path, to be found from anywhere.
    """
    return _whole_name(embedder.model_name)


def _whole_name(name: str) -> str:
    is_path = os.path.isdir(name) or is_pack(Path(name))
    return os.path.abspath(name) if is_path else name


def are_same_model(first: str, second: str) -> bool:
    """Return whether two names are of one model, of which a folder has several."""
    return _whole_name(first) == _whole_name(second)


def config_beside_sparse(config: Config, model: str, sparse: str | None) -> Config:
    """Return the options of a model beside which another one makes the sparse vectors.

    `max_active_dims` is meant for that one; here it would only change the fingerprint.

    Args:
        config: the options that a caller gives for both.
        model: its name.
        sparse: the name of the other; the same if one model makes both, None if there is none.
    """
    if sparse is not None and are_same_model(sparse, model):
        return config
    return replace(config, max_active_dims=None)


def precision_to_store(embedder: ModelIdentity) -> str | None:
    """Return what an embedder computes in, if it says so; no protocol asks for it."""
    precision = getattr(embedder, "precision", None)
    return precision if isinstance(precision, str) else None


def stands_beside(embedder: ModelIdentity, state: SinkState) -> bool:
    """Return whether an embedder's vectors belong to those that a destination holds.

    Either the fingerprints agree, or an `Embedder` knows that of the destination as one of a
    precision that passed the same gate.
    """
    return model_digest(state.fingerprint) in map(model_digest, fingerprints_of(embedder))


def fingerprints_of(embedder: ModelIdentity) -> tuple[str, ...]:
    """Return the fingerprints of rows that an embedder's vectors may stand beside, its own first.

    A stand-in for an `Embedder` has only its own.
    """
    if isinstance(embedder, Embedder):
        return embedder.fingerprints
    return (embedder.fingerprint,)


@contextmanager
def naming_the_moved(name: str, stored: str | None, option: str) -> Iterator[None]:
    """Load a model; of one that is not found, say who knows it, since nobody typed its name.

    Args:
        name: of the destination.
        stored: the model that it knows and that is loaded; None: it is the caller's.
        option: what takes another name of it.

    Raises:
        ModelNotFoundError: the model is not found.
    """
    try:
        yield
    except ModelNotFoundError as error:
        if stored is None:
            raise
        raise ModelNotFoundError(
            f"{name} was made by {stored!r}, which is not found here: {error}; if it has another "
            f"path or name now, pass that as {option}"
        ) from error


def open_embedder(
    model: str, config: Config, state: SinkState | None, name: str, tell: Tell
) -> Embedder:
    """Load a model whose vectors stand beside the stored ones.

    With precision="auto" that is what `auto` takes, or if its vectors do not belong to the rows,
    the precision that these were made in.

    Args:
        model: its name.
        config: its options.
        state: what is stored; None: nothing that the vectors must fit.
        name: of the destination.
        tell: called with a line if `auto` takes another precision for this destination.

    Raises:
        SinkError: that precision is not available here.
        what `Embedder` raises.
    """
    is_stored = state is not None and model == state.model
    with naming_the_moved(name, model if is_stored else None, "embedder= (--model)"):
        embedder = Embedder(model, config=config)
    if state is None or config.precision != "auto":
        return embedder
    try:
        made_in = _followed_precision(state, embedder)
        own = embedder.precision
    except BaseException:
        embedder.close()
        raise
    if made_in is None:
        return embedder
    embedder.close()  # before the next one takes its memory
    tell(f"{name} was made in {made_in}, which is used instead of {own}")
    try:
        return Embedder(model, config=replace(config, precision=made_in))
    except EmbedlibError as error:
        raise SinkError(
            f"{name} was made in {made_in}, which is not available here: {error}"
        ) from error


def _followed_precision(state: SinkState, embedder: Embedder) -> PrecisionName | None:
    """Return the precision to load the model in again; None: that would not help."""
    if state.dim != embedder.get_embedding_dimension() or stands_beside(embedder, state):
        return None
    return _precision_of(state, embedder)


def describe_other_model(state: SinkState, name: str, embedder: ModelIdentity, verb: str) -> str:
    """Say why an embedder's vectors do not belong to the stored ones, and what to do.

    Args:
        state: what is stored, with another fingerprint than the embedder's.
        name: of the destination.
        embedder: the one at hand. Only of an `Embedder` is it known which option differs.
        verb: what the caller wants to do: "load" or "search".
    """
    dim = embedder.get_embedding_dimension()
    if state.dim != dim:
        return (
            f"{name} was made by {state.model!r} with {state.dim} dimensions, this is "
            f"{embedder.model_name!r} with {dim}; {verb} with the same model and truncate_dim "
            "(--truncate-dim)"
        )
    if isinstance(embedder, Embedder):
        found = _describe_options(state, name, embedder, verb)
        if found is not None:
            return found
    return (
        f"{name} was made by {state.model!r} with fingerprint {state.fingerprint}, this is "
        f"{embedder.model_name!r} with {embedder.fingerprint}; {verb} with the same model and "
        "options"
    )


def _describe_options(state: SinkState, name: str, embedder: Embedder, verb: str) -> str | None:
    """Say which option may differ; None: another model."""
    config = embedder.config
    made_in = _precision_of(state, embedder)
    if made_in is not None:
        why = ", which precision='auto' takes here" if config.precision == "auto" else ""
        return (
            f"{name} was made in {made_in}, this is {embedder.precision}{why}; "
            f"pass precision={made_in!r} (--precision {made_in})"
        )
    if state.model != name_to_store(embedder):
        return None
    options = {
        "max_seq_tokens": embedder.max_seq_length,
        "truncate_dim": config.truncate_dim,
        "max_active_dims": config.max_active_dims,
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
    """Return the precision in which the embedder's model would have the stored fingerprint."""
    # A digest cannot be read backwards, so every precision is tried.
    wanted = model_digest(state.fingerprint)
    precisions: tuple[PrecisionName, ...] = get_args(PrecisionName)
    for precision in precisions:
        guess = None if precision == "auto" else embedder.fingerprint_in(precision)
        if guess is not None and model_digest(guess) == wanted:
            return precision
    return None
