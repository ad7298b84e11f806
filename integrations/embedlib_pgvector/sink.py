"""The sink: implements `embedlib.indexing.Sink` on a table of Postgres."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import (
    Row,
    SparseVector,
    Target,
    Tell,
    Vectors,
    check_target,
    check_vectors,
    check_weights,
    tell_nobody,
)
from embedlib_pgvector.comments import read_comment, write_comment
from embedlib_pgvector.connection import (
    Connection,
    allow_long_statements,
    notice_killed_clients,
    notice_vanished_clients,
)
from embedlib_pgvector.copy_rows import encode_rows, json_of
from embedlib_pgvector.destination import Destination
from embedlib_pgvector.extension import check_version, ensure_extension
from embedlib_pgvector.full_text import build_words_index, check_configuration, index_words
from embedlib_pgvector.generations import (
    beside_of,
    check_switchable,
    drop_old_table,
    hide_new,
    switch,
    tell_lost_indexes,
)
from embedlib_pgvector.hnsw import IndexBuild, clear_own_index
from embedlib_pgvector.inserts import (
    STAGE,
    SlowInserts,
    columns,
    create_stage,
    merge_stage,
    store_parts,
)
from embedlib_pgvector.reading import DIGEST_NAME, KEY_NAME, TableReader, slices
from embedlib_pgvector.rights import Rights, check_no_policies, give_rights, read_rights
from embedlib_pgvector.table import (
    Table,
    check_type,
    choose_halfvec,
    create_table,
    drop_to_make_anew,
    find_table,
    has_rows,
    resolve_schema,
)
from embedlib_pgvector.writer_lock import WriterLock, refuse_transaction_pooler

_POSITION = "source_id"
"""The column whose comment says how far a source was read."""


class PgvectorSink(TableReader):
    """A table of Postgres; `embedlib.indexing.Sink` documents the methods."""

    def __init__(
        self, destination: Destination, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Describe the sink; this does not connect.

        Args:
            destination: the parsed URL.
            wait: sleeps for a number of seconds between two attempts.
        """
        super().__init__(destination, wait)
        self._lock: WriterLock | None = None
        self._is_live = False
        self._inserts = SlowInserts(destination.name, has_index=False)
        self._is_changed = False

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
        self._session.has_begun = True

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Copy the rows beside the table and merge them into it, in one transaction.

        If some cannot be stored, the others are, in several.
        """
        self._write(rows, vectors, None)

    def write_both(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector]
    ) -> None:
        """Do what `write` does with both vectors of each row, in the same transaction."""
        check_weights(weights, len(rows), self._begun.sparse)
        self._write(rows, vectors, weights)

    def _write(
        self, rows: Sequence[Row], vectors: Vectors, weights: Sequence[SparseVector] | None
    ) -> None:
        table = self._begun
        check_vectors(vectors, len(rows), table.dim)
        if not rows:
            return
        if len({row.id for row in rows}) < len(rows):
            raise SinkError(
                f"{self.name}: a row is given twice in one call; ids must be different, and "
                "nothing was written"
            )
        copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(STAGE, columns(table))
        merge = merge_stage(table)

        def store(part: slice) -> None:
            stream = encode_rows(
                rows[part],
                vectors[part],
                is_halfvec=table.is_halfvec,
                weights=None if weights is None else weights[part],
                sparse_dim=table.sparse.dim if table.sparse else 0,
            )

            def work(connection: Connection) -> None:
                with connection.transaction(), connection.cursor() as cursor:
                    with cursor.copy(copy) as stage:
                        stage.write(stream)
                    cursor.execute(merge)

            self._session.run(work)

        self._is_changed = True
        self._inserts.add(len(rows), self._session.tell)
        store_parts(rows, store, self.name)

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
        store_parts(
            rows, lambda part: self._execute(update, *(each[part] for each in values)), self.name
        )

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows, a few thousand per transaction."""
        query = sql.SQL("DELETE FROM {} WHERE {} = ANY (%b)").format(self._begun.escaped, KEY_NAME)
        for part in slices(ids):
            self._execute(query, part)

    def finish(self) -> None:
        """Build the index if it is missing, and update the planner's statistics."""
        table = self._begun
        if self._destination.index is not None or table.full_text is not None:
            self._session.run(lambda connection: self._build(connection, table))
        if self._is_changed:
            self._execute(sql.SQL("ANALYZE {}").format(table.identifier))
            self._is_changed = False

    def _build(self, connection: Connection, table: Table) -> None:
        assert self._lock is not None, "begin comes first"
        if not self._lock.take_last(connection):
            self._session.tell(
                f"{self.name}: other shards are still being written; the last one to finish builds "
                "the index"
            )
            return
        if self._destination.index is not None:
            options = self._destination.index
            IndexBuild(self._session, table, options, is_live=self._is_live).run(connection)
        if table.full_text is not None:
            build_words_index(connection, table, is_live=self._is_live)

    def beside(self) -> PgvectorSink:
        """Return the sink for rows of another model, in a table of its own."""
        return PgvectorSink(beside_of(self._destination), wait=self._wait)

    def switch(self) -> None:
        """Rename the tables in one transaction."""
        table, self._table = self._begun, None
        self._session.run(lambda found: check_switchable(found, self._destination, tell_nobody))
        switch(self._session, self._destination, table, self._wait)

    def drop_old(self) -> None:
        """Drop the table that is kept."""
        if self.old() is None:
            return
        self._session.run(self._take_lock)
        try:
            drop_old_table(self._session, self._destination, self._wait)
        finally:
            self.close()

    def load_position(self) -> str | None:
        """Return how far a source was read."""
        table = self._find()
        if table is None:
            return None
        return self._session.run(lambda connection: read_comment(connection, table.oid, _POSITION))

    def save_position(self, position: str | None) -> None:
        """Store how far a source was read."""
        table = self._begun.identifier
        self._session.run(lambda found: write_comment(found, table, _POSITION, position))

    def close(self) -> None:
        """Close the connection, and with it give up the lock; stop the local server."""
        self._lock = None
        super().close()

    @property
    def _begun(self) -> Table:
        if self._lock is None or self._table is None:
            raise SinkError(f"{self.name}: begin was not called")
        return self._table

    def _prepare(self, connection: Connection) -> None:
        super()._prepare(connection)
        # A row counts as written when it is on disk; stricter settings are kept.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )
        notice_killed_clients(connection)
        notice_vanished_clients(connection)
        if self._lock is not None:
            allow_long_statements(connection)
            self._lock.take(connection)
            if self._table is not None:
                self._check_same(connection, self._table)
                create_stage(connection, self._table)

    def _check_same(self, connection: Connection, table: Table) -> None:
        """Refuse to go on in another table: while the lock was lost, somebody else may have had it.

        Raises:
            SinkError: the table was dropped, and another one has its name.
        """
        found = find_table(connection, self._destination)
        if found is not None and found.oid != table.oid:
            raise SinkError(
                f"{self.name}: while the connection was lost, another load has replaced the table; "
                "nothing was written to the new one; run the load again if its rows shall follow"
            )

    def _begin(self, connection: Connection, target: Target) -> None:
        ensure_extension(connection, self.name)
        if self._lock is None:
            self._take_lock(connection, target.shard)
        assert self._lock is not None, "it was just taken"
        if self._destination.replaces is not None:
            check_switchable(connection, self._destination, self._session.tell)
        with self._lock.setting_up(connection):
            self._table = self._make_table(connection, target)
        if self._destination.replaces is not None:
            hide_new(connection, self._destination, self._table)
        create_stage(connection, self._table)

    def _take_lock(self, connection: Connection, shard: str | None = None) -> None:
        refuse_transaction_pooler(connection, self._session.connect, self.name)
        allow_long_statements(connection)
        schema = resolve_schema(connection, self._destination)
        lock = WriterLock(schema, self._destination.owner, self.name, self._wait, shard)
        lock.take(connection)
        self._lock = lock

    def _make_table(self, connection: Connection, target: Target) -> Table:
        destination, lock = self._destination, self._lock
        assert lock is not None, "make_table before the lock"
        table = find_table(connection, destination)
        # Number of rows and state of the index are not compared.
        check_target(None if table is None else table.to_state(0, ""), target, self.name)
        is_new = table is None or target.recreate
        is_halfvec = is_new and choose_halfvec(destination, target.dim)
        check_configuration(connection, target.full_text, self.name)
        with connection.transaction():
            rights: Rights | None = None
            if table is not None and target.recreate:
                check_no_policies(connection, table, self.name)
                tell_lost_indexes(connection, table, destination, self._session.tell)
                rights = read_rights(connection, table)
                drop_to_make_anew(connection, table, self.name)
            if is_new:
                check_version(connection, destination, target, is_halfvec=is_halfvec)
                create_table(connection, destination, target, is_halfvec=is_halfvec)
            if table is not None and rights is not None:
                give_rights(connection, table.identifier, rights)
        if is_halfvec and destination.is_halfvec is None:
            self._session.tell(
                f"{self.name}: an index of 32-bit floats cannot take {target.dim} dimensions; they "
                "are stored as halfvec, 16-bit floats"
            )
        table = find_table(connection, destination)
        assert table is not None, "the table was just created"
        check_type(destination, table)
        if target.full_text is not None and target.full_text != table.full_text:
            index_words(connection, table, target.full_text, destination, self._session.tell)
            table = replace(table, full_text=target.full_text)
            self._is_changed = True
        self._is_live = has_rows(connection, table)
        if lock.take_alone(connection):  # another shard may be building the index
            has_index = clear_own_index(connection, table, is_live=self._is_live)
            self._inserts = SlowInserts(self.name, has_index=has_index)
            lock.share(connection)
        return table

    def _execute(self, query: sql.Composed, *values: object) -> None:
        def work(connection: Connection) -> None:
            connection.execute(query, values or None)

        self._session.run(work)
        self._is_changed = True
