"""Parses the URL: which server, which table, which index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from embedlib.errors import SinkError
from embedlib.indexing import SinkUrl, is_true, with_connect_timeout

LOCAL_SCHEME = "pglocal"
OPTIONS = ("table", "halfvec", "m", "ef_construction", "index")
DEFAULT_TABLE = "embedlib"
APPLICATION_NAME = "embedlib"
MAX_NAME_BYTES = 63
"""Postgres truncates longer names silently.

Source: https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS
"""


@dataclass(frozen=True, kw_only=True)
class HnswOptions:
    """How the HNSW index is built; the defaults are pgvector's own.

    Source: https://github.com/pgvector/pgvector#hnsw
    """

    m: int = 16
    ef_construction: int = 64


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A table of a database.

    Attributes:
        name: for messages, without secrets.
        conninfo: for libpq; empty for a local server, which provides it when it runs.
        password: never shown in messages; empty if the URL has none.
        local_path: folder of the local server.
        schema: None: by the search path of the database.
        table: its name.
        is_halfvec: whether 16-bit floats are stored; None: if the index needs it.
        index: options of the index; None: no index is built.
        replaces: the table whose place this one is to take, or has left; it is in the same schema,
            and has the same writer's lock. None: none.
    """

    name: str
    conninfo: str = field(repr=False)
    password: str = field(repr=False)
    local_path: Path | None
    schema: str | None
    table: str
    is_halfvec: bool | None
    index: HnswOptions | None
    replaces: str | None = None

    @property
    def owner(self) -> str:
        """The table that decides the schema, and whose lock a writer takes."""
        return self.replaces or self.table


def parse_destination(url: SinkUrl) -> Destination:
    """Read a URL.

    Raises:
        SinkError: the URL is wrong; the message never quotes the password.
    """
    is_local = url.scheme == LOCAL_SCHEME
    # Options of libpq are passed on; messages list our own only, libpq has fifty.
    libpq = (
        set() if is_local else {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    )
    own = {key: value for key, value in url.options.items() if key not in libpq}
    if "password" in url.options and not own.keys() <= {*OPTIONS}:
        raise _url_error(url.scheme)  # an unknown option may be what follows a & in the password
    options = SinkUrl(scheme=url.scheme, location=url.location, options=own).take(*OPTIONS)
    schema, table = _table(options.get("table", DEFAULT_TABLE))
    if is_local:
        place, conninfo = f"{LOCAL_SCHEME}:{url.location}", ""
        if not url.location:
            raise SinkError(
                f"{LOCAL_SCHEME}: the URL has no folder; write {LOCAL_SCHEME}:PATH?table=docs"
            )
    else:
        passed_on = {key: value for key, value in url.options.items() if key in libpq}
        place, conninfo = _server(url.scheme, url.location, passed_on)
    return Destination(
        name=f"{place}?table={options.get('table', DEFAULT_TABLE)}",
        conninfo=conninfo,
        password=str(conninfo_to_dict(conninfo).get("password") or ""),
        local_path=Path(url.location).expanduser().absolute() if is_local else None,
        schema=schema,
        table=table,
        is_halfvec=is_true(options["halfvec"], "halfvec") if "halfvec" in options else None,
        index=_index(options),
    )


def _table(given: str) -> tuple[str | None, str]:
    schema, dot, table = given.partition(".")
    names = (schema, table) if dot else (given,)
    for part in names:
        if not part or "\0" in part or "." in part or len(part.encode()) > MAX_NAME_BYTES:
            raise SinkError(
                f"table={given!r}: must be TABLE or SCHEMA.TABLE, each part of 1 to "
                f"{MAX_NAME_BYTES} bytes without a dot"
            )
        if part[0] == part[-1] == '"':
            raise SinkError(
                f"table={given!r}: names are taken as they are, capital letters too; write "
                f"{part[1:-1]} without quotes"
            )
    if dot and schema.startswith("pg_"):
        raise SinkError(f"table={given!r}: {schema} is a schema of Postgres's own; name another")
    return (schema, table) if dot else (None, given)


def _server(scheme: str, location: str, options: Mapping[str, str]) -> tuple[str, str]:
    """Return the server's name for messages, and the conninfo for libpq."""
    authority, slash, database = location.removeprefix("//").partition("/")
    login, _, host = authority.rpartition("@")
    # If a password contains an unescaped / ? # or @, libpq takes its second half for another part
    # of the URL and quotes it in its messages.
    if "@" in login or "@" in database or "#" in location:
        raise _url_error(scheme)
    try:
        # Rows are sent as UTF-8 whatever the environment sets.
        named = {
            "fallback_application_name": APPLICATION_NAME,
            **options,
            "client_encoding": "UTF8",
        }
        conninfo = make_conninfo(f"postgresql:{location}", **with_connect_timeout(named))
    except psycopg.ProgrammingError:
        # libpq's own message may quote the password.
        raise _url_error(scheme) from None
    user = login.partition(":")[0]
    return f"{scheme}://{user}{'@' if user else ''}{host}{slash}{database}", conninfo


def _url_error(scheme: str) -> SinkError:
    return SinkError(
        f"{scheme}: the URL cannot be read; write {scheme}://USER:PASSWORD@HOST:PORT/DATABASE?"
        "table=TABLE, with / ? # @ % & in a password as %2F %3F %23 %40 %25 %26, or leave the "
        "password to PGPASSWORD or ~/.pgpass"
    )


def _index(options: Mapping[str, str]) -> HnswOptions | None:
    kind = options.get("index", "hnsw")
    if kind not in ("hnsw", "none"):
        raise SinkError(f"index={kind!r}; must be hnsw or none")
    # Source of the ranges: HNSW_MIN_M and its neighbours in pgvector's src/hnsw.h.
    default = HnswOptions()
    m = _int(options, "m", default.m, 2, 100)
    # pgvector requires ef_construction >= 2 * m.
    least = 2 * m
    ef_construction = _int(
        options, "ef_construction", max(default.ef_construction, least), max(4, least), 1000
    )
    return None if kind == "none" else HnswOptions(m=m, ef_construction=ef_construction)


def _int(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    given = options.get(name, str(default))
    is_number = given.isascii() and given.isdigit() and len(given) <= 9
    if not is_number or not low <= int(given) <= high:
        raise SinkError(f"{name}={given!r:.60}; must be a whole number from {low} to {high}")
    return int(given)
