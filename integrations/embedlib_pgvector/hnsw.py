"""The search index: built once, after the rows, with as much memory as its graph needs."""

from __future__ import annotations

import os
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from embedlib.config import Similarity
from embedlib.errors import count_of
from embedlib.system.memory import read_memory
from embedlib_pgvector.connection import Connection, DatabaseSession
from embedlib_pgvector.destination import HnswOptions
from embedlib_pgvector.index_names import VECTORS_INDEX, new_index_name, own_ending
from embedlib_pgvector.table import Table, count_rows

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# Source of operators and classes: https://github.com/pgvector/pgvector#querying and #hnsw
OPERATORS: dict[Similarity, tuple[str, str]] = {
    "cosine": ("<=>", "cosine_ops"),
    "dot": ("<#>", "ip_ops"),
    "euclidean": ("<->", "l2_ops"),
    "manhattan": ("<+>", "l1_ops"),
}
"""The operator for each similarity, and its class for an index, behind the type of the vectors."""
PROGRESS_SECONDS = 10.0

BYTES_PER_NEIGHBOR = 32
"""Memory per row for each unit of m: two links of 16 bytes on the lowest layer."""
BYTES_PER_ROW = 208
RESERVED_BYTES = 4 << 20
"""Both measured: from the number of rows at which pgvector 0.8.5 reports that its graph no longer
fits into 8 MB (16, 384 and 1,000 dimensions, m of 8, 16 and 32, vector and halfvec) follow 194 to
200 bytes per row beside the vector and the links. A parallel build reserves 3 MB."""

_VALUE: Final = "SELECT setting FROM pg_settings WHERE name = %s"
_BYTES: Final = "SELECT pg_size_bytes(current_setting(%s))"
_MOST_BYTES: Final = "SELECT max_val::bigint * 1024 FROM pg_settings WHERE name = %s"


@dataclass(frozen=True, kw_only=True)
class Index:
    """An index on the vectors.

    Attributes:
        name: in the schema of the table.
        method: hnsw, or that of an index the user built.
        is_valid: whether its build was completed.
        options: such as m, as given when it was built.
    """

    name: str
    method: str
    is_valid: bool
    options: dict[str, str]


def operator_class(table: Table) -> str:
    """Return the operator class for the similarity of the table."""
    return f"{table.type_name}_{OPERATORS[table.similarity][1]}"


def find_index(connection: Connection, table: Table) -> Index | None:
    """Return the index that searches use; a valid one if there are several."""
    row = connection.execute(
        "SELECT c.relname, m.amname, i.indisvalid, coalesce(c.reloptions, '{}')"
        " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam"
        " JOIN pg_opclass o ON o.oid = i.indclass[0]"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
        " WHERE i.indrelid = %s AND a.attname = 'embedding' AND i.indpred IS NULL"
        " AND o.opcname = %s ORDER BY i.indisvalid DESC LIMIT 1",
        (table.oid, operator_class(table)),
    ).fetchone()
    if row is None:
        return None
    options = dict(option.split("=", 1) for option in row[3])
    return Index(name=row[0], method=row[1], is_valid=row[2], options=options)


def is_own(table: Table, index: Index) -> bool:
    """Whether embedlib has built an index of this table, which the name says."""
    return own_ending(table, index.name) == VECTORS_INDEX


def concurrently(connection: Connection, table: Table) -> sql.SQL:
    """Return CONCURRENTLY, or nothing for a partitioned table, where Postgres refuses it."""
    query = "SELECT 1 FROM pg_partitioned_table WHERE partrelid = %s"
    is_divided = connection.execute(query, (table.oid,)).fetchone() is not None
    return sql.SQL("" if is_divided else "CONCURRENTLY")


def drop_index(connection: Connection, table: Table, name: str) -> None:
    """Drop an index without blocking searches, but for those of a partitioned table."""
    connection.execute(
        sql.SQL("DROP INDEX {} IF EXISTS {}").format(
            concurrently(connection, table), sql.Identifier(table.schema, name)
        )
    )


def clear_own_index(connection: Connection, table: Table, *, is_live: bool) -> bool:
    """Drop an index that a killed build left, and the index of an empty table.

    Inserts into an indexed table are tens of times slower, so an empty table gets its index
    at the end. A table with rows may be in use by searches, so it keeps its index, and so does an
    empty one of another role: only the owner may drop an index, or build it again.

    Returns:
        whether there is an index now.
    """
    index = find_index(connection, table)
    if index is not None and is_own(table, index) and not (index.is_valid and is_live):
        try:
            drop_index(connection, table, index.name)
        except psycopg.errors.InsufficientPrivilege:
            if not index.is_valid:
                raise
        else:
            return False
    return index is not None


def graph_bytes(num_rows: int, table: Table, options: HnswOptions) -> int:
    """Return how much memory the graph of `num_rows` rows needs while it is built."""
    vector = 8 + table.dim * (2 if table.is_halfvec else 4)
    row = vector + BYTES_PER_NEIGHBOR * options.m + BYTES_PER_ROW
    return num_rows * row + RESERVED_BYTES


def _is_of_shared_memory(error: psycopg.Error) -> bool:
    """Return whether a disk that is full is /dev/shm, whose segments have this name."""
    is_disk = isinstance(error, psycopg.errors.DiskFull)
    return not is_disk or "/PostgreSQL." in str(error) or "shared memory" in str(error)


class IndexBuild:
    """Builds the index of a table if it is missing; may be repeated after a failure."""

    def __init__(
        self, session: DatabaseSession, table: Table, options: HnswOptions, *, is_live: bool
    ) -> None:
        """Describe the build.

        Args:
            session: opens a second connection, for the progress.
            table: what to index.
            options: of the HNSW graph.
            is_live: whether the table may be in use; then the build does not block writers.
        """
        self._session = session
        self._table = table
        self._options = options
        self._is_live = is_live

    def run(self, connection: Connection) -> None:
        """Build the index; pass this to `DatabaseSession.run`."""
        for is_parallel in (True, False):
            index = find_index(connection, self._table)
            if index is not None and index.is_valid:
                self._compare(index)
                return
            if index is not None and is_own(self._table, index):
                drop_index(connection, self._table, index.name)
            try:
                self._build(connection, is_parallel)
                return
            except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory) as error:
                # A parallel build needs shared memory; a container often has only 64 MB of it.
                # Source: https://github.com/pgvector/pgvector#index-build-time
                if not is_parallel or not _is_of_shared_memory(error):
                    raise
                self._session.tell(
                    "too little shared memory to build the index with several processes; using one"
                )

    def _build(self, connection: Connection, is_parallel: bool) -> None:
        num_rows, _ = count_rows(connection, self._table)
        self._session.tell(f"building the index of {count_of(num_rows, 'row')}")
        self._set_memory(connection, num_rows)
        self._set_workers(connection, is_parallel)
        statement = sql.SQL("CREATE INDEX {} {} ON {} USING hnsw (embedding {}) WITH ({})").format(
            concurrently(connection, self._table) if self._is_live else sql.SQL(""),
            sql.Identifier(new_index_name(connection, self._table, VECTORS_INDEX)),
            self._table.identifier,
            sql.SQL(operator_class(self._table)),
            sql.SQL("m = {}, ef_construction = {}").format(
                self._options.m, self._options.ef_construction
            ),
        )
        # The build runs on its own thread, so that this one can report progress. The thread is not
        # one of an executor: after Ctrl-C the program would wait for the end of the build.
        build: Future[Any] = Future()

        def work() -> None:
            try:
                build.set_result(connection.execute(statement))
            except BaseException as error:  # `build.result()` raises it
                build.set_exception(error)

        thread = Thread(target=work, name="embedlib-pgvector-index", daemon=True)
        thread.start()
        try:
            self._watch(build, connection.info.backend_pid, num_rows)
        except BaseException:
            connection.cancel_safe()
            raise
        finally:
            thread.join()
        build.result()

    def _watch(self, build: Future[Any], pid: int, num_rows: int) -> None:
        """Report the progress until the build ends."""
        while not wait([build], timeout=PROGRESS_SECONDS).done:
            self._session.tell_notices()
            try:
                with self._session.connect() as connection:
                    row = connection.execute(
                        "SELECT phase, tuples_done FROM pg_stat_progress_create_index"
                        " WHERE pid = %s",
                        (pid,),
                    ).fetchone()
            except psycopg.Error:
                continue  # if the server has a problem, the build itself raises it
            if row is not None:
                self._session.tell(f"index: {row[0]}, {row[1]:,} of {num_rows:,} rows")

    def _set_memory(self, connection: Connection, num_rows: int) -> None:
        """Give the build the memory that its graph needs, within what the machine can spare."""
        needed = graph_bytes(num_rows, self._table, self._options)
        setting = _read(connection, _BYTES, "maintenance_work_mem")
        most = _read(connection, _MOST_BYTES, "maintenance_work_mem")  # on Windows it may be 2 GB
        value = max(setting, min(needed, self._spare_bytes(connection), most))
        _set(connection, "maintenance_work_mem", f"{value >> 10}kB")

    def _spare_bytes(self, connection: Connection) -> int:
        """Return half of the server's memory, or what is left here if that is less.

        A container may have less than its machine. A remote server does not report its memory; its
        administrator states it in effective_cache_size, by default 4 GB.
        """
        if _is_here(connection):
            half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
            room = read_memory().room
            return half if room is None else min(half, room.num_bytes)
        return _read(connection, _BYTES, "effective_cache_size") // 2

    def _set_workers(self, connection: Connection, is_parallel: bool) -> None:
        """Use all available cores; the server uses fewer for a small table."""
        setting = _read(connection, _VALUE, "max_parallel_maintenance_workers")
        limit = _read(connection, _VALUE, "max_parallel_workers")
        cores = (os.cpu_count() or 1) - 1 if _is_here(connection) else limit // 2
        num_workers = max(setting, min(cores, limit)) if is_parallel else 0
        _set(connection, "max_parallel_maintenance_workers", str(num_workers))

    def _compare(self, index: Index) -> None:
        """Report where an existing index differs from the options of the URL."""
        default = HnswOptions()
        asked = {"m": self._options.m, "ef_construction": self._options.ef_construction}
        for name, value in asked.items():
            there = int(index.options.get(name, getattr(default, name)))
            if index.method == "hnsw" and there != value != getattr(default, name):
                self._session.tell(
                    f"the existing index {index.name!r} with {name}={there} is kept; drop it to "
                    f"build it with {name}={value}"
                )


def _is_here(connection: Connection) -> bool:
    host = connection.info.host
    return host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")


def _read(connection: Connection, query: LiteralString, setting: str) -> int:
    """Return a number of a setting, which every server has."""
    row = connection.execute(query, (setting,)).fetchone()
    assert row is not None, setting
    return int(row[0])


def _set(connection: Connection, name: str, value: str) -> None:
    connection.execute("SELECT set_config(%s, %s, false)", (name, value))
