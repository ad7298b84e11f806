"""The sink protocol: what a destination must do, and the types its methods use.

A sink is an object with the methods of `Sink`. An installed package offers one for a URL scheme
with an entry point of the group `embedlib.sinks`: its name is the scheme, its value a function from
`SinkUrl` to `Sink`. `embedlib.testing.check_sink` tests a sink against this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.config import LateSimilarity, Similarity
from embedlib.errors import SinkError
from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.rows import BadRow, Row, model_digest
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import SparseVector

Tell = Callable[[str], None]
"""Takes one line for the user: a notice, a retry, the progress of an index build."""


@dataclass(frozen=True, kw_only=True)
class SparseModel:
    """The model that makes the sparse vectors beside the others.

    Attributes:
        model: its name.
        fingerprint: of it.
        dim: numbers of a sparse vector, most of them 0.
    """

    model: str
    fingerprint: str
    dim: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a load is about to write.

    Attributes:
        dim: D of the vectors.
        similarity: how they are compared.
        fingerprint: of the embedder; a destination holds vectors of one fingerprint only.
        model: the name the embedder was loaded by; `embedlib search` loads the same one.
        recreate: drop the stored rows first.
        shard: "I/N", or another name of a part, if this load is one of several that may run at
            the same time; None: the only one.
        precision: what the embedder computes in; None: it does not say. For `embedlib status`, the
            fingerprint decides.
        multi_vector: how rows with a vector per token are compared; None: a row has one vector.
            Only sinks with `takes_multi_vectors = True` get others.
        sparse: the model of the sparse vectors; None: there are none.
        full_text: the language of the full-text index to make, if the rows have none in it; None:
            what is there stays. Only a `TextSink` gets one.
    """

    dim: int
    similarity: Similarity
    fingerprint: str
    model: str
    recreate: bool = False
    shard: str | None = None
    precision: str | None = None
    multi_vector: LateSimilarity | None = None
    sparse: SparseModel | None = None
    full_text: str | None = None

    @property
    def rows_fingerprint(self) -> str:
        """Of everything that a row is made by: both models, if there are two."""
        if self.sparse is None:
            return self.fingerprint
        return f"{self.fingerprint}+{model_digest(self.sparse.fingerprint)}"


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """What a destination holds now.

    Attributes:
        num_rows: stored rows.
        dim: D of the vectors.
        similarity: how they are compared.
        fingerprint: of the embedder that made them.
        model: its name.
        index: state of the search index in words, such as "hnsw" or "none, exact scan".
        precision: what the vectors were computed in; None: it was not stored.
        sparse: the model of the sparse vectors; None: there are none.
        full_text: the language of the full-text index; None: there is none.
    """

    num_rows: int
    dim: int
    similarity: Similarity
    fingerprint: str
    model: str
    index: str
    precision: str | None = None
    sparse: SparseModel | None = None
    full_text: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowKey:
    """Which chunk of which document a stored row is."""

    id: UUID
    source_id: str
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """One search result; the score is its similarity to the query, higher is better."""

    score: float
    id: UUID
    source_id: str
    chunk: int
    text: str
    metadata: Mapping[str, Any]


class Sink(Protocol):
    """A destination: a table, a collection, a file.

    The methods are called from one thread at a time, which may change between calls. `inspect`,
    `search` and `digests` must work on a new sink object if `inspect` finds rows; the other methods
    are called only after `begin`. Every method raises `SinkError` with a one-line message that
    names the destination without its password and says what to do. A sink never changes or drops
    anything that embedlib did not create.

    A sink may have `is_shared = True`: it is a server that other machines reach under the same URL,
    and `begin` admits several writers, each with another `Target.shard`. The workers of a cluster
    then write themselves.
    """

    @property
    def name(self) -> str:
        """The destination as a user would write it, without secrets."""

    def inspect(self) -> SinkState | None:
        """Return what is stored, or None if nothing is. Changes nothing and takes no lock.

        Also called between `begin` and `finish`: `index` counts the rows to see whether the
        destination has others than those of the source.

        Raises:
            SinkError: embedlib did not create what is there, or it cannot be read.
        """

    def begin(self, target: Target, tell: Tell) -> None:
        """Become the only writer and prepare the destination for rows of `target`.

        Creates what is missing, repairs what a killed writer left behind, and calls `check_target`
        on what is stored. Any later method may call `tell`. With `target.shard` a sink may admit
        writers of other shards. After an error `close` is called all the same.

        Raises:
            SinkError: another writer is active, or the stored rows do not match `target`.
        """

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return `Row.digest` by id for those of these rows that are stored."""

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Insert rows, or replace those with the same id; they are durable when this returns.

        If the process is killed before it returns, each row is stored whole or unchanged.

        Args:
            rows: at most a few thousand, all ids different.
            vectors: float32[N, D], finite; of a target with `multi_vector` a list of N arrays,
                float32[T, D].
        """

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest of rows, not their vectors; unknown ids are ignored."""

    def scan(self) -> Iterator[RowKey]:
        """Yield every stored row in bounded memory; rows are deleted only after it has ended."""

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows; unknown ids are ignored."""

    def finish(self) -> None:
        """Make the rows ready for search: build the index, write the final file.

        Called once, after the last row, and not after a failed load. Returns quickly if no row
        changed.
        """

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the `k` rows nearest to float32[D], best first; all rows if there are fewer."""

    def close(self) -> None:
        """Release the lock and all connections; may be called twice and after a failed `begin`."""


class FilteringSink(Sink, Protocol):
    """A sink that can also search among the rows that pass a filter."""

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Return the `k` nearest of the rows that `matcher(where)` accepts, best first.

        There are fewer only if fewer pass the filter. What a filter means is said by
        `embedlib.indexing.matcher`, which a sink may also use: it decides of a row's metadata.
        """


class OtherModelError(SinkError):
    """The stored rows were made by another model, or with other options.

    Attributes:
        state: what is stored; callers that know the embedder use it to say what differs.
    """

    def __init__(self, message: str, state: SinkState) -> None:
        super().__init__(message)
        self.state = state


class UnreachableSinkError(SinkError):
    """The destination does not answer now; the same call may succeed later."""


class UnstorableRowsError(SinkError):
    """The destination cannot store some rows of a call; it has stored all others.

    `Sink.write` and `Sink.write_metadata` may raise it; a load counts the rows as bad rows.

    Attributes:
        bad_rows: those rows, and why.
    """

    def __init__(self, name: str, bad_rows: Sequence[BadRow]) -> None:
        first = bad_rows[0]
        super().__init__(
            f"{name} cannot store {len(bad_rows)} of these rows; the first is {first.place}: it "
            f"{first.reason}"
        )
        self.bad_rows = bad_rows


def check_target(state: SinkState | None, target: Target, name: str) -> None:
    """Refuse to write into a destination that does not match; `Sink.begin` calls this.

    Raises:
        SinkError: dimension or similarity differ; the message says how to continue.
        OtherModelError: only the fingerprint differs.
    """
    if state is None or target.recreate:
        return
    ways = (
        "choose another destination, recreate=True (--recreate) to drop these rows and start over, "
        "or in Postgres, on a Qdrant server or in jsonl:, npy: and parquet: files replace=True "
        "(--replace) to keep them for searches until the others are loaded"
    )
    if state.dim != target.dim:
        raise SinkError(
            f"{name} holds vectors of {state.dim} dimensions and the model makes {target.dim}; "
            f"{ways}"
        )
    if state.similarity != target.similarity:
        raise SinkError(
            f"{name} compares by {state.similarity} and the model by {target.similarity}; {ways}"
        )
    _check_sparse(state.sparse, target.sparse, name, ways)
    if model_digest(state.fingerprint) != model_digest(target.fingerprint):
        raise OtherModelError(
            f"{name} was made by {state.model!r} with fingerprint {state.fingerprint}, this is "
            f"{target.model!r} with {target.fingerprint}; use the same model and options, {ways}",
            state,
        )


def _check_sparse(
    stored: SparseModel | None, wanted: SparseModel | None, name: str, ways: str
) -> None:
    """Refuse other sparse vectors than those that are stored."""
    if stored is None and wanted is None:
        return
    if wanted is None or stored is None:
        what = "no sparse vectors" if stored is None else f"sparse vectors of {stored.model!r}"
        way = "leave sparse out" if stored is None else "pass the same model with sparse (--sparse)"
        raise SinkError(f"{name} holds {what}; {way}, {ways}")
    if model_digest(stored.fingerprint) != model_digest(wanted.fingerprint):
        raise SinkError(
            f"{name} holds sparse vectors of {stored.model!r} with fingerprint "
            f"{stored.fingerprint}, this is {wanted.model!r} with {wanted.fingerprint}; use the "
            f"same model and options (max_active_dims is one), {ways}"
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
