"""Sparse vectors beside the others: who makes them, who holds them, and two searches as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeGuard
from uuid import UUID

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing.embedders import ModelIdentity, SparseEmbedder, check_embedder
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.rows import model_digest
from embedlib.indexing.sinks.abilities import SparseSink
from embedlib.indexing.sinks.protocol import Hit, Sink, SinkState, SparseModel, Target
from embedlib.indexing.stored_model import name_to_store

TOKEN_ROWS: Final = 128
"""Rows in flight at most where vectors are made of a vector of every token, which take 2 MB for a
text of 512 tokens."""
RRF_RANK: Final = 60
"""Source: Cormack, Clarke, Buettcher, Reciprocal Rank Fusion (SIGIR 2009), section 2: k = 60."""
ARM_ROWS: Final = 100
"""Rows that each of two searches finds at least before they are fused."""


def can_hold(sink: Sink) -> TypeGuard[SparseSink]:
    """Whether a destination can hold sparse vectors."""
    return hasattr(sink, "write_both") and hasattr(sink, "search_sparse")


def sparse_sink(sink: Sink) -> SparseSink:
    """Return a destination as one that holds sparse vectors.

    Raises:
        SinkError: it cannot.
    """
    if not can_hold(sink):
        raise SinkError(
            f"{sink.name} cannot hold sparse vectors; leave sparse out, or choose a destination of "
            "Qdrant or Postgres"
        )
    return sink


def check_beside(sink: Sink, target: Target) -> None:
    """Check that a destination holds sparse vectors beside those of a load.

    Raises:
        SinkError: it does not.
    """
    sparse_sink(sink)
    if target.multi_vector is not None:
        raise SinkError(
            f"{sink.name}: sparse vectors stand beside one vector per row, and {target.model!r} "
            "makes one per token; leave sparse out, or take a model with one vector per text"
        )


def sparse_model(embedder: SparseEmbedder) -> SparseModel:
    """Return what is stored of the model of the sparse vectors.

    Raises:
        ConfigError: it lacks a member of `SparseEmbedder`, or makes no sparse vectors.
    """
    check_embedder(embedder, SparseEmbedder, "sparse")
    try:
        embedder.encode_query("a", output_value="sparse")  # or a load would begin and then fail
    except ConfigError as error:
        why = str(error).removeprefix("output_value = 'sparse': ")  # no argument of the load
        raise ConfigError(f"sparse (--sparse) = {embedder.model_name!r}: {why}") from error
    dim = embedder.get_embedding_dimension()
    if isinstance(embedder, Embedder):
        dim = embedder.sparse_dim
    return SparseModel(model=name_to_store(embedder), fingerprint=embedder.fingerprint, dim=dim)


def most_rows(embedder: SparseEmbedder | None, options: IndexOptions) -> int:
    """Return how many rows may be in flight."""
    of_tokens = isinstance(embedder, Embedder) and not embedder.spec.is_sparse
    is_bounded = of_tokens or options.late_chunking
    return min(options.batch_rows, TOKEN_ROWS) if is_bounded else options.batch_rows


def stored_sparse(state: SinkState, name: str) -> SparseModel:
    """Return the model of a destination's sparse vectors.

    Raises:
        SinkError: it holds none.
    """
    if state.sparse is None:
        raise SinkError(
            f"{name} holds no sparse vectors, which hybrid search needs; load it with sparse "
            "(embedlib index --sparse MODEL), or leave hybrid out"
        )
    return state.sparse


def has_made(embedder: ModelIdentity, stored: SparseModel) -> bool:
    """Return whether an embedder is the model of stored sparse vectors."""
    return model_digest(embedder.fingerprint) == model_digest(stored.fingerprint)


def check_stored(embedder: SparseEmbedder, stored: SparseModel, name: str) -> None:
    """Refuse another sparse model than that of the stored rows.

    Raises:
        SinkError: it is another.
    """
    if not has_made(embedder, stored):
        raise SinkError(
            f"{name} holds sparse vectors of {stored.model!r} with fingerprint "
            f"{stored.fingerprint}, this is {embedder.model_name!r} with {embedder.fingerprint}; "
            "search with the same model and options, such as --max-active-dims N, or "
            "sparse=Embedder(MODEL, max_active_dims=N) in Python, if it was loaded so"
        )


def fuse(arms: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Return the first `k` rows of several answers, by reciprocal rank fusion.

    A row's score is the sum of 1 / (60 + rank) over the answers that it is in, ranks from 1; of
    equal scores the lower id comes first.
    """
    scores: dict[UUID, float] = {}
    hits: dict[UUID, Hit] = {}
    for arm in arms:
        for rank, hit in enumerate(arm, 1):
            scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (RRF_RANK + rank)
            hits.setdefault(hit.id, hit)
    best = sorted(scores, key=lambda id_: (-scores[id_], id_))[:k]
    return [replace(hits[id_], score=scores[id_]) for id_ in best]
