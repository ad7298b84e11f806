"""Old import path: sinks written for earlier versions import these names from here."""

from __future__ import annotations

from embedlib.indexing.sources.sql import CONNECT_SECONDS, open_sql_source
from embedlib.indexing.sources.sql import POSTGRES_NO_ANSWER as NO_ANSWER
from embedlib.indexing.sources.sql import with_connect_timeout as with_timeout

__all__ = ["CONNECT_SECONDS", "NO_ANSWER", "open_sql_source", "with_timeout"]
