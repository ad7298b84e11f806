"""The temporary table that a batch is copied to, before it is merged into the table."""

from __future__ import annotations

from psycopg import sql

from embedlib_pgvector.connection import Connection
from embedlib_pgvector.table import KEY, Table

STAGE = sql.Identifier("pg_temp", "embedlib_stage")


def create_stage(connection: Connection, table: Table) -> None:
    """Create the temporary table that a batch is copied to; it ends with the connection."""
    connection.execute(
        sql.SQL(
            "CREATE TEMPORARY TABLE IF NOT EXISTS {} ON COMMIT DELETE ROWS"
            " AS SELECT {} FROM {} WITH NO DATA"
        ).format(STAGE, columns(table), table.identifier)
    )


def merge_stage(table: Table) -> sql.Composed:
    """Return the statement that inserts the stage's rows into the table or replaces those there."""
    return sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM {stage}"
        " ON CONFLICT ({key}) DO UPDATE SET {changes}"
    ).format(
        table=table.identifier,
        columns=columns(table),
        stage=STAGE,
        key=sql.Identifier(KEY),
        changes=sql.SQL(", ").join(
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column))
            for column in table.columns
            if column != KEY
        ),
    )


def columns(table: Table) -> sql.Composed:
    """Return the names of the columns, in the order of the stream."""
    return sql.SQL(", ").join(map(sql.Identifier, table.columns))
