"""The reading half of the sink: what a table holds, and searches in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import Filter, Hit, RowKey, SinkState, SparseVector, StoredRow
from embedlib_pgvector.connection import Connection, DatabaseSession, Result
from embedlib_pgvector.destination import Destination
from embedlib_pgvector.extension import find_vector_types
from embedlib_pgvector.full_text import search_text
from embedlib_pgvector.generations import ask_held, old_of, read_stored
from embedlib_pgvector.local_server import LocalServer
from embedlib_pgvector.queries import describe, search, search_sparse
from embedlib_pgvector.table import DIGEST, KEY, Table, find_table

IDS_PER_STATEMENT = 10_000
SCAN_PAGES = 256
"""Pages of 8 KB that one statement of a scan reads: at most some ten thousand rows."""
KEY_NAME, DIGEST_NAME = sql.Identifier(KEY), sql.Identifier(DIGEST)


class TableReader:
    """Reads a table of Postgres; `embedlib.indexing.Sink` documents the methods."""

    def __init__(self, destination: Destination, wait: Callable[[float], None]) -> None:
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
        self._table: Table | None = None
        self._held: SinkState | None = None

    @property
    def name(self) -> str:
        """The destination without its password."""
        return self._destination.name

    @property
    def is_shared(self) -> bool:
        """Whether other machines reach it too."""
        return self._local is None

    @property
    def _is_missing(self) -> bool:
        """Whether the local server has no database yet; it need not be started to find nothing."""
        return self._local is not None and not self._local.exists

    def inspect(self) -> SinkState | None:
        """Return what is stored."""
        return self._look(describe, self._destination)

    def identify(self) -> SinkState | None:
        """Return the same without the number of rows: to count them reads the whole table."""
        table = self._look(find_table, self._destination)
        return None if table is None else table.to_state(0, "")

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        table = self._find()
        if table is None:
            return {}
        query = sql.SQL("SELECT {}, {} FROM {} WHERE {} = ANY (%b) AND {} IS NOT NULL").format(
            *(KEY_NAME, DIGEST_NAME, table.escaped, KEY_NAME, DIGEST_NAME)
        )
        found: dict[UUID, bytes] = {}
        for part in slices(ids):
            found.update(self._fetch(query, part))
        return found

    def scan(self) -> Iterator[RowKey]:
        """Yield the key of every row that embedlib wrote, some pages of each partition at a time.

        A cursor would end with its connection and delay the server's vacuum while it is open. A
        range of pages can be read again on another connection.
        """
        table = self._find()
        if table is None:
            return
        size = sql.SQL(
            "SELECT greatest(pg_relation_size(named), (SELECT max(pg_relation_size(relid))"
            " FROM pg_partition_tree(named))) / current_setting('block_size')::bigint"
            " FROM (SELECT %s::regclass) AS table_of (named)"
        )
        read = sql.SQL(
            "SELECT {}, source_id, chunk FROM {} WHERE ctid >= %s::tid AND ctid < %s::tid"
            " AND {} IS NOT NULL"
        ).format(KEY_NAME, table.escaped, DIGEST_NAME)
        [(num_pages,)] = self._fetch(size, table.regclass)
        for page in range(0, num_pages, SCAN_PAGES):
            limits = (f"({page},0)", f"({page + SCAN_PAGES},0)")
            for id, source_id, chunk in self._fetch(read, *limits):
                yield RowKey(id=id, source_id=source_id, chunk=chunk)

    def stored_rows(self, ids: Sequence[UUID]) -> dict[UUID, StoredRow]:
        """Return text and vector of stored rows."""
        table = self._find()
        if table is None:
            return {}
        return self._session.run(lambda connection: read_stored(connection, table, ids))

    def old(self) -> SinkState | None:
        """Return what is kept since the last switch."""
        return self._look(describe, old_of(self._destination))

    def hold(self, state: SinkState) -> None:
        """Search only among rows of these models; a search finds out which table has them."""
        self._held = state
        self._table = None

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Return the nearest rows; one that LangChain added has its id as its source."""
        return self.search_where(vector, k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter | None) -> list[Hit]:
        """Return the nearest of the rows that pass a filter."""
        return self._ask(
            lambda connection, table: search(connection, table, vector, k, self.name, where)
        )

    def search_sparse(self, weights: SparseVector, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows with the greatest sums of products, of all that pass; none of 0."""

        def ask(connection: Connection, table: Table) -> list[Hit]:
            if table.sparse is None:
                raise SinkError(
                    f"{self.name} holds no sparse vectors; load it with sparse (--sparse)"
                )
            return search_sparse(connection, table, weights, k, where)

        return self._ask(ask)

    def search_text(self, question: str, k: int, where: Filter | None) -> list[Hit]:
        """Return the rows that fit the words of a question best, of all that pass."""

        def ask(connection: Connection, table: Table) -> list[Hit]:
            if table.full_text is None:
                raise SinkError(f"{self.name} holds no full-text index; load it with --full-text")
            return search_text(connection, table, question, k, where)

        return self._ask(ask)

    def _ask(self, ask: Callable[[Connection, Table], Result]) -> Result:
        """Ask the table that is searched; starts no local server without a database."""
        if self._is_missing:
            raise SinkError(f"{self.name}: there is no such table; load it with embedlib index")

        def work(connection: Connection) -> Result:
            self._table, found = ask_held(
                *(connection, self._destination, self._held, self._table),
                lambda table: ask(connection, table),
            )
            return found

        return self._session.run_search(work)

    def close(self) -> None:
        """Close the connection; stop the local server."""
        self._session.close()
        self._table = None
        if self._local is not None:
            self._local.stop()

    def _locate(self) -> str:
        return self._destination.conninfo if self._local is None else self._local.start()

    def _prepare(self, connection: Connection) -> None:
        """Set up a new connection: the first one, and each one after a loss."""
        find_vector_types(connection)

    def _find(self) -> Table | None:
        """Return the table for reading, or None."""
        if self._table is None:
            self._table = self._look(find_table, self._destination)
        return self._table

    def _look(
        self, read: Callable[[Connection, Destination], Result | None], destination: Destination
    ) -> Result | None:
        """Read what there is, or None; starts no local server without a database."""
        if self._is_missing:
            return None
        return self._session.run(lambda connection: read(connection, destination))

    def _fetch(self, query: sql.SQL | sql.Composed, *values: object) -> list[tuple[Any, ...]]:
        return self._session.run(
            lambda connection: connection.cursor(binary=True).execute(query, values).fetchall()
        )


def slices(ids: Sequence[UUID]) -> Iterator[list[UUID]]:
    """Divide ids into parts, each for one statement."""
    for start in range(0, len(ids), IDS_PER_STATEMENT):
        yield list(ids[start : start + IDS_PER_STATEMENT])
