"""The sink for Postgres with pgvector: writes rows in bulk, then builds the index.

It serves the URL schemes postgresql, postgres and pglocal; docs/pgvector.md is its manual. Modules,
in reading order: `destination` (the URL), `table` (what is in the database), `copy_rows` (rows as
bytes), `connection` (reconnects), `writer_lock` (one writer), `hnsw` (the index), `queries`
(searches), `generations` (a change of model), `local_server` (pglocal), `reading` and `sink` (all
of it together, reading and writing).
"""

from __future__ import annotations

from embedlib.indexing import Sink, SinkUrl, import_extra

__all__ = ["open_pgvector_sink"]


def open_pgvector_sink(url: SinkUrl) -> Sink:
    """Make the sink for a URL; this connects to nothing and creates nothing.

    Raises:
        SinkError: an option is wrong, or psycopg is not installed.
    """
    import_extra("psycopg", "pg-local" if url.scheme == "pglocal" else "pgvector")
    from embedlib_pgvector.destination import parse_destination
    from embedlib_pgvector.sink import PgvectorSink

    return PgvectorSink(parse_destination(url))
