"""A sink on a collection of a QdrantClient: shared by a server and the client's local mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.indexing import (
    BadRow,
    Filter,
    Hit,
    Row,
    RowKey,
    SinkState,
    SparseVector,
    Target,
    Tell,
    UnstorableRowsError,
    Vectors,
    check_target,
    check_vectors,
    check_weights,
    import_extra,
)
from embedlib_qdrant.collection_options import OVERSAMPLING, GivenOptions
from embedlib_qdrant.filters import ClientConditions, make_filter, search_filtered
from embedlib_qdrant.points import (
    OWN_KEY,
    SOURCE_ID_KEY,
    SPARSE_NAME,
    Mark,
    metadata_payload,
    read_digest,
    read_hit,
    read_key,
)
from embedlib_qdrant.upserts import BATCH, describe_bad_row, find_big_number

MARK_KEY = "embedlib"
"""Key in the collection's metadata."""
_PAGE = 1000
"""Points per read request."""

T = TypeVar("T")


class CollectionSink:
    """A collection; a subclass connects, locks, creates and indexes it."""

    takes_multi_vectors = True

    def __init__(self, name: str, collection: str, given: GivenOptions) -> None:
        self.name = name
        self.models = import_extra("qdrant_client.models", "qdrant")
        self.collection = collection
        self.given = given
        self.tell: Tell | None = None
        self._mark: Mark | None = None
        self._has_begun = False

    # Methods of a subclass.

    def connect(self) -> Any:
        """Return the QdrantClient, created at the first call."""
        raise NotImplementedError

    def call(self, action: Callable[[], T]) -> T:
        """Return the result of a request; convert its errors to `SinkError`."""
        raise NotImplementedError

    def lock(self, shard: str | None) -> None:
        """Become the only writer, or the only writer of this shard of the source."""
        raise NotImplementedError

    def create(self, mark: Mark) -> None:
        """Create the collection."""
        raise NotImplementedError

    def drop(self) -> None:
        """Remove the collection."""
        self.call(lambda: self.connect().delete_collection(self.collection))

    def settle(self, ids: Sequence[UUID] | None = None) -> None:
        """Wait until written rows can be read; these ids, None: all."""

    def take_lease(self) -> None:
        """Become the only writer of a collection that exists; called once more if it is new."""

    def check_lease(self) -> None:
        """Raise an error if another writer has taken over."""

    def store(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector] | None
    ) -> None:
        """Send rows with checked vectors, and wait until they are durable."""
        raise NotImplementedError

    def inspect(self) -> SinkState | None:
        """Return what is stored."""
        raise NotImplementedError

    def finish(self) -> None:
        """Make the rows ready for search."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Release the lock and the connection; may be called twice."""
        raise NotImplementedError

    # Shared methods.

    def begin(self, target: Target, tell: Tell) -> None:
        """Become the only writer, and open or create the collection."""
        self.tell = tell
        self.lock(target.shard)
        mark = self.read_mark()
        if mark is not None and not target.recreate:
            # Number of rows and state of the index are not compared.
            check_target(mark.to_state(0, ""), target, self.name)
            self.given.check_stored(mark.options, self.name)
        if mark is not None:
            self.take_lease()
        if mark is not None and target.recreate:
            self.drop()
            mark = None
        if mark is None:
            mark = Mark.of(target, self.given.options)
            self.create(mark)
            self.take_lease()
        self._mark = mark
        self._has_begun = True

    def close(self) -> None:
        """Release the lock and the connection."""
        self._mark = None
        self._has_begun = False
        self.disconnect()

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        self.require_stored()
        self.settle(ids)
        found = {}
        for page in _slices([str(row_id) for row_id in ids], _PAGE):
            for record in self.call(lambda page=page: self._retrieve(page)):  # type: ignore[misc]
                digest = read_digest(record.payload)
                if digest is not None:
                    found[UUID(str(record.id))] = digest
        return found

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Upsert rows; each request is atomic, and repeating one changes nothing."""
        check_vectors(vectors, len(rows), self.require_begin().dim)
        self.check_lease()
        self.store(rows, vectors, None)

    def write_both(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector]
    ) -> None:
        """Upsert rows with their sparse vectors, each in the point of its row."""
        check_vectors(vectors, len(rows), self.require_begin().dim)
        check_weights(weights, len(rows))
        self.check_lease()
        self.store(rows, vectors, weights)

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest."""
        self.require_begin()
        self.check_lease()
        # Qdrant raises an error for unknown ids.
        stored = self.digests([row.id for row in rows])
        bad_rows = list[BadRow]()
        for part in _slices([row for row in rows if row.id in stored], BATCH):
            changes = self._metadata_changes(part, bad_rows)
            if changes:
                self.call(
                    lambda changes=changes: self.connect().batch_update_points(  # type: ignore[misc]
                        self.collection, changes, wait=True
                    )
                )
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def scan(self) -> Iterator[RowKey]:
        """Yield every row."""
        self.require_stored()
        self.settle()
        offset = None
        while True:
            records, offset = self.call(lambda offset=offset: self._scroll(offset))  # type: ignore[misc]
            for record in records:
                key = read_key(record.id, record.payload)
                if key is not None:
                    yield key
            if offset is None:
                return

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows."""
        self.require_begin()
        self.settle()
        self.check_lease()
        for page in _slices([str(row_id) for row_id in ids], _PAGE):
            selector = self.models.PointIdsList(points=page)
            self.call(
                lambda selector=selector: self.connect().delete(  # type: ignore[misc]
                    self.collection, selector, wait=True
                )
            )

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the nearest rows."""
        return self.query(vector, k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Return the nearest of the rows that pass a filter."""
        return search_filtered(
            lambda limit, wide: self.query(vector, limit, wide), k, where, self.name
        )

    def search_sparse(self, weights: SparseVector, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows with the greatest sums of products; none of 0."""
        if where is None:
            return self.query(weights, k, None)
        return search_filtered(
            lambda limit, wide: self.query(weights, limit, wide), k, where, self.name
        )

    def query(
        self, vector: NDArray[np.float32] | SparseVector, k: int, where: Filter | None
    ) -> list[Hit]:
        """Return the nearest points, by the vectors or by the sparse ones."""
        mark = self.require_stored()
        is_sparse = isinstance(vector, dict)
        query = self.sparse_of(vector) if isinstance(vector, dict) else vector.tolist()
        self.settle()
        passes = self.only_ours()
        if where is not None:
            passes.must = [make_filter(where, ClientConditions(self.models))]

        def ask(is_exact: bool) -> list[Any]:
            answer = self.connect().query_points(
                self.collection,
                query=query,
                using=SPARSE_NAME if is_sparse else mark.options.vector or None,
                limit=k,
                query_filter=passes,
                search_params=None if is_sparse else self._search_params(mark, is_exact),
                with_payload=True,
                with_vectors=False,
            )
            return list(answer.points)

        found = self.call(lambda: ask(False))
        if where is not None and len(found) < k and not is_sparse:
            # A graph leads past rows that few others are linked to.
            found = self.call(lambda: ask(True))
        similarity = "dot" if is_sparse else mark.similarity
        return [read_hit(hit.id, hit.score, hit.payload, similarity) for hit in found]

    def sparse_of(self, weights: SparseVector) -> Any:
        """Return the client's object of a sparse vector."""
        return self.models.SparseVector(indices=list(weights), values=list(weights.values()))

    def read_mark(self) -> Mark | None:
        """Return the mark; None: there is no collection.

        Raises:
            SinkError: embedlib did not create the collection.
        """
        info = self.read_info()
        return None if info is None else self.mark_of(info.config.metadata)

    def read_info(self, collection: str | None = None) -> Any:
        """Return the client's `CollectionInfo`, of this collection or another; None: no such."""
        name = collection or self.collection
        if not self.call(lambda: self.connect().collection_exists(name)):
            return None
        return self.call(lambda: self.connect().get_collection(name))

    def mark_of(self, metadata: Any) -> Mark:
        """Read the mark in a collection's metadata.

        Raises:
            SinkError: the metadata has none.
        """
        if not metadata or MARK_KEY not in metadata:
            raise SinkError(
                f"{self.name} was not created by embedlib, which therefore neither writes to it "
                "nor drops it; choose another collection, or remove this one yourself"
            )
        return Mark.from_json(metadata[MARK_KEY], self.name)

    def only_ours(self) -> Any:
        """Return the filter for points that embedlib wrote."""
        field = self.models.PayloadField(key=SOURCE_ID_KEY)
        return self.models.Filter(must_not=[self.models.IsEmptyCondition(is_empty=field)])

    def require_begin(self) -> Mark:
        """Return the mark of the load.

        Raises:
            SinkError: `begin` was not called.
        """
        if self._mark is None or not self._has_begun:
            raise SinkError(f"{self.name}: begin was not called")
        return self._mark

    def require_stored(self) -> Mark:
        """Return the mark of a collection that holds a load."""
        if self._mark is None:
            self._mark = self.read_mark()
        if self._mark is None:
            raise SinkError(f"{self.name} holds nothing; load it with embedlib index")
        return self._mark

    def _metadata_changes(self, rows: Sequence[Row], bad_rows: list[BadRow]) -> list[Any]:
        """Return the operations that replace metadata; rows that cannot be stored are bad rows."""
        models, changes = self.models, []
        for row in rows:
            payload = metadata_payload(row)
            if find_big_number(payload) is None:
                points = models.SetPayload(payload=payload, points=[str(row.id)])
                changes.append(models.SetPayloadOperation(set_payload=points))
            else:
                bad_rows.append(describe_bad_row(row, ValueError()))
        return changes

    def _retrieve(self, ids: list[str]) -> Any:
        return self.connect().retrieve(
            self.collection, ids, with_payload=[OWN_KEY], with_vectors=False
        )

    def _scroll(self, offset: Any) -> Any:
        return self.connect().scroll(
            self.collection,
            limit=_PAGE,
            offset=offset,
            with_payload=[OWN_KEY],
            with_vectors=False,
        )

    def _search_params(self, mark: Mark, is_exact: bool) -> Any:
        if is_exact:
            return self.models.SearchParams(exact=True)
        if mark.options.quantization == "none":
            return None
        again = self.models.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
        return self.models.SearchParams(quantization=again)


S = TypeVar("S")


def _slices(items: Sequence[S], size: int) -> Iterator[Sequence[S]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
