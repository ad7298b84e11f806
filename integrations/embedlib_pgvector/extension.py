"""The extension pgvector: there, found by our statements, and new enough for a table."""

from __future__ import annotations

import re

import psycopg

from embedlib.errors import SinkError
from embedlib.indexing import Target
from embedlib_pgvector.connection import Connection
from embedlib_pgvector.destination import Destination

MIN_SERVER_VERSION = 140000
"""Postgres 14: the first version that reads a range of pages only, which `scan` needs."""

Version = tuple[int, ...]
# Source of both: https://github.com/pgvector/pgvector/blob/master/CHANGELOG.md
WITH_HNSW: Version = (0, 5)
WITH_NEW_TYPES: Version = (0, 7)
"""halfvec, sparsevec and the manhattan distance <+>."""


def find_vector_types(connection: Connection) -> None:
    """Add the schema of pgvector to the search path if it is missing there.

    The user's own path is kept in a setting: tables are looked for and made there alone, since a
    table of the same name in the added schema is somebody else's.
    """
    connection.execute(
        # A pooler resets a setting of ours to '' for its next client, and not to NULL.
        "SELECT set_config('embedlib.path', current_schemas(false)::text, false)"
        " WHERE coalesce(current_setting('embedlib.path', true), '') = '';"
        "SELECT set_config('search_path', concat_ws(', ',"
        " nullif(current_setting('search_path'), ''), quote_ident(n.nspname)), false)"
        " FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector' AND n.nspname <> ALL (current_schemas(true))"
    )


def ensure_extension(connection: Connection, name: str) -> None:
    """Create the extension pgvector if it is missing.

    Raises:
        SinkError: the server does not have it, or the user lacks the right; says what to do.
    """
    if connection.info.server_version < MIN_SERVER_VERSION:
        version = connection.info.parameter_status("server_version")
        raise SinkError(f"{name}: the server is Postgres {version}; 14 or newer is needed")
    if _version(connection) is None:
        available = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
        if connection.execute(available).fetchone() is None:
            major = connection.info.server_version // 10000
            raise SinkError(
                f"{name}: the server does not have pgvector; install it there, for example "
                f"apt install postgresql-{major}-pgvector, or use the image "
                f"pgvector/pgvector:pg{major}"
            )
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.errors.InsufficientPrivilege as error:
            raise SinkError(
                f"{name}: this user may not create the extension; ask an administrator to run "
                f"CREATE EXTENSION vector in the database {connection.info.dbname!r}"
            ) from error
        except psycopg.errors.UniqueViolation:
            pass  # another writer created it at the same moment
    find_vector_types(connection)


def check_version(
    connection: Connection, destination: Destination, target: Target, *, is_halfvec: bool
) -> None:
    """Check that pgvector has what a new table needs, before a row is embedded for it.

    Raises:
        SinkError: it is too old.
    """
    has_index = destination.index is not None
    narrow = "leave out halfvec=true" if destination.is_halfvec else "truncate the vectors"
    wanted = (
        (is_halfvec, "halfvec", WITH_NEW_TYPES, narrow),
        (target.sparse is not None, "sparsevec", WITH_NEW_TYPES, "load without --sparse"),
        (target.similarity == "manhattan", "<+>", WITH_NEW_TYPES, "choose another similarity"),
        (has_index, "hnsw", WITH_HNSW, "add index=none"),
    )
    found = _version(connection) or ()
    for is_wanted, what, least, instead in wanted:
        if is_wanted and found < least:
            raise SinkError(
                f"{destination.name}: {what} needs pgvector {_text(least)} or newer, and this "
                f"database has {_text(found)}; install a newer package on the server and run ALTER "
                f"EXTENSION vector UPDATE, or {instead}"
            )


def _version(connection: Connection) -> Version | None:
    """Return the version that the database has; None: none."""
    query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    row = connection.execute(query).fetchone()
    return None if row is None else tuple(map(int, re.findall(r"\d+", row[0])))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
