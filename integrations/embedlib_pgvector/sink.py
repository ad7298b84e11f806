"""The sink: implements `embedlib.indexing.Sink` on a table of Postgres."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import (
    Filter,
    Hit,
    Row,
    RowKey,
    SinkState,
    SparseVector,
    Target,
    Tell,
    Vectors,
    check_target,
    check_vectors,
    check_weights,
)
from embedlib_pgvector.connection import Connection, DatabaseSession
from embedlib_pgvector.copy_rows import encode_rows, json_of
from embedlib_pgvector.destination import Destination
from embedlib_pgvector.hnsw import IndexBuild, drop_index, find_index, index_name
from embedlib_pgvector.local_server import LocalServer
from embedlib_pgvector.queries import describe, search, search_sparse
from embedlib_pgvector.table import (
    DIGEST,
    KEY,
    STAGE,
    Table,
    choose_halfvec,
    columns,
    count_rows,
    create_stage,
    create_table,
    drop_table,
    ensure_extension,
    find_table,
    find_vector_types,
    merge_stage,
    resolve_schema,
)
from embedlib_pgvector.writer_lock import WriterLock

IDS_PER_STATEMENT = 10_000
SCAN_PAGES = 256
"""Pages of 8 KB that one statement of a scan reads: at most some ten thousand rows."""
SLOW_INSERT_ROWS = 10_000
"""Warn once after this many inserts into a table that already has its index; each takes
milliseconds."""


class PgvectorSink:
    """A table of Postgres; `embedlib.indexing.Sink` documents the methods."""

    def __init__(
        self, destination: Destination, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Describe the sink; this does not connect.

        Args:
            destination: the parsed URL.
            wait: sleeps for a number of seconds between two attempts.
        """
        self._destination = destination
        self._wait = wait
        self._local = (
            LocalServer(destination.local_path, destination.name)
            if destination.local_path is not None
            else None
        )
        self._session = DatabaseSession(
            destination.name, self._locate, self._prepare, wait, destination.password
        )
        self._lock: WriterLock | None = None
        self._table: Table | None = None
        self._is_live = False
        self._has_index = False
        self._num_written = 0
        self._is_changed = False

    @property
    def name(self) -> str:
        """The destination without its password."""
        return self._destination.name

    @property
    def is_shared(self) -> bool:
        """Whether other machines reach it too."""
        return self._local is None

    def inspect(self) -> SinkState | None:
        """Return what is stored; a local server without a database is not started."""
        if self._local is not None and not self._local.exists:
            return None
        return self._session.run(self._inspect)

    def begin(self, target: Target, tell: Tell) -> None:
        """Take the lock, create or check the table, drop what a killed index build left."""
        self._session.tell = tell
        self._is_changed = target.shard is not None  # by writers of other shards
        # With a new connection `_prepare` reads the table only after the lock is held.
        self._session.close()
        self._table, self._lock = None, None
        try:
            self._session.run(lambda connection: self._begin(connection, target))
        except BaseException:
            self._session.close()
            raise

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        table = self._find()
        if table is None:
            return {}
        query = sql.SQL("SELECT {}, {} FROM {} WHERE {} = ANY (%b) AND {} IS NOT NULL").format(
            *(KEY_NAME, DIGEST_NAME, table.escaped, KEY_NAME, DIGEST_NAME)
        )
        found: dict[UUID, bytes] = {}
        for part in _slices(ids):
            found.update(self._fetch(query, part))
        return found

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Copy the rows beside the table and merge them into it, in one transaction."""
        self._write(rows, vectors, None)

    def write_both(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector]
    ) -> None:
        """Do what `write` does with both vectors of each row, in the same transaction."""
        check_weights(weights, len(rows))
        self._write(rows, vectors, weights)

    def _write(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector] | None
    ) -> None:
        table = self._begun
        check_vectors(vectors, len(rows), table.dim)
        if not rows:
            return
        stream = encode_rows(
            rows,
            vectors,
            is_halfvec=table.is_halfvec,
            weights=weights,
            sparse_dim=table.sparse.dim if table.sparse else 0,
        )
        copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(STAGE, columns(table))
        merge = merge_stage(table)

        def work(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy(copy) as stage:
                    stage.write(stream)
                cursor.execute(merge)

        self._session.run(work)
        self._is_changed = True
        self._tell_slow_inserts(len(rows))

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest of rows."""
        try:
            metadata = [json_of(row.metadata) for row in rows]
        except (TypeError, ValueError) as error:
            raise SinkError(f"{self.name}: metadata cannot be written: {error}") from error
        update = sql.SQL(
            "UPDATE {} AS stored SET langchain_metadata = given.metadata::jsonb, {} = given.digest"
            " FROM unnest(%b::uuid[], %b::text[], %b::bytea[]) AS given (id, metadata, digest)"
            " WHERE stored.{} = given.id"
        ).format(self._begun.escaped, DIGEST_NAME, KEY_NAME)
        values = ([row.id for row in rows], metadata, [row.digest for row in rows])
        self._execute(update, *values)

    def scan(self) -> Iterator[RowKey]:
        """Yield the key of every row that embedlib wrote, a range of pages at a time.

        A cursor would end with its connection and delay the server's vacuum while it is open. A
        range of pages can be read again on another connection.
        """
        table = self._begun
        size = sql.SQL("SELECT pg_relation_size(%s::oid) / current_setting('block_size')::bigint")
        read = sql.SQL(
            "SELECT {}, source_id, chunk FROM {} WHERE ctid >= %s::tid AND ctid < %s::tid"
            " AND {} IS NOT NULL"
        ).format(KEY_NAME, table.escaped, DIGEST_NAME)
        [(num_pages,)] = self._fetch(size, table.oid)
        for page in range(0, num_pages, SCAN_PAGES):
            limits = (f"({page},0)", f"({page + SCAN_PAGES},0)")
            for id, source_id, chunk in self._fetch(read, *limits):
                yield RowKey(id=id, source_id=source_id, chunk=chunk)

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows, a few thousand per transaction."""
        query = sql.SQL("DELETE FROM {} WHERE {} = ANY (%b)").format(self._begun.escaped, KEY_NAME)
        for part in _slices(ids):
            self._execute(query, part)

    def finish(self) -> None:
        """Build the index if it is missing, and update the planner's statistics."""
        table = self._begun
        if self._destination.index is not None:
            build = IndexBuild(self._session, table, self._destination.index, is_live=self._is_live)
            self._session.run(lambda connection: self._build(connection, build))
        if self._is_changed:
            self._execute(sql.SQL("ANALYZE {}").format(table.identifier))
            self._is_changed = False

    def _build(self, connection: Connection, build: IndexBuild) -> None:
        assert self._lock is not None, "begin comes first"
        if self._lock.take_alone(connection):
            build.run(connection)
        else:
            self._session.tell(
                f"{self.name}: other shards are still being written; the last one to finish builds "
                "the index"
            )

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the nearest rows; one that LangChain added has its id as its source."""
        return self._search(vector, k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Return the nearest of the rows that pass a filter."""
        return self._search(vector, k, where)

    def search_sparse(self, weights: SparseVector, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows with the greatest sums of products, of all that pass; none of 0."""
        table = self._find()
        if table is None or table.sparse is None:
            raise SinkError(f"{self.name} holds no sparse vectors; load it with sparse (--sparse)")
        return self._session.run(
            lambda connection: search_sparse(connection, table, weights, k, where)
        )

    def _search(self, vector: NDArray[np.float32], k: int, where: Filter | None) -> list[Hit]:
        table = self._find(is_search=True)
        if table is None:
            raise SinkError(f"{self.name}: there is no such table; load it with embedlib index")
        return self._session.run_search(
            lambda connection: search(connection, table, vector, k, self.name, where)
        )

    def close(self) -> None:
        """Close the connection, and with it give up the lock; stop the local server."""
        self._session.close()
        self._lock, self._table = None, None
        if self._local is not None:
            self._local.stop()

    @property
    def _begun(self) -> Table:
        if self._lock is None or self._table is None:
            raise SinkError(f"{self.name}: begin was not called")
        return self._table

    def _locate(self) -> str:
        return self._destination.conninfo if self._local is None else self._local.start()

    def _prepare(self, connection: Connection) -> None:
        """Set up a new connection: the first one, and each one after a loss."""
        find_vector_types(connection)
        # A row counts as written when it is on disk; stricter settings are kept. The second
        # setting ends the statement, and with it the lock, of a client that was killed.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off';"
            "SELECT set_config(name, '5s', false) FROM pg_settings"
            " WHERE name = 'client_connection_check_interval' AND setting = '0'"
        )
        if self._lock is not None:
            self._lock.take(connection)
            if self._table is not None:
                create_stage(connection, self._table)

    def _inspect(self, connection: Connection) -> SinkState | None:
        table = find_table(connection, self._destination)
        return None if table is None else describe(connection, table)

    def _find(self, *, is_search: bool = False) -> Table | None:
        """Return the table for reading, or None; starts no local server without a database."""
        if self._table is None and (self._local is None or self._local.exists):
            run = self._session.run_search if is_search else self._session.run
            self._table = run(lambda connection: find_table(connection, self._destination))
        return self._table

    def _begin(self, connection: Connection, target: Target) -> None:
        destination = self._destination
        ensure_extension(connection, self.name)
        if self._lock is None:
            schema = resolve_schema(connection, destination)
            lock = WriterLock(schema, destination.table, self.name, self._wait, target.shard)
            lock.take(connection)
            self._lock = lock
        with self._lock.setting_up(connection):
            self._table = self._make_table(connection, target)
        create_stage(connection, self._table)

    def _make_table(self, connection: Connection, target: Target) -> Table:
        destination, lock = self._destination, self._lock
        assert lock is not None, "make_table before the lock"
        table = find_table(connection, destination)
        check_target(None if table is None else describe(connection, table), target, self.name)
        is_new = table is None or target.recreate
        is_halfvec = choose_halfvec(destination, target.dim) if is_new else None
        with connection.transaction():
            if table is not None and target.recreate:
                drop_table(connection, table)
            if is_new:
                create_table(connection, destination, target, is_halfvec=bool(is_halfvec))
        if is_halfvec and destination.is_halfvec is None:
            self._session.tell(
                f"{self.name}: an index of 32-bit floats cannot take {target.dim} dimensions; they "
                "are stored as halfvec, 16-bit floats"
            )
        table = find_table(connection, destination)
        assert table is not None, "the table was just created"
        self._check_type(table)
        num_rows, _ = count_rows(connection, table)
        self._is_live = num_rows > 0
        if lock.take_alone(connection):  # another shard may be building the index
            self._clear_index(connection, table)
            lock.share(connection)
        return table

    def _check_type(self, table: Table) -> None:
        asked = self._destination.is_halfvec
        if asked is not None and asked != table.is_halfvec:
            raise SinkError(
                f"{self.name} stores {table.type_name}; leave out halfvec={str(asked).lower()}, or "
                "pass recreate=True (--recreate) to drop these rows and start over"
            )
        if self._destination.index is not None:
            # A table that was created with index=none may have too many dimensions for an index.
            choose_halfvec(replace(self._destination, is_halfvec=table.is_halfvec), table.dim)

    def _clear_index(self, connection: Connection, table: Table) -> None:
        """Drop an index that a killed build left, and the index of an empty table.

        Inserts into an indexed table are a hundred times slower, so an empty table gets its index
        at the end. A table with rows may be in use by searches, so it keeps its index.
        """
        index = find_index(connection, table)
        is_ours = index is not None and index.name == index_name(table)
        if index is not None and is_ours and not (index.is_valid and self._is_live):
            drop_index(connection, table, index.name)
            index = None
        self._has_index = index is not None and index.is_valid
        self._num_written = 0

    def _tell_slow_inserts(self, num_rows: int) -> None:
        before, self._num_written = self._num_written, self._num_written + num_rows
        if self._has_index and before < SLOW_INSERT_ROWS <= self._num_written:
            self._session.tell(
                f"{self.name} has an index already, so inserts are about a hundred times slower "
                "than without one; if no searches use it, stop, drop the index and run the "
                "load again: it continues here and builds the index at the end"
            )

    def _fetch(self, query: sql.SQL | sql.Composed, *values: object) -> list[tuple[Any, ...]]:
        return self._session.run(
            lambda connection: connection.cursor(binary=True).execute(query, values).fetchall()
        )

    def _execute(self, query: sql.Composed, *values: object) -> None:
        def work(connection: Connection) -> None:
            connection.execute(query, values or None)

        self._session.run(work)
        self._is_changed = True


KEY_NAME, DIGEST_NAME = sql.Identifier(KEY), sql.Identifier(DIGEST)


def _slices(ids: Sequence[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield list(ids[start : start + IDS_PER_STATEMENT])
