"""Values of PostgreSQL for which Python has no type, or one that cannot hold them."""

from __future__ import annotations

from typing import Any

from embedlib.errors import SourceError
from embedlib.indexing.sources.json_values import DatabaseValue
from embedlib.packages.installing import import_extra

_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz")
"""Types with values that Python's do not have: `infinity`, years before 1 or after 9999, 24:00."""

_JSON = ("json", "jsonb")
"""Types with numbers of more digits than Python reads, or nested more deeply."""

_INTERVAL = "interval"
"""Has months, of which psycopg makes 30 days."""


def load_as_written(connection: Any) -> None:
    """Make a connection of psycopg return such values as the server writes them.

    psycopg ends the whole query at an `infinity`, and has classes of its own for ranges. JSON that
    Python does not read becomes the error, so that its row is a bad one.
    """
    psycopg = import_extra("psycopg", "pgvector", SourceError)
    ranges = (psycopg.types.range.RangeInfo, psycopg.types.multirange.MultirangeInfo)
    adapters = connection.adapters
    for kind in adapters.types:
        if kind.name == _INTERVAL or isinstance(kind, ranges):
            adapters.register_loader(kind.oid, _Written)
        elif kind.name in (*_TIMES, *_JSON):
            usual = adapters.get_loader(kind.oid, psycopg.pq.Format.TEXT)
            adapters.register_loader(kind.oid, _usual_or_written(usual, psycopg.DataError))


class _Written:
    """A loader of psycopg; `psycopg.abc.Loader` documents the members."""

    format = 0  # text, the only one in which a cursor in the server is read here

    def __init__(self, oid: int, context: Any = None) -> None:
        pass

    def load(self, data: Any) -> Any:
        return DatabaseValue(bytes(data).decode())


def _usual_or_written(usual: Any, data_error: type[Exception]) -> type[_Written]:
    """Return a loader that returns what the usual one does, where that can."""

    class UsualOrWritten(_Written):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._load = usual(oid, context).load

        def load(self, data: Any) -> Any:
            try:
                return self._load(data)
            except (data_error, NotImplementedError):  # the latter: a DateStyle other than ISO
                return super().load(data)
            except (ValueError, RecursionError) as unread:
                return unread

    return UsualOrWritten
