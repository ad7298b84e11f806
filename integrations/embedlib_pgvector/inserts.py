"""How a batch gets into the table: copied to a temporary one, which is merged into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg import errors, sql

from embedlib.errors import SinkError
from embedlib.indexing import BadRow, Row, Tell, UnstorableRowsError
from embedlib_pgvector.connection import Connection
from embedlib_pgvector.table import KEY, Table

STAGE = sql.Identifier("pg_temp", "embedlib_stage")
SLOW_INSERT_ROWS = 10_000
"""Warn once after this many inserts into a table that already has its index; each takes
milliseconds."""
OF_A_ROW = (
    errors.CharacterNotInRepertoire,
    errors.UntranslatableCharacter,
    errors.ProgramLimitExceeded,
)
"""A character that the database does not have, more words than a full-text index takes."""


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


def store_parts(rows: Sequence[Row], store: Callable[[slice], None], name: str) -> None:
    """Store rows in one transaction; where one cannot be stored, in several all others.

    Args:
        rows: of a batch.
        store: stores a part of the batch in a transaction.
        name: of the destination.

    Raises:
        UnstorableRowsError: says which rows, and why; the server names none.
        SinkError: another failure; what is stored then is whole transactions.
    """
    bad_rows, parts = list[BadRow](), [(0, len(rows))]
    while parts:
        start, stop = parts.pop()
        try:
            store(slice(start, stop))
        except SinkError as error:
            if not isinstance(error.__cause__, OF_A_ROW):
                raise
            if stop - start == 1:
                why = str(error).removeprefix(f"{name}: ")
                bad_rows.append(rows[start].bad_row(f"cannot be stored: {why}"))
            else:
                middle = (start + stop) // 2
                parts += [(middle, stop), (start, middle)]
    if bad_rows:
        raise UnstorableRowsError(name, bad_rows)


class SlowInserts:
    """Counts the rows inserted into one table, and tells once that its index makes them slow."""

    def __init__(self, name: str, *, has_index: bool) -> None:
        """Begin to count.

        Args:
            name: of the destination.
            has_index: whether the table has its index.
        """
        self._name = name
        self._has_index = has_index
        self._num_written = 0

    def add(self, num_rows: int, tell: Tell) -> None:
        """Count rows that were inserted."""
        before, self._num_written = self._num_written, self._num_written + num_rows
        if self._has_index and before < SLOW_INSERT_ROWS <= self._num_written:
            tell(
                f"{self._name} has an index already, so inserts are tens of times slower "
                "than without one; if no searches use it, stop, drop the index and run the "
                "load again: it continues here and builds the index at the end"
            )
