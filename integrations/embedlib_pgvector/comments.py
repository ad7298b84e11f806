"""Comments of columns: what is in one is dumped, restored, renamed and dropped with its table."""

from __future__ import annotations

from psycopg import sql

from embedlib_pgvector.connection import Connection


def read_comment(connection: Connection, oid: int, column: str) -> str | None:
    """Return the comment of a column of a table; None: there is none."""
    found = connection.execute(
        "SELECT col_description(attrelid, attnum) FROM pg_attribute"
        " WHERE attrelid = %s::oid AND attname = %s",
        (oid, column),
    ).fetchone()
    return None if found is None else found[0]


def write_comment(
    connection: Connection, table: sql.Identifier, column: str, comment: str | None
) -> None:
    """Replace the comment of a column; None removes it."""
    connection.execute(
        sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(
            table, sql.Identifier(column), sql.Literal(comment)
        )
    )
