"""`FakeSink`: a destination in memory that fails on demand; for tests of code around sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.indexing.filters.expression import Filter, matcher
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.checks import check_target, check_vectors
from embedlib.indexing.sinks.protocol import Hit, RowKey, SinkState, Target, Tell
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.similarity import similarity


@dataclass
class FakeStore:
    """What remains when a FakeSink is closed or its writer is killed."""

    target: Target | None = None
    rows: dict[UUID, Row] = field(default_factory=dict)
    vectors: dict[UUID, NDArray[np.float32]] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Name and number of rows of every call that changes the store, in order."""
    is_locked: bool = False
    position: str | None = None
    """What `save_position` stored."""


class FakeSink:
    """A sink that writes to a FakeStore."""

    name = "fake:"

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self._failures: list[BaseException | None] = []
        self._has_lock = False

    def fail(self, *errors: BaseException | None) -> None:
        """Raise these errors in the next calls of `write`, one per call; None: no error."""
        self._failures += errors

    def inspect(self) -> SinkState | None:
        """Return what is stored."""
        target = self.store.target
        if target is None:
            return None
        return target.to_state(len(self.store.rows), "none, exact scan")

    def begin(self, target: Target, tell: Tell) -> None:
        """Take the lock."""
        if self.store.is_locked:
            raise SinkError(f"{self.name} is being written by another sink; wait for its end")
        check_target(self.inspect(), target, self.name)
        self.store.is_locked = self._has_lock = True
        if target.recreate:
            self.store.rows.clear()
            self.store.vectors.clear()
            self.store.position = None
        self.store.target = replace(target, recreate=False)
        self.store.calls.append(("begin", 0))

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        return {id_: self.store.rows[id_].digest for id_ in ids if id_ in self.store.rows}

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Insert or replace rows."""
        error = self._failures.pop(0) if self._failures else None
        if error is not None:
            raise error
        assert self.store.target is not None, "write before begin"
        check_vectors(vectors, len(rows), self.store.target.dim)
        self.store.calls.append(("write", len(rows)))
        for row, vector in zip(rows, vectors, strict=True):
            self.store.rows[row.id] = row
            self.store.vectors[row.id] = vector.copy()

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace rows, not their vectors."""
        self.store.calls.append(("write_metadata", len(rows)))
        for row in rows:
            self.store.rows[row.id] = row

    def scan(self) -> Iterator[RowKey]:
        """Yield every row."""
        for row in list(self.store.rows.values()):
            yield RowKey(id=row.id, source_id=row.source_id, chunk=row.chunk)

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows."""
        self.store.calls.append(("delete", len(ids)))
        for id_ in ids:
            self.store.rows.pop(id_, None)
            self.store.vectors.pop(id_, None)

    def finish(self) -> None:
        """Record the call."""
        self.store.calls.append(("finish", 0))

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Compare the vector with every row."""
        return self._search(vector, k, list(self.store.rows))

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Compare the vector with every row that passes the filter."""
        accepts = matcher(where)
        ids = [id_ for id_, row in self.store.rows.items() if accepts(row.metadata)]
        return self._search(vector, k, ids)

    def _search(self, vector: NDArray[np.float32], k: int, ids: list[UUID]) -> list[Hit]:
        target = self.store.target
        if target is None or not ids:
            return []
        vectors = np.stack([self.store.vectors[id_] for id_ in ids])
        scores = similarity(target.similarity, vector, vectors)[0]
        hits = []
        for number in np.argsort(-scores)[:k].tolist():
            row = self.store.rows[ids[number]]
            hits.append(
                Hit(
                    score=float(scores[number]),
                    id=row.id,
                    source_id=row.source_id,
                    chunk=row.chunk,
                    text=row.text,
                    metadata=row.metadata,
                )
            )
        return hits

    def load_position(self) -> str | None:
        """Return what was saved."""
        return self.store.position

    def save_position(self, position: str | None) -> None:
        """Store it."""
        self.store.calls.append(("save_position", 0))
        self.store.position = position

    def close(self) -> None:
        """Release the lock."""
        if self._has_lock:
            self.store.is_locked = self._has_lock = False
