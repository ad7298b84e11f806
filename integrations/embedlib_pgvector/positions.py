"""How far a source was read: a line in the comment of the column `source_id`.

As the comment with the model, it is dumped, restored and dropped with the table.
"""

from __future__ import annotations

from psycopg import sql

from embedlib_pgvector.connection import Connection
from embedlib_pgvector.table import Table

_COLUMN = "source_id"


def read_position(connection: Connection, table: Table) -> str | None:
    """Return the line; None: there is none."""
    found = connection.execute(
        "SELECT col_description(attrelid, attnum) FROM pg_attribute"
        " WHERE attrelid = %s::oid AND attname = %s",
        (table.oid, _COLUMN),
    ).fetchone()
    return None if found is None else found[0]


def write_position(connection: Connection, table: Table, position: str | None) -> None:
    """Replace the line; None removes it."""
    connection.execute(
        sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(
            table.identifier, sql.Identifier(_COLUMN), sql.Literal(position)
        )
    )
