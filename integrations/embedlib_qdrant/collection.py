"""A sink on a collection of a QdrantClient: shared by a server and the client's local mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from embedlib.errors import SinkError
from embedlib.indexing import (
    BadRow,
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
    tell_nobody,
)
from embedlib_qdrant.collection_options import GivenOptions
from embedlib_qdrant.collection_search import CollectionSearch
from embedlib_qdrant.full_text import (
    check_language,
    client_text_index,
    is_ranking,
)
from embedlib_qdrant.metadata_limits import MetadataLimits
from embedlib_qdrant.points import (
    CONTENT_KEY,
    OWN_KEY,
    Mark,
    metadata_payload,
    read_digest,
    read_key,
)
from embedlib_qdrant.retry import T
from embedlib_qdrant.upserts import BATCH

MARK_KEY = "embedlib"
"""Key in the collection's metadata."""
_PAGE = 1000
"""Points per read request."""


class CollectionSink(CollectionSearch):
    """A collection; a subclass connects, locks, creates and indexes it."""

    takes_multi_vectors = True
    metadata_limits: MetadataLimits
    """What can be stored, by `store` too."""

    def __init__(self, name: str, collection: str, given: GivenOptions) -> None:
        super().__init__(name, collection)
        self.given = given
        self.tell: Tell = tell_nobody
        self._mark: Mark | None = None
        self._has_begun = False

    # Methods of a subclass.

    def lock(self, shard: str | None) -> None:
        """Become the only writer, or the only writer of this shard of the source."""
        raise NotImplementedError

    def check_new(self, mark: Mark) -> None:
        """Refuse a collection that cannot be created, before another one is dropped for it."""

    def create(self, mark: Mark) -> None:
        """Create the collection."""
        raise NotImplementedError

    def drop(self) -> None:
        """Remove the collection."""
        self.request("delete_collection", self.collection)

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

    def check_full_text(self, language: str | None) -> None:
        """Refuse a full-text index that cannot be had; None: there is none to be made."""
        if language is not None:
            check_language(language, self.name)

    # Shared methods.

    def begin(self, target: Target, tell: Tell) -> None:
        """Become the only writer, and open or create the collection."""
        self.tell = tell
        self.check_full_text(target.full_text)
        self.lock(target.shard)
        mark = self.read_mark()
        if mark is not None and not target.recreate:
            # Number of rows and state of the index are not compared.
            check_target(mark.to_state(0, ""), target, self.name)
            self.given.check_stored(mark.options, self.name)
        new = Mark.of(target, self.given.options)
        if mark is None or target.recreate:
            self.check_new(new)
        if mark is not None:
            self.take_lease()
        if mark is not None and target.recreate:
            self.drop()
            mark = None
        if mark is None:
            mark = new
            self.create(mark)
            self.take_lease()
        self._mark = mark = self._with_language(mark, target.full_text)
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
            for record in self.request(
                "retrieve", self.collection, page, with_payload=[OWN_KEY], with_vectors=False
            ):
                digest = read_digest(record.payload)
                if digest is not None:
                    found[UUID(str(record.id))] = digest
        return found

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Upsert rows; each request is atomic, and repeating one changes nothing."""
        check_vectors(vectors, len(rows), self.require_begin().dim)
        self.store(rows, vectors, None)

    def write_both(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector]
    ) -> None:
        """Upsert rows with their sparse vectors, each in the point of its row."""
        target = self.require_begin()
        check_vectors(vectors, len(rows), target.dim)
        check_weights(weights, len(rows), target.sparse)
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
                self.change("batch_update_points", self.collection, changes, wait=True)
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def scan(self) -> Iterator[RowKey]:
        """Yield every row."""
        self.require_stored()
        self.settle()
        offset = None
        while True:
            records, offset = self.request(
                "scroll",
                self.collection,
                limit=_PAGE,
                offset=offset,
                with_payload=[OWN_KEY],
                with_vectors=False,
            )
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
        for page in _slices([str(row_id) for row_id in ids], _PAGE):
            selector = self.models.PointIdsList(points=page)
            self.change("delete", self.collection, selector, wait=True)

    def change(self, method: str, *arguments: Any, **named: Any) -> None:
        """Change rows, unless another load took over, perhaps between two attempts."""

        def attempt() -> None:
            self.require_begin()  # it may be closed meanwhile
            self.check_lease()
            getattr(self.connect(), method)(*arguments, **named)

        self.call(attempt)

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
        if not self.request("collection_exists", name):
            return None
        return self.request("get_collection", name)

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

    def build_text_index(self, info: Any) -> None:
        """Build the full-text index of the mark, unless the `CollectionInfo` has it."""
        mark = self.require_begin()
        if mark.full_text is None or is_ranking(info.payload_schema.get(CONTENT_KEY)):
            return
        params = client_text_index(self.models, mark.full_text)
        self.request("create_payload_index", self.collection, CONTENT_KEY, params, wait=True)

    def _with_language(self, mark: Mark, language: str | None) -> Mark:
        """Store the language of the full-text index, and drop one of another; None: keep it."""
        if language is None or language == mark.full_text:
            return mark
        if mark.full_text is not None:
            self.request("delete_payload_index", self.collection, CONTENT_KEY)
        changed = replace(mark, full_text=language)
        metadata = {MARK_KEY: changed.to_json()}
        self.request("update_collection", self.collection, metadata=metadata)
        return changed

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
            if self.metadata_limits.takes(row, bad_rows):
                points = models.SetPayload(payload=metadata_payload(row), points=[str(row.id)])
                changes.append(models.SetPayloadOperation(set_payload=points))
        return changes


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
