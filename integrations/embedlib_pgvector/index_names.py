"""Names of the indexes that embedlib builds: of the table and an ending.

A table that was renamed by hand keeps the names of its indexes, and the next table of the old name
finds them taken. Its own then get a number.
"""

from __future__ import annotations

import zlib
from itertools import count

from embedlib_pgvector.connection import Connection
from embedlib_pgvector.destination import MAX_NAME_BYTES
from embedlib_pgvector.table import Table

VECTORS_INDEX, WORDS_INDEX = "embedding_hnsw", "words_gin"
"""The endings."""


def own_ending(table: Table, index: str) -> str | None:
    """Return the ending of an index of a table that embedlib built; None: it has another name."""
    number = int(index[len(index.rstrip("0123456789")) :] or 0)
    endings = (VECTORS_INDEX, WORDS_INDEX)
    return next((each for each in endings if index == _name(table, each, number)), None)


def new_index_name(connection: Connection, table: Table, ending: str) -> str:
    """Return a name for an index of a table that nothing else in its schema has."""
    names = (_name(table, ending, number) for number in count())
    return next(name for name in names if not is_name_taken(connection, table.schema, name))


def is_name_taken(connection: Connection, schema: str, name: str) -> bool:
    """Whether a table, an index or the like of a schema has this name."""
    found = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (schema, name),
    ).fetchone()
    return found is not None


def _name(table: Table, ending: str, number: int) -> str:
    name = f"{table.table}_{ending}{number or ''}"
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    digest = zlib.crc32(table.table.encode())
    return f"embedlib_{digest:08x}_{ending.rpartition('_')[2]}{number or ''}"
