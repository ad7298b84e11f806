"""How far a table that grows was read: the largest value of one of its columns.

A run reads the rows from that value on, and an hour or 3,600 numbers before it (`since_overlap`):
a transaction that commits late brings rows with older values than others that were read before it.
What is read twice is compared with the destination and not embedded again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, Final

from embedlib.errors import SourceError, shown
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sources.json_values import DatabaseValue

Value = int | float | Decimal | date | str
"""What can be a position; a datetime is a date."""

_DECODERS: Final[Mapping[str, Callable[[str], Value]]] = {
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "str": str,
}
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:([ T])(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
"""Date, separator, time and zone of a text. Source: ISO 8601; SQLite, date and time functions."""
_LAST_COMMENT: Final = re.compile(r"\s*--[^\n'\"$]*\Z")
"""A comment at the end of a query; what has a quote may be a text that only looks like one."""
_FUTURE: Final = timedelta(days=1)
"""Zones differ by less. A value after that, such as 9999-12-31, is no time of a change: with it as
position, no row would ever be read again."""
_DAY_SECONDS: Final = 86_400


class Highest:
    """The largest value of a column in the rows of a query."""

    def __init__(self, field: str, overlap: float, name: str, tell: Tell) -> None:
        """Begin without a position.

        Args:
            field: the column.
            overlap: seconds of a time, or a difference of numbers, that are read again.
            name: of the source, for messages.
            tell: called once if a value is in the future.
        """
        self._field = field
        self._overlap = overlap
        self._name = name
        self._tell = tell
        self._value: Any = None
        self._kind: str | None = None
        self._open_seconds = 0.0
        self._has_told = False
        self._now = datetime.now(timezone.utc).replace(tzinfo=None)

    def resume(self, position: str) -> Value:
        """Take up a position and return the value from which on rows are to be read."""
        kind, text, open_seconds = json.loads(position)
        value = _DECODERS[kind](text)
        self._value, self._kind = value, _kind_of(value)
        # A number does not say when it was drawn.
        more = open_seconds if isinstance(value, date | str) else 0
        return lower_bound(value, self._overlap + more)

    def begin(self, open_seconds: float) -> None:
        """Take how long the oldest transaction is open whose rows may become visible later."""
        self._open_seconds = open_seconds

    def position(self) -> str | None:
        """Return the position after the rows that were seen; None: there was no value."""
        value = self._value
        if value is None:
            return None
        text = value.isoformat() if isinstance(value, date) else str(value)
        return json.dumps([type(value).__name__, text, math.ceil(self._open_seconds)])

    def see(self, value: Any) -> None:
        """Take the value of a row.

        Raises:
            SourceError: it has no order, or another one than the values before it.
        """
        if value is None or _is_infinite(value):
            return  # such a row is read in every run
        kind = _kind_of(value)
        if kind is None:
            raise SourceError(
                f"{self._name}: the field {self._field!r} holds {shown(value)}; since_field "
                "(--since-field) needs a column of numbers, dates, times, or texts such as "
                "2026-01-31 or 2026-01-31T12:00:00Z"
            )
        if self._kind is not None and kind != self._kind:
            raise SourceError(
                f"{self._name}: the field {self._field!r} holds {self._kind} and {kind}, which "
                "have no common order; run once without since_field (--since-field), which reads "
                "everything and drops the position, and then with another column"
            )
        # What changes until then would have smaller values, and would not be read.
        if _is_after(value, self._now + (timedelta() if _has_zone(value) else _FUTURE)):
            self._tell_future(value)
            return
        self._kind = kind
        if self._value is None or value > self._value:
            self._value = value

    def _tell_future(self, value: Value) -> None:
        if not self._has_told and _is_after(value, self._now + _FUTURE):
            self._has_told = True
            self._tell(
                f"{self._name}: the field {self._field!r} holds {shown(value)}, which is in the "
                "future; such rows are read in every run"
            )


def lower_bound(value: Value, overlap: float) -> Value:
    """Return the value from which on rows are read, this far before a position."""
    if isinstance(value, int):
        return value - math.ceil(overlap)
    if isinstance(value, float):
        return value - overlap
    if isinstance(value, Decimal):
        return Context(rounding=ROUND_FLOOR).subtract(value, Decimal(str(overlap)))
    try:
        if isinstance(value, str):
            return _text_before(value, overlap)
        if isinstance(value, datetime):
            return value - timedelta(seconds=overlap)
        return value - timedelta(days=math.ceil(overlap / _DAY_SECONDS))
    except OverflowError:  # before the year 1
        return "" if isinstance(value, str) else value.min


def changed_since(query: str, field: str, mark: str, begin: Value) -> str:
    """Return the query for those rows whose field is at least a parameter, or cannot be compared.

    Args:
        query: one SELECT.
        field: a column of its result.
        mark: how the database writes a parameter, "?" or "%s".
        begin: the parameter.
    """
    query = _LAST_COMMENT.sub("", query.rstrip()).rstrip(";")
    # With its table: SQLite takes a quoted name that is no column for a text.
    column = 'embedlib_rows."' + field.replace('"', '""') + '"'
    if mark == "%s":
        query, column = query.replace("%", "%%"), column.replace("%", "%%")
    more = ""
    if mark == "?":  # SQLite has numbers before all texts, and reads this one as -infinity
        is_text = isinstance(begin, str)
        more = f" OR typeof({column}) <> 'text'" if is_text else f" OR {column} = -9e999"
    elif isinstance(begin, date | float):  # PostgreSQL's, which some write for never
        more = f" OR {column} = '-infinity'"
    return (
        f"SELECT * FROM (\n{query}\n) AS embedlib_rows"
        f" WHERE {column} >= {mark} OR {column} IS NULL{more}"
    )


def _is_infinite(value: Any) -> bool:
    if isinstance(value, DatabaseValue):
        return value.written in ("infinity", "-infinity")  # times of PostgreSQL
    return isinstance(value, float | Decimal) and not math.isfinite(value)


def _kind_of(value: object) -> str | None:
    """Return which values this one can be compared with, in words; None: none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | Decimal):
        return "numbers"
    if isinstance(value, datetime):
        return "times without a zone" if value.tzinfo is None else "times with a zone"
    if isinstance(value, date):
        return "dates"
    parsed = _parse(value) if isinstance(value, str) else None
    if parsed is None:
        return None
    _, separator, zone = parsed
    return f"texts such as 2026-01-31{separator}{'12:00' if separator else ''}{zone}"


def _parse(text: str) -> tuple[datetime, str, str] | None:
    """Return the time of a text to the second, its separator and its zone; None: it is no time."""
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    day, separator, clock, zone = found.groups()
    try:
        parsed = datetime.fromisoformat(f"{day}T{clock or '00:00'}")
    except ValueError:
        return None
    return parsed, separator or "", zone or ""


def _text_before(text: str, overlap: float) -> str:
    """Return a text that is in the order of texts before those of later times."""
    parsed = _parse(text)
    assert parsed is not None, "only texts with a time are positions"
    moment, separator, _ = parsed
    if not separator:
        return (moment - timedelta(days=math.ceil(overlap / _DAY_SECONDS))).date().isoformat()
    # The beginning of a text is before the whole: no fraction and no zone, of which "." is before
    # "Z", and, where rows may have times to the minute, no seconds.
    has_seconds = text[len("2026-01-31T12:00") :].startswith(":")
    unit = "seconds" if has_seconds and not overlap else "minutes"
    return (moment - timedelta(seconds=math.ceil(overlap))).isoformat(separator, unit)


def _has_zone(value: Value) -> bool:
    """Whether it is known which moment a value is."""
    if isinstance(value, str):
        return value.endswith("Z")
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_after(value: Value, latest: datetime) -> bool:
    """Whether a value is a time after another, which is in UTC."""
    if isinstance(value, str):
        parsed = _parse(value)
        return parsed is not None and parsed[0] > latest
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            latest = latest.replace(tzinfo=timezone.utc)
        return value > latest
    return isinstance(value, date) and datetime.combine(value, time()) > latest
