"""One writer per table: a lock that the server releases when its connection ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import psycopg

from embedlib.errors import SinkError
from embedlib_pgvector.connection import Connection

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# The server needs a moment to notice that the connection of a killed writer is gone.
WAITS_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)
# A lock without a holder was released just after it was tried, so it is tried again at once.
RETRIES = (None,) * 5
_ASKED = 7
"""How often a pooler is asked for server processes: measured with PgBouncer 1.18 that four others
use, in turn or the last one first."""


def refuse_transaction_pooler(
    connection: Connection, connect: Callable[[], Connection], name: str
) -> None:
    """Refuse a pooler that gives a connection another server process for each transaction.

    A lock and a temporary table would stay in one of them, for whoever is given it next. Where two
    connections that are open share a process, there is such a pooler.

    Args:
        connection: outside of a transaction.
        connect: makes another one to the same address.
        name: the destination, for the message.

    Raises:
        SinkError: there is one.
    """
    process = _process(connection)
    if connection.info.backend_pid == process:
        return  # the server itself; a pooler gives its clients numbers of its own
    try:
        with closing(connect()) as other:
            # While others use it too, each may by chance have one of its own for a while.
            asked = [tuple(map(_process, (connection, other, other))) for _ in range(_ASKED)]
    except psycopg.Error:
        return  # no process is left for a second connection: each keeps its own
    if len({*asked}) > 1 or len({*asked[0]}) != 2:
        raise SinkError(
            f"{name}: this is a pooler in transaction mode, through which only searches work, "
            "since a load keeps a lock in one session; load through Postgres itself, or a pooler "
            "in session mode (Supabase: port 5432, not 6543; Neon: the host without -pooler)"
        )


class WriterLock:
    """Advisory locks on the table's name, within one database.

    The name is locked and not the oid, because two writers may both be about to create the table. A
    writer without a shard locks the whole table. Writers of shards share the table's lock, and each
    holds the lock of its own shard.

    Source: https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
    """

    def __init__(
        self,
        schema: str,
        table: str,
        name: str,
        wait: Callable[[float], None],
        shard: str | None = None,
    ) -> None:
        """Compute the keys of the locks; this takes none."""
        self._table_key = _key(schema, table)
        self._shard_key = None if shard is None else _key(schema, table, shard)
        self._setup_key = _key(schema, table, "setup")
        self._name = name
        self._wait = wait
        self._backend: tuple[Any, ...] | None = None
        self._shares_table = False

    def take(self, connection: Connection) -> None:
        """Take the locks until the connection ends.

        Raises:
            SinkError: another writer holds one of them.
        """
        holder: tuple[Any, ...] | None = None
        for seconds in (*WAITS_SECONDS, *RETRIES):
            taken = self._try(connection)
            if taken is None:
                self._backend = connection.execute(
                    "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
                ).fetchone()
                return
            holder = self._holder(connection, taken)
            if holder is not None and holder[:2] == self._backend:
                # Our own lost connection, which the server has not noticed yet.
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (holder[0],))
            if seconds is not None:
                self._wait(seconds)
            elif holder is not None:
                break
        who = f" ({holder[2]}, server process {holder[0]})" if holder is not None else ""
        raise SinkError(
            f"{self._name}: another writer is active{who}; wait for its end, or choose another "
            "table"
        )

    @contextmanager
    def setting_up(self, connection: Connection) -> Iterator[None]:
        """Keep writers of other shards from creating the table at the same time."""
        connection.execute("SELECT pg_advisory_lock(%s)", (self._setup_key,))
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (self._setup_key,))

    def take_alone(self, connection: Connection) -> bool:
        """Lock the whole table; return False while other shards are being written."""
        return self._shard_key is None or _is_true(
            connection, "SELECT pg_try_advisory_lock(%s)", self._table_key
        )

    def take_last(self, connection: Connection) -> bool:
        """Lock the whole table if no other shard is being written, and else leave it to those.

        This shard lets go of the table first: of shards that end together, the last to let go would
        otherwise find the others' locks, as they find its own.
        """
        if self._shares_table:
            connection.execute("SELECT pg_advisory_unlock_shared(%s)", (self._table_key,))
            self._shares_table = False
        return self.take_alone(connection)

    def share(self, connection: Connection) -> None:
        """Admit other shards again after `take_alone`."""
        if self._shard_key is not None:
            connection.execute("SELECT pg_advisory_unlock(%s)", (self._table_key,))

    def _try(self, connection: Connection) -> int | None:
        """Take the locks; return the key of a lock that another writer holds, or None."""
        if self._shard_key is None:
            is_free = _is_true(connection, "SELECT pg_try_advisory_lock(%s)", self._table_key)
            return None if is_free else self._table_key
        if not _is_true(connection, "SELECT pg_try_advisory_lock_shared(%s)", self._table_key):
            return self._table_key
        if not _is_true(connection, "SELECT pg_try_advisory_lock(%s)", self._shard_key):
            connection.execute("SELECT pg_advisory_unlock_shared(%s)", (self._table_key,))
            return self._shard_key
        self._shares_table = True
        return None

    def _holder(self, connection: Connection, key: int) -> tuple[Any, ...] | None:
        unsigned = key % (1 << 64)
        # Source of how a key is split: https://www.postgresql.org/docs/current/view-pg-locks.html
        return connection.execute(
            "SELECT a.pid, a.backend_start, coalesce(nullif(a.application_name, ''), 'unnamed')"
            " FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND l.classid = %s::bigint::oid AND l.objid = %s::bigint::oid",
            (unsigned >> 32, unsigned & 0xFFFFFFFF),
        ).fetchone()


def _key(*names: str) -> int:
    digest = blake2b("\0".join(("embedlib", *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _process(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None, "it is one value"
    return int(row[0])


def _is_true(connection: Connection, query: LiteralString, key: int) -> bool:
    row = connection.execute(query, (key,)).fetchone()
    return row is not None and bool(row[0])
