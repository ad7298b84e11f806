"""A change of model: a table beside another one, which takes its name in one transaction.

The table `docs` has up to two others beside it, `docs__embedlib_new` and `docs__embedlib_old`. To
rename a table needs a lock that waits for the searches that run and lets the next ones wait, so it
is given up soon, and tried again.

Source of the locks: https://www.postgresql.org/docs/current/sql-altertable.html and
https://www.postgresql.org/docs/current/explicit-locking.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import numpy as np
import psycopg
from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import ReplacedError, SinkState, StoredRow, Tell, models_of
from embedlib_pgvector.connection import Connection, DatabaseSession, Result
from embedlib_pgvector.destination import MAX_NAME_BYTES, Destination
from embedlib_pgvector.index_names import is_name_taken, new_index_name, own_ending
from embedlib_pgvector.queries import TableMovedError
from embedlib_pgvector.rights import (
    check_no_policies,
    give_rights,
    read_rights,
    take_default_rights,
)
from embedlib_pgvector.table import Table, count_rows, drop_table, find_table

NEW: Final = "__embedlib_new"
OLD: Final = "__embedlib_old"
"""Behind the name of a table."""
LOCK_TIMEOUTS_MS: Final = (100, 200, 400, 800, 1500, 1500, 1500, 3000, 3000, 3000)
"""How long each attempt waits for the lock, and with it the searches that come meanwhile. Longer
than `deadlock_timeout`, 1 s, in the end: only after that an autovacuum of the table gives way."""
WAIT_SECONDS: Final = 2.0
"""Between two attempts."""
_LOOKS: Final = 5
"""How often a search follows a table that is renamed meanwhile."""


def beside_of(destination: Destination) -> Destination:
    """Return the destination of rows that are to take the place of others.

    Raises:
        SinkError: the name is too long for that.
    """
    if len(f"{destination.table}{NEW}".encode()) > MAX_NAME_BYTES:
        raise SinkError(
            f"{destination.name}: the rows of another model would be loaded into a table of this "
            f"name and {NEW}, and names have at most {MAX_NAME_BYTES} bytes; rename the table first"
        )
    return _other(destination, NEW)


def old_of(destination: Destination) -> Destination:
    """Return where rows are kept that were found before the last switch."""
    return _other(destination, OLD)


def _other(destination: Destination, suffix: str) -> Destination:
    return replace(
        destination,
        name=f"{destination.name}{suffix}",
        table=f"{destination.table}{suffix}",
        replaces=destination.table,
    )


def _replaced(destination: Destination) -> Destination:
    """Return the destination whose place this one is to take."""
    assert destination.replaces is not None, "only what `beside_of` returned is switched"
    return replace(
        destination,
        name=destination.name.removesuffix(NEW),
        table=destination.replaces,
        replaces=None,
    )


def ask_held(
    connection: Connection,
    destination: Destination,
    held: SinkState | None,
    known: Table | None,
    ask: Callable[[Table], Result],
) -> tuple[Table, Result]:
    """Ask the table of the held rows; where it was renamed meanwhile, find it and ask again.

    Args:
        connection: to the database.
        destination: what a search names.
        held: which rows are searched; None: those that have the name now.
        known: the table that was asked last.
        ask: asks a table. It raises `TableMovedError` if another one has its name.

    Returns:
        the table, and what `ask` returned.

    Raises:
        ReplacedError: there are no such rows any more.
        SinkError: there is no table of that name.
    """
    for look in range(_LOOKS):
        table = known or _find_held(connection, destination, held)
        try:
            found = ask(table)
            if not found and _has_moved(connection, table):  # no row says which table was read
                raise TableMovedError
            return table, found
        except (TableMovedError, psycopg.Error):
            if connection.closed or look == _LOOKS - 1 or not _has_moved(connection, table):
                raise
            known = None
    raise AssertionError("the last look returns or raises")


def _find_held(connection: Connection, destination: Destination, held: SinkState | None) -> Table:
    table = find_table(connection, destination)
    if held is None:
        if table is None:
            raise SinkError(
                f"{destination.name}: there is no such table; load it with embedlib index"
            )
        return table
    for found in (table, find_table(connection, old_of(destination))):
        if found is not None and models_of(found) == models_of(held):
            return found
    raise ReplacedError(destination.name, held, None if table is None else table.model)


def _has_moved(connection: Connection, table: Table) -> bool:
    """Whether another table has the name of this one now, or none."""
    found = connection.execute("SELECT to_regclass(%s)::oid", (table.regclass,)).fetchone()
    return found is None or found[0] != table.oid


def check_switchable(connection: Connection, destination: Destination, tell: Tell) -> None:
    """Refuse to take the place of a table with what the new one would not have.

    Args:
        connection: to the database.
        destination: of the new rows.
        tell: takes a line about what the user has to do for the new table.

    Raises:
        SinkError: says what.
    """
    table, name = find_table(connection, _replaced(destination)), _replaced(destination).name
    if table is None:
        if find_table(connection, destination) is not None:  # an earlier run has begun to load it
            tell(
                f"{name}: there is no table of this name now, whose rights the new one would get; "
                "grant rights on it (GRANT) when the load has ended"
            )
        return
    found = connection.execute(
        "SELECT pg_has_role(relowner, 'USAGE'), pg_get_userbyid(relowner) FROM pg_class"
        " WHERE oid = %s",
        (table.oid,),
    ).fetchone()
    is_owner, owner = found or (True, "")
    if not is_owner:
        raise SinkError(
            f"{name} belongs to the role {owner!r}, and only its owner may rename it, as a change "
            "of model does in the end; load as this role or as a member of it"
        )
    check_no_policies(connection, table, name)
    num_rows, num_ours = count_rows(connection, table)
    if num_rows != num_ours:
        raise SinkError(
            f"{name} has {num_rows - num_ours:,} rows that other programs wrote, which are in no "
            "source and would not be found any more; delete them, or load into another table"
        )
    tell_lost_indexes(connection, table, destination, tell)


def tell_lost_indexes(
    connection: Connection, table: Table, destination: Destination, tell: Tell
) -> None:
    """Name the indexes of a table that the one which takes its place does not get."""
    found = connection.execute(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s AND NOT i.indisprimary ORDER BY 1",
        (table.oid,),
    ).fetchall()
    ours = (table, replace(table, table=f"{table.table}{NEW}"))
    others = [name for (name,) in found if not any(own_ending(each, name) for each in ours)]
    if others:
        tell(
            f"{destination.name}: the new table does not get the indexes that you made "
            f"({', '.join(others)}); make them on it while it is loaded"
        )


def hide_new(connection: Connection, destination: Destination, new: Table) -> None:
    """Let nobody else read new rows before the switch gives their table the rights of the other."""
    if find_table(connection, _replaced(destination)) is not None:
        take_default_rights(connection, new.identifier)


def switch(
    session: DatabaseSession, destination: Destination, new: Table, wait: Callable[[float], None]
) -> None:
    """Give a table the name of another one, which gets the name of what is kept.

    Raises:
        SinkError: old rows are kept already, or the table is in use all the time.
    """
    _with_lock(
        *(session, _replaced(destination), wait),
        lambda connection: _switch_once(connection, destination, new),
    )


def _switch_once(connection: Connection, destination: Destination, new: Table) -> None:
    replaced = _replaced(destination)
    before, built = find_table(connection, replaced), find_table(connection, destination)
    if built is None and before is not None and before.oid == new.oid:
        return  # done, and only the answer was lost
    if find_table(connection, old_of(replaced)) is not None:
        raise SinkError(f"{replaced.name} keeps old rows already; remove them: embedlib drop-old")
    if before is not None:
        lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(before.identifier)
        connection.execute(lock)
        give_rights(connection, new.identifier, read_rights(connection, before))
        _rename(connection, before, old_of(replaced).table)
    _rename(connection, new, replaced.table)


def drop_old_table(
    session: DatabaseSession, destination: Destination, wait: Callable[[float], None]
) -> None:
    """Drop the table that is kept, if there is one.

    Raises:
        SinkError: it is in use all the time, or something depends on it.
    """

    def drop(connection: Connection) -> None:
        table = find_table(connection, old_of(destination))
        if table is not None:
            drop_table(connection, table)

    _with_lock(session, destination, wait, drop)


def _with_lock(
    session: DatabaseSession,
    destination: Destination,
    wait: Callable[[float], None],
    change: Callable[[Connection], None],
) -> None:
    """Do in one transaction what needs a lock that no search may hold."""

    def attempt(connection: Connection, timeout_ms: int) -> bool:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {timeout_ms:d}")
                change(connection)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    for timeout_ms in LOCK_TIMEOUTS_MS:
        if session.run(lambda connection, ms=timeout_ms: attempt(connection, ms)):  # type: ignore[misc]
            return
        session.tell(f"{destination.name} is in use; trying again in {WAIT_SECONDS:g} s")
        wait(WAIT_SECONDS)
    raise SinkError(
        f"{destination.name} is in use all the time, by a transaction that reads it or a backup; "
        "end it (pg_stat_activity shows who) and run this again, which goes on from here"
    )


def _rename(connection: Connection, table: Table, name: str) -> None:
    """Rename a table with its primary key and the indexes that embedlib built."""
    indexes = connection.execute(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s",
        (table.oid,),
    ).fetchall()
    connection.execute(
        sql.SQL("ALTER TABLE {} RENAME TO {}").format(table.identifier, sql.Identifier(name))
    )
    for (index,) in indexes:
        new_name = _new_name(connection, table, index, replace(table, table=name))
        if new_name is not None:
            connection.execute(
                sql.SQL("ALTER INDEX {} RENAME TO {}").format(
                    sql.Identifier(table.schema, index), sql.Identifier(new_name)
                )
            )


def _new_name(connection: Connection, table: Table, index: str, renamed: Table) -> str | None:
    """Return what an index is to be called when its table is renamed; None: it keeps its name."""
    ending = own_ending(table, index)
    if ending is not None:
        return new_index_name(connection, renamed, ending)
    name = f"{renamed.table}_pkey"
    is_ours = index == f"{table.table}_pkey" and len(name.encode()) <= MAX_NAME_BYTES
    is_free = is_ours and not is_name_taken(connection, table.schema, name)
    return name if is_free else None


def read_stored(connection: Connection, table: Table, ids: Sequence[UUID]) -> dict[UUID, StoredRow]:
    """Return text and vector of those of these rows that are stored."""
    query = sql.SQL(
        "SELECT langchain_id, content, embedding::text FROM {} WHERE langchain_id = ANY (%s)"
    ).format(table.escaped)
    rows = connection.execute(query, (list(ids),)).fetchall()
    return {
        id_: StoredRow(text, np.array(json.loads(vector), np.float32)) for id_, text, vector in rows
    }
