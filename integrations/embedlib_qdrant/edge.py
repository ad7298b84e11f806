"""`edge:PATH`: a folder (see `edge_folder`), written by Qdrant's engine in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from embedlib.errors import SinkError, first_line
from embedlib.indexing import (
    BadRow,
    FileLock,
    Row,
    RowKey,
    SinkState,
    SinkUrl,
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
from embedlib_qdrant.collection_options import GivenOptions, parse_options
from embedlib_qdrant.edge_config import edge_config, has_graph
from embedlib_qdrant.edge_folder import EdgeFolder
from embedlib_qdrant.edge_search import EdgeSearch
from embedlib_qdrant.full_text import check_language, edge_text_index, is_ranking
from embedlib_qdrant.metadata_limits import FOLDER_LIMITS
from embedlib_qdrant.one_line_errors import is_of_engine, open_already, remedy_of
from embedlib_qdrant.points import (
    CONTENT_KEY,
    OWN_KEY,
    SPARSE_NAME,
    Mark,
    edge_metadata_payload,
    edge_payload,
    read_digest,
    read_key,
)

_PAGE = 1000
"""Points per read request."""
_FLUSH_ROWS = 16_384
"""Maximum rows that are only in the write-ahead log. When the shard is opened after a kill, the
engine replays them, some 20,000 per second. Flushing every batch took a tenth of a load's time."""
_LIST_ROWS = 64
"""Rows converted to Python floats at a time: few enough to stay in the processor's cache."""

_ROOM_BYTES = 64 << 20
"""Free disk space that a write needs beside four times its vectors, which are stored in the log and
then in a segment, with their texts. The engine maps its files into memory; if the disk is full, the
kernel ends the process with SIGBUS when it writes to them."""

_LAST_REMEDY = "if nothing else helps, recreate=True (--recreate) drops these rows and starts over"


def open_sink(url: SinkUrl) -> EdgeSink:
    """Make the sink of `edge:PATH`."""
    given = parse_options(url.take("on_disk", "quantization", "m", "ef_construct"))
    if not url.location or url.location.startswith("//"):
        raise SinkError("edge: needs a folder, such as edge:vectors")
    return EdgeSink(url.path, given)


class EdgeSink(EdgeSearch):
    """A folder with a shard of Qdrant Edge."""

    takes_multi_vectors = True

    def __init__(self, path: Path, given: GivenOptions) -> None:
        super().__init__(f"edge:{path}")
        self._folder = EdgeFolder(path, self.name)
        self._given = given
        self._shard: Any = None
        self._num_unflushed = 0
        self._has_changed = False
        self._mark: Mark | None = None
        self._lock: FileLock | None = None
        self._tell: Tell = tell_nobody

    def inspect(self) -> SinkState | None:
        """Return what is stored."""
        mark = self._folder.read_mark()
        if mark is None:
            return None
        was_open = self._shard is not None
        shard = self._open()
        try:
            with self.one_line("cannot be read"):
                return mark.to_state(self._count(shard), _describe_index(shard.info(), mark))
        finally:
            if not was_open:
                self._close_shard()

    def begin(self, target: Target, tell: Tell) -> None:
        """Lock the folder, then open or create the shard."""
        if target.full_text is not None:
            check_language(target.full_text, self.name)
        folder = self._folder
        folder.read_mark()  # refuses a folder of others before anything is created in it
        folder.make()
        self._close_shard()
        self._lock = self._lock or FileLock(folder.lock_file, self.name)
        self._tell = tell
        folder.repair()
        if target.recreate:
            folder.drop()
        self._mark = folder.read_mark()
        if self._mark is None:
            self._mark = Mark.of(target, self._given.options)
            self._create(self._mark)
        # Number of rows and state of the index are not compared.
        check_target(self._mark.to_state(0, ""), target, self.name)
        self._given.check_stored(self._mark.options, self.name)
        self._open()
        folder.clear_builders()
        self._set_language(target.full_text)

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        found = {}
        shard = self.open_stored()
        with self.one_line("cannot be read"):
            for start in range(0, len(ids), _PAGE):
                # with_vector must be given: the call fails with the default of its own signature.
                page = list(ids[start : start + _PAGE])
                for record in shard.retrieve(page, [OWN_KEY], False):
                    digest = read_digest(record.payload)
                    if digest is not None:
                        found[record.id] = digest
        return found

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Upsert rows as one operation of the write-ahead log, which survives a kill."""
        check_vectors(vectors, len(rows), self.stored_mark.dim)
        self._write(rows, sum(vector.nbytes for vector in vectors), _as_lists(vectors))

    def write_both(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector]
    ) -> None:
        """Upsert rows with their sparse vectors, each in the point of its row."""
        check_vectors(vectors, len(rows), self.stored_mark.dim)
        check_weights(weights, len(rows), self.stored_mark.sparse)
        num_bytes = vectors.nbytes + 8 * sum(map(len, weights))
        both = (
            {"": vector, SPARSE_NAME: self.sparse_of(sparse)}
            for vector, sparse in zip(_as_lists(vectors), weights, strict=True)
        )
        self._write(rows, num_bytes, both)

    def _write(self, rows: Sequence[Row], num_bytes: int, vectors: Iterator[Any]) -> None:
        shard, edge = self._begun, self.edge
        self._check_room(4 * num_bytes)
        bad_rows = list[BadRow]()
        with self.one_line("cannot be written"):
            points = [
                edge.Point(row.id, vector, edge_payload(row))
                for row, vector in zip(rows, vectors, strict=True)
                if FOLDER_LIMITS.takes(row, bad_rows)
            ]
            if points:
                shard.update(edge.UpdateOperation.upsert_points(points))
                self._has_changed = True
        self._num_unflushed += len(points)
        if self._num_unflushed >= _FLUSH_ROWS:
            self._flush()
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest."""
        shard, edge = self._begun, self.edge
        self._check_room()
        stored, bad_rows = self.digests([row.id for row in rows]), list[BadRow]()
        with self.one_line("cannot be written"):
            for row in rows:
                # The engine raises an error for unknown ids.
                if row.id in stored and FOLDER_LIMITS.takes(row, bad_rows):
                    payload = edge_metadata_payload(row)
                    shard.update(edge.UpdateOperation.set_payload([row.id], payload))
            shard.flush()
        if bad_rows:
            raise UnstorableRowsError(self.name, bad_rows)

    def scan(self) -> Iterator[RowKey]:
        """Yield every row."""
        shard, offset = self.open_stored(), None
        while True:
            with self.one_line("cannot be read"):
                request = self.edge.ScrollRequest(
                    offset=offset, limit=_PAGE, with_payload=[OWN_KEY], with_vector=False
                )
                records, offset = shard.scroll(request)
            for record in records:
                key = read_key(record.id, record.payload)
                if key is not None:
                    yield key
            if offset is None:
                return

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows."""
        shard = self._begun
        with self.one_line("cannot be written"):
            if ids:
                shard.update(self.edge.UpdateOperation.delete_points(list(ids)))
            shard.flush()

    def finish(self) -> None:
        """Build the index for the rows written since the last call."""
        shard = self._begun
        language = self.stored_mark.full_text
        with self.one_line("cannot be optimized"):
            if self._has_changed and has_graph(self.stored_mark, self._count(shard)):
                self._tell(f"{self.name}: building the index; Ctrl-C takes effect after that")
            shard.optimize()
            if language is not None and not self._has_text_index(shard):
                params = edge_text_index(self.edge, language)
                shard.update(self.edge.UpdateOperation.create_field_index(CONTENT_KEY, params))
        self._flush()
        self._has_changed = False

    def load_position(self) -> str | None:
        """Return the content of a file beside the shard."""
        return None if self._folder.read_mark() is None else self._folder.read_position()

    def save_position(self, position: str | None) -> None:
        """Write that file, after what is stored is on the disk."""
        self._flush()
        self._folder.write_position(position)

    def close(self) -> None:
        """Close the shard and release the lock."""
        try:
            self._close_shard()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    @property
    def _begun(self) -> Any:
        if self._shard is None or self._lock is None:
            raise SinkError(f"{self.name}: begin was not called")
        return self._shard

    @property
    def stored_mark(self) -> Mark:
        """The mark of the shard that is open."""
        if self._mark is None:
            raise SinkError(f"{self.name}: begin was not called")
        return self._mark

    def open_stored(self) -> Any:
        """Open a shard that holds a load."""
        if self._shard is None:
            self._mark = self._folder.read_mark()
            if self._mark is None:
                raise SinkError(f"{self.name} holds nothing; load it with embedlib index")
        return self._open()

    def _set_language(self, language: str | None) -> None:
        """Store the language of the full-text index, and drop one of another; None: keep it."""
        mark = self.stored_mark
        if language is None or language == mark.full_text:
            return
        if self._has_text_index(self._begun):
            with self.one_line("cannot be written"):
                self._begun.update(self.edge.UpdateOperation.delete_field_index(CONTENT_KEY))
            self._flush()
        self._mark = replace(mark, full_text=language)
        self._folder.write_mark(self._mark)

    def _has_text_index(self, shard: Any) -> bool:
        return is_ranking(shard.info().payload_schema.get(CONTENT_KEY))

    def _check_room(self, num_bytes: int = 0) -> None:
        with self.one_line("cannot be written"):
            free = shutil.disk_usage(self._folder.lock_file.parent).free
        if free < num_bytes + _ROOM_BYTES:
            raise SinkError(
                f"{self.name}: only {free >> 20} MiB of its disk are free, the next rows may need "
                f"{(num_bytes + _ROOM_BYTES) >> 20}; make room and run the load again to continue"
            )

    def _create(self, mark: Mark) -> None:
        edge = self.edge
        self._check_room()
        with self._folder.new_shard(mark) as place:
            shard = edge.EdgeShard.create(str(place), edge_config(mark))
            shard.flush()
            shard.close()

    def _open(self) -> Any:
        if self._shard is None:
            try:
                self._shard = self.edge.EdgeShard.load(str(self._folder.shard))
            except BaseException as error:
                if not is_of_engine(error):
                    raise
                remedy = remedy_of(error)
                # The engine locks its write-ahead log, also for reading.
                if remedy is None and "WouldBlock" in str(error):
                    raise open_already(self.name) from error
                raise SinkError(
                    f"{self.name} cannot be opened: {first_line(error)}; {remedy or _LAST_REMEDY}"
                ) from error
        return self._shard

    def _flush(self) -> None:
        with self.one_line("cannot be written"):
            self._shard.flush()
        self._num_unflushed = 0

    def _close_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            with self.one_line("cannot be closed"):
                shard.close()

    def _count(self, shard: Any) -> int:
        return int(shard.count(self.edge.CountRequest(exact=True)))


def _as_lists(vectors: Vectors) -> Iterator[list[float]]:
    """Yield each vector as a list of floats, which the engine converts fastest."""
    if not isinstance(vectors, np.ndarray):  # of a row with a vector per token a list of them
        yield from (row.tolist() for row in vectors)
        return
    for start in range(0, len(vectors), _LIST_ROWS):
        yield from vectors[start : start + _LIST_ROWS].tolist()


def _describe_index(info: Any, mark: Mark) -> str:
    # Sparse vectors are always indexed, and counted as the others are.
    num_sparse = 0 if mark.sparse is None else info.points_count
    num_indexed = info.indexed_vectors_count - num_sparse
    if num_indexed <= 0:
        return "none, exact scan"
    return f"hnsw, {num_indexed} of {info.points_count} points"
