"""The table: the columns of LangChain's PGVectorStore, and some of our own.

What identifies a load (model, fingerprint, similarity) is JSON in the comment of the column
`embedlib_digest`. A comment is created in the same transaction as the table, and is renamed,
dumped, restored and dropped with it, whereas a row of a second table could be left behind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import psycopg
from psycopg import sql

from embedlib.config import Similarity
from embedlib.errors import SinkError
from embedlib.indexing import Description, SparseModel, Target
from embedlib_pgvector.comments import read_comment, write_comment
from embedlib_pgvector.connection import Connection
from embedlib_pgvector.copy_rows import COLUMNS, SPARSE_COLUMN
from embedlib_pgvector.destination import Destination

FORMAT = 1
FORMAT_KEY = "embedlib_format"
KEY, DIGEST = "langchain_id", "embedlib_digest"

MAX_DIM = 16_000
"""Source: https://github.com/pgvector/pgvector#vector-type"""
MAX_INDEXED_DIM = 2_000
MAX_INDEXED_HALFVEC_DIM = 4_000
"""Source of both: https://github.com/pgvector/pgvector#hnsw"""


DROP_WAIT_MS = 30_000
"""How long to wait until nobody reads a table that is to be dropped. New searches wait as well."""


@dataclass(frozen=True, kw_only=True)
class Table(Description):
    """A table that embedlib created, as it is in the database.

    Attributes:
        oid: distinguishes it from an earlier table of the same name.
        schema: its schema.
        table: its name.
        is_halfvec: whether it has 16-bit floats.
    """

    oid: int
    schema: str
    table: str
    is_halfvec: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the stream."""
        return (*COLUMNS, SPARSE_COLUMN) if self.sparse is not None else COLUMNS

    @property
    def identifier(self) -> sql.Identifier:
        """The name with its schema, quoted."""
        return sql.Identifier(self.schema, self.table)

    @property
    def escaped(self) -> sql.SQL:
        """The same for a statement with parameters, in which percent signs are doubled."""
        return sql.SQL(self.regclass.replace("%", "%%"))

    @property
    def regclass(self) -> str:
        """The name as a value: cast to regclass, it stands for the table that has it now."""
        return self.identifier.as_string(None)

    @property
    def type_name(self) -> str:
        """Type of the vectors."""
        return "halfvec" if self.is_halfvec else "vector"


def resolve_schema(connection: Connection, destination: Destination) -> str:
    """Return the schema in which the table is, or would be created.

    Raises:
        SinkError: no schema of the search path exists.
    """
    if destination.schema is not None:
        return destination.schema
    row = _one(
        connection,
        "SELECT n.nspname FROM unnest(coalesce("
        "nullif(current_setting('embedlib.path', true), '')::name[], current_schemas(false)))"
        " WITH ORDINALITY AS path (schema, place) JOIN pg_namespace n ON n.nspname = path.schema"
        " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname::text = %s"
        " ORDER BY c.oid IS NULL, place LIMIT 1",
        destination.owner,
    )
    if row is None:
        raise SinkError(
            f"{destination.name}: no schema of the search path exists; write table=SCHEMA.TABLE"
        )
    return str(row[0])


def find_table(connection: Connection, destination: Destination) -> Table | None:
    """Return the table; None: there is no table of that name.

    Raises:
        SinkError: embedlib did not create the table of that name.
    """
    schema = resolve_schema(connection, destination)
    found = _one(
        connection,
        "SELECT c.oid, t.typname, e.atttypmod, col_description(c.oid, d.attnum)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " LEFT JOIN pg_attribute e ON e.attrelid = c.oid AND e.attname = 'embedding'"
        " LEFT JOIN pg_type t ON t.oid = e.atttypid"
        " LEFT JOIN pg_attribute d ON d.attrelid = c.oid AND d.attname = 'embedlib_digest'"
        # As text: a parameter of type name would be cut to 63 bytes, to the name of another table.
        " WHERE n.nspname = %s AND c.relname::text = %s",
        schema,
        destination.table,
    )
    if found is None:
        return None
    oid, type_name, dim, comment = found
    try:
        stored = json.loads(comment or "")
        version = stored[FORMAT_KEY]
    except (ValueError, KeyError, TypeError):
        raise SinkError(
            f"{destination.name}: embedlib did not create the table of this name and does not "
            "change it; choose another with table=NAME"
        ) from None
    if version != FORMAT or stored.get("similarity") not in get_args(Similarity):
        raise SinkError(
            f"{destination.name} was created by another version of embedlib (format {version!r}, "
            f"this one writes {FORMAT}); use that version, or another table"
        )
    return Table(
        oid=oid,
        schema=schema,
        table=destination.table,
        is_halfvec=type_name == "halfvec",
        dim=dim,
        similarity=stored["similarity"],
        fingerprint=stored["fingerprint"],
        model=stored["model"],
        precision=stored.get("precision"),
        sparse=SparseModel(**stored["sparse"]) if stored.get("sparse") else None,
        full_text=stored.get("full_text"),
    )


def read_mark(connection: Connection, oid: int) -> dict[str, Any]:
    """Return what is stored of the load of a table that `find_table` has found."""
    comment = read_comment(connection, oid, DIGEST)
    assert comment is not None, "find_table has read it"
    mark: dict[str, Any] = json.loads(comment)
    return mark


def write_mark(connection: Connection, table: sql.Identifier, mark: dict[str, Any]) -> None:
    """Store what identifies the load of a table."""
    write_comment(connection, table, DIGEST, json.dumps(mark))


def choose_halfvec(destination: Destination, dim: int) -> bool:
    """Return whether a new table stores 16-bit floats.

    Raises:
        SinkError: vectors of this dimension cannot be stored or indexed like that.
    """
    name, is_halfvec = destination.name, destination.is_halfvec
    if dim > MAX_DIM:
        raise SinkError(
            f"{name}: pgvector stores up to {MAX_DIM} dimensions, the model makes {dim}"
        )
    if destination.index is None or dim <= MAX_INDEXED_DIM:
        return bool(is_halfvec)
    if is_halfvec is False or dim > MAX_INDEXED_HALFVEC_DIM:
        way = "leave out halfvec=false, or " if dim <= MAX_INDEXED_HALFVEC_DIM else ""
        raise SinkError(
            f"{name}: the model makes {dim} dimensions, and pgvector's index takes up to "
            f"{MAX_INDEXED_DIM}, with halfvec up to {MAX_INDEXED_HALFVEC_DIM}; {way}truncate the "
            "vectors with the model's truncate_dim, or add index=none to search without an index"
        )
    return True


def check_type(destination: Destination, table: Table) -> None:
    """Refuse other vectors than those of a table, and such that its index cannot take.

    Raises:
        SinkError: the URL asks for them.
    """
    asked = destination.is_halfvec
    if asked is not None and asked != table.is_halfvec:
        raise SinkError(
            f"{destination.name} stores {table.type_name}; leave out halfvec={str(asked).lower()}, "
            "or pass recreate=True (--recreate) to drop these rows and start over"
        )
    if destination.index is not None:
        # A table that was created with index=none may have too many dimensions for an index.
        choose_halfvec(replace(destination, is_halfvec=table.is_halfvec), table.dim)


def drop_table(connection: Connection, table: Table) -> None:
    """Drop a table that embedlib created, with every row in it."""
    connection.execute(sql.SQL("DROP TABLE {}").format(table.identifier))


def drop_to_make_anew(connection: Connection, table: Table, name: str) -> None:
    """Drop a table for another one of its name; call it in a transaction.

    Raises:
        SinkError: a transaction reads it for too long. It may be the source of the load itself,
            which is read before this, and would never end.
    """
    try:
        connection.execute(f"SET LOCAL lock_timeout = {DROP_WAIT_MS:d}")
        drop_table(connection, table)
    except psycopg.errors.LockNotAvailable as error:
        raise SinkError(
            f"{name} cannot be dropped, because a transaction reads it, such as the query of this "
            "load (--sql), a backup or a long search (pg_stat_activity shows them); end that and "
            "run again, or load into another table"
        ) from error


def create_table(
    connection: Connection, destination: Destination, target: Target, *, is_halfvec: bool
) -> None:
    """Create an empty table for a load; call it in a transaction."""
    identifier = sql.Identifier(resolve_schema(connection, destination), destination.table)
    stored = {
        FORMAT_KEY: FORMAT,
        "model": target.model,
        "fingerprint": target.fingerprint,
        "similarity": target.similarity,
        "precision": target.precision,
        **({"sparse": asdict(target.sparse)} if target.sparse else {}),
    }
    sparse: sql.Composable = sql.SQL("")
    if target.sparse is not None:
        sparse = sql.SQL(", {} sparsevec({})").format(
            sql.Identifier(SPARSE_COLUMN), sql.Literal(target.sparse.dim)
        )
    # Our own columns may be null: a row that LangChain adds does not have them.
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (langchain_id uuid PRIMARY KEY, content text NOT NULL,"
            " embedding {}({}) NOT NULL, langchain_metadata jsonb, source_id text, chunk integer,"
            " embedlib_digest bytea{})"
        ).format(
            identifier,
            sql.SQL("halfvec" if is_halfvec else "vector"),
            sql.Literal(target.dim),
            sparse,
        )
    )
    write_mark(connection, identifier, stored)


def has_rows(connection: Connection, table: Table) -> bool:
    """Whether there is a row; to count them reads the whole table."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(table.identifier)
    return _one(connection, query) == (True,)


def count_rows(connection: Connection, table: Table) -> tuple[int, int]:
    """Return the number of rows, and how many of them embedlib wrote."""
    row = _one(
        connection,
        sql.SQL("SELECT count(*), count(embedlib_digest) FROM {}").format(table.identifier),
    )
    assert row is not None, "an aggregate returns one row"
    return row[0], row[1]


def _one(
    connection: Connection, query: str | sql.Composed, *values: object
) -> tuple[Any, ...] | None:
    return connection.execute(query, values or None).fetchone()
