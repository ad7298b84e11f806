"""Converts values of files and databases to JSON values that every destination can store."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any
from uuid import UUID

import numpy as np

from embedlib.errors import shown

MAX_INTEGER_BITS = 14_280
"""Of 4,299 digits: Python neither prints nor reads integers of more than 4,300, also in JSON."""


@dataclass(frozen=True, slots=True)
class DatabaseValue:
    """A value for which Python has no type, as its database writes it.

    It is no str, so that its column is not taken for the one with the texts.
    """

    written: str

    def __str__(self) -> str:
        return self.written

    __repr__ = __str__


_WRITTEN_OUT = (
    *(UUID, timedelta, DatabaseValue),
    *(IPv4Address, IPv6Address, IPv4Network, IPv6Network),
)
"""Types of database values that `str` writes in full; an interface is an address."""


class BadValueError(ValueError):
    """A value that JSON or a database cannot store. The message says why; callers add where."""


def json_value(value: Any) -> Any:
    """Convert a value to its JSON form.

    Dates become ISO 8601 strings. A Decimal becomes a number if JSON can write it exactly,
    otherwise a string. NaN and infinity become None. NumPy scalars are converted to Python first.

    Raises:
        BadValueError: bytes, an unknown type, an integer that Python does not print, or a string
            that `check_text` refuses.
    """
    if value is None:
        return None
    if isinstance(value, int):  # also True and False
        if value.bit_length() > MAX_INTEGER_BITS:
            raise BadValueError(f"holds an integer of {value.bit_length()} bits, which is too long")
        return value
    if isinstance(value, np.generic):
        return json_value(_without_numpy(value))
    if isinstance(value, str):
        check_text(value)
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, Mapping):
        return {_key(key): json_value(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):  # a list in a data frame that was read from Parquet
        # Not tolist, which makes bare integers of times in nanoseconds.
        return json_value(list(value) if value.ndim else value[()])
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (date, datetime, time)):
        # The NaT of pandas is a datetime that is equal to nothing.
        return value.isoformat() if value == value else None
    if isinstance(value, _WRITTEN_OUT):
        return str(value)
    if isinstance(value, Exception):  # put there by a reader that could not read the value
        raise BadValueError(f"cannot be read: {' '.join(str(value).split())}")
    kind = type(value).__name__
    raise BadValueError(f"holds {kind}, which JSON cannot represent")


def parse_json(line: str) -> Any:
    """Parse a line of JSON Lines, without its end.

    Raises:
        BadValueError: the line is not JSON, or nested too deeply.
    """
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        # error.msg only: str(error) adds a line number of its own, which is always 1.
        raise BadValueError(f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:
        raise BadValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise BadValueError("is nested too deeply") from error


def check_text(text: str) -> None:
    """Refuse a str that a database cannot store as text.

    Raises:
        BadValueError: NUL or a lone surrogate.
    """
    if "\0" in text:
        raise BadValueError(
            f"has NUL (U+0000) at character {text.index(chr(0))}, which databases do not store"
        )
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(
            f"has the lone surrogate {text[error.start]!r} at character {error.start}, which is "
            "not Unicode"
        ) from error


def _without_numpy(value: np.generic) -> Any:
    plain = value.item()
    # item() makes a bare int of a time in nanoseconds, and leaves a long double as it is.
    is_bare = isinstance(value, (np.datetime64, np.timedelta64)) and isinstance(plain, int)
    if is_bare or isinstance(plain, np.generic):
        raise BadValueError(f"holds {value.dtype}, which JSON cannot represent")
    return plain


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise BadValueError(f"has the key {shown(key)}, but JSON keys must be strings")
    check_text(key)
    return key


def _number(value: Decimal) -> int | float | str | None:
    if not value.is_finite():
        return None
    if abs(value.adjusted()) < 400 and value == value.to_integral_value():
        return int(value)
    # JSON writes the repr of a float: exact if that is the same decimal number.
    nearest = float(value)
    return nearest if Decimal(repr(nearest)) == value else str(value)
