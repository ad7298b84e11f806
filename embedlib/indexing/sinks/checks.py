"""What a sink refuses: rows of another model, and vectors that must not be stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from embedlib.errors import SinkError
from embedlib.indexing.rows import model_digest
from embedlib.indexing.sinks.protocol import OtherModelError, Sink, SinkState, SparseModel, Target
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import SparseVector

WAYS: Final = (
    "choose another destination, recreate=True (--recreate) to drop these rows and start over, or "
    "in Postgres, on a Qdrant server or in jsonl:, npy: and parquet: files replace=True "
    "(--replace) to keep them for searches until the others are loaded"
)
"""What may be done where the stored rows are of another model."""


def check_target(state: SinkState | None, target: Target, name: str) -> None:
    """Refuse to write into a destination that does not match; `Sink.begin` calls this.

    Raises:
        SinkError: dimension or similarity differ; the message says how to continue.
        OtherModelError: only the fingerprint differs.
    """
    if state is None or target.recreate:
        return
    if state.dim != target.dim:
        raise SinkError(
            f"{name} holds vectors of {state.dim} dimensions and the model makes {target.dim}; "
            f"{WAYS}"
        )
    if state.similarity != target.similarity:
        raise SinkError(
            f"{name} compares by {state.similarity} and the model by {target.similarity}; {WAYS}"
        )
    _check_sparse(state.sparse, target.sparse, name)
    if model_digest(state.fingerprint) != model_digest(target.fingerprint):
        raise OtherModelError(
            f"{name} was made by {state.model!r} with fingerprint {state.fingerprint}, this is "
            f"{target.model!r} with {target.fingerprint}; use the same model and options, {WAYS}",
            state,
        )


def _check_sparse(stored: SparseModel | None, wanted: SparseModel | None, name: str) -> None:
    """Refuse other sparse vectors than those that are stored."""
    if stored is None and wanted is None:
        return
    if wanted is None or stored is None:
        what = "no sparse vectors" if stored is None else f"sparse vectors of {stored.model!r}"
        way = "leave sparse out" if stored is None else "pass the same model with sparse (--sparse)"
        raise SinkError(f"{name} holds {what}; {way}, {WAYS}")
    if model_digest(stored.fingerprint) != model_digest(wanted.fingerprint):
        raise SinkError(
            f"{name} holds sparse vectors of {stored.model!r} with fingerprint "
            f"{stored.fingerprint}, this is {wanted.model!r} with {wanted.fingerprint}; use the "
            f"same model and options (max_active_dims is one), {WAYS}"
        )


def check_weights(
    weights: Sequence[SparseVector], num_rows: int, model: SparseModel | None
) -> None:
    """Refuse sparse vectors that must not be stored; `SparseSink.write_both` calls this.

    Args:
        weights: float32 each, as destinations store them.
        num_rows: for so many rows.
        model: of the destination, from `Target.sparse`: token ids are below its `dim`.

    Raises:
        SinkError: there are too few or too many, a weight is not finite and above 0 in float32, or
            a token id is out of range, or the destination holds none.
    """
    if model is None:
        raise SinkError("sparse vectors are written where `begin` was told of none")
    if len(weights) != num_rows:
        raise SinkError(f"there are {len(weights)} sparse vectors for {num_rows} rows")
    for row, vector in enumerate(weights):
        with np.errstate(over="ignore"):
            stored = np.fromiter(vector.values(), np.float32, len(vector))
        if not ((stored > 0) & (stored < np.inf)).all():
            raise SinkError(
                f"sparse vector {row} of the batch has a weight that is not a float32 above 0"
            )
        if vector and not 0 <= min(vector) <= max(vector) < model.dim:
            raise SinkError(
                f"sparse vector {row} of the batch has a token id beyond 0 to {model.dim - 1}"
            )


def check_takes_multi_vectors(sink: Sink, target: Target) -> None:
    """Refuse to write a vector per token into a destination that stores one vector per row.

    Raises:
        SinkError: it does.
    """
    if target.multi_vector is not None and not getattr(sink, "takes_multi_vectors", False):
        raise SinkError(
            f"{sink.name} stores one vector per row, and {target.model!r} makes one per token; "
            "load into qdrant:// or edge:, or take a model with one vector per text"
        )


def check_vectors(vectors: Vectors | Sequence[Vectors], num_rows: int, dim: int) -> None:
    """Refuse vectors that must not be stored; `Sink.write` calls this.

    Args:
        vectors: float32[N, D], or a list of float32[T, D].
        num_rows: N.
        dim: D.

    Raises:
        SinkError: the shape is wrong, or a number is not finite.
    """
    if not isinstance(vectors, np.ndarray):
        if len(vectors) != num_rows:
            raise SinkError(f"there are vectors of {len(vectors)} rows, not of {num_rows}")
        for each in vectors:
            check_vectors(each, max(len(each), 1), dim)
        return
    if vectors.shape != (num_rows, dim):
        raise SinkError(f"vectors have shape {vectors.shape}, not ({num_rows}, {dim})")
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise SinkError(f"vector {row} of the batch holds NaN or infinity; nothing was written")
