"""The sink protocol: what a destination must do, and the types its methods use.

A sink is an object with the methods of `Sink`. An installed package offers one for a URL scheme
with an entry point of the group `embedlib.sinks`: its name is the scheme, its value a function from
`SinkUrl` to `Sink`. `embedlib.testing.check_sink` tests a sink against this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.config import LateSimilarity, Similarity
from embedlib.errors import SinkError
from embedlib.indexing.rows import BadRow, Row, model_digest
from embedlib.vectors.arrays import Vectors

Tell = Callable[[str], None]
"""Takes one line for the user: a notice, a retry, the progress of an index build."""


def tell_nobody(_: object) -> None:
    """Ignore what a load tells: a `Tell` for those who do not ask, and an `on_progress`."""


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
class Description:
    """What rows were made by and how they are compared; a sink stores it with them.

    Attributes:
        dim: D of the vectors.
        similarity: how they are compared.
        fingerprint: of the embedder; a destination holds vectors of one fingerprint only.
        model: the name the embedder was loaded by; `embedlib search` loads the same one.
        precision: what it computed in; None: it did not say. For `embedlib status`, the fingerprint
            decides.
        sparse: the model of the sparse vectors; None: there are none.
        full_text: the language of the full-text index; None: there is none.
    """

    dim: int
    similarity: Similarity
    fingerprint: str
    model: str
    precision: str | None = None
    sparse: SparseModel | None = None
    full_text: str | None = None

    def described(self) -> dict[str, Any]:
        """Return these fields alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(Description)}

    def to_state(self, num_rows: int, index: str) -> SinkState:
        """Return the state of a destination: this, and values that only its engine knows."""
        return SinkState(num_rows=num_rows, index=index, **self.described())


@dataclass(frozen=True, kw_only=True)
class Target(Description):
    """What a load is about to write.

    With `full_text`, which only a `TextSink` gets, the index is made if the rows have none in this
    language; None: what is there stays.

    Attributes:
        recreate: drop the stored rows first.
        shard: "I/N", or another name of a part, if this load is one of several that may run at
            the same time; None: the only one.
        multi_vector: how rows with a vector per token are compared; None: a row has one vector.
            Only sinks with `takes_multi_vectors = True` get others.
    """

    recreate: bool = False
    shard: str | None = None
    multi_vector: LateSimilarity | None = None

    @property
    def rows_fingerprint(self) -> str:
        """Of everything that a row is made by: both models, if there are two."""
        if self.sparse is None:
            return self.fingerprint
        return f"{self.fingerprint}+{model_digest(self.sparse.fingerprint)}"


@dataclass(frozen=True, kw_only=True)
class SinkState(Description):
    """What a destination holds now.

    Attributes:
        num_rows: stored rows.
        index: state of the search index in words, such as "hnsw" or "none, exact scan".
    """

    num_rows: int
    index: str


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
    then write themselves. It may have `output_paths`: the files it writes, which `index` refuses as
    input and as errors file. It may have `identify`, where to count rows takes long: that returns
    what `inspect` does, with `num_rows=0`, and is all that a search needs.
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


def identify(sink: Sink) -> SinkState | None:
    """Return which models made the rows of a destination; they may not be counted."""
    state: SinkState | None = getattr(sink, "identify", sink.inspect)()
    return state


def count_stored(sink: Sink) -> int:
    """Return how many rows a destination holds."""
    state = sink.inspect()
    return 0 if state is None else state.num_rows


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
