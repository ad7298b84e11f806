"""Values of files and databases as JSON values that every destination takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import Any
from uuid import UUID

import numpy as np

_WRITTEN_OUT = (
    *(UUID, timedelta),
    *(IPv4Address, IPv6Address, IPv4Interface, IPv6Interface, IPv4Network, IPv6Network),
)
"""Types of databases whose `str` says everything."""


class BadValueError(ValueError):
    """A value that has no place in JSON or in a database; says why, not where."""


def json_value(value: Any) -> Any:
    """Return a value as JSON has it.

    Dates become ISO 8601, a Decimal a number where JSON can write it exactly and else a string, NaN
    and infinity None. A scalar of NumPy is taken for what it is in Python.

    Raises:
        BadValueError: bytes, an unknown type, or a string that `check_text` refuses.
    """
    if value is None or isinstance(value, (bool, int)):
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
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, _WRITTEN_OUT):
        return str(value)
    if isinstance(value, Exception):  # a reader's note that there is a value it could not read
        raise BadValueError(f"cannot be read: {' '.join(str(value).split())}")
    kind = type(value).__name__
    raise BadValueError(f"holds {kind}, which JSON has no form for")


def parse_json(line: str) -> Any:
    """Return the value that a line of JSON Lines holds.

    Raises:
        BadValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(line.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        # Its own words for the place count lines, and would name a second one.
        raise BadValueError(f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:
        raise BadValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise BadValueError("is nested too deeply") from error


def check_text(text: str) -> None:
    """Refuse what is a str in Python and no text in a database.

    Raises:
        BadValueError: NUL or a lone surrogate.
    """
    if "\0" in text:
        raise BadValueError(
            f"has NUL (U+0000) at character {text.index(chr(0))}, which databases do not store"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(
            f"has the lone surrogate {text[error.start]!r} at character {error.start}, which is "
            "not Unicode"
        ) from error


def _without_numpy(value: np.generic) -> Any:
    plain = value.item()
    # Of a time in nanoseconds item() makes a bare number, and of a long double itself.
    is_bare = isinstance(value, (np.datetime64, np.timedelta64)) and isinstance(plain, int)
    if is_bare or isinstance(plain, np.generic):
        raise BadValueError(f"holds {value.dtype}, which JSON has no form for")
    return plain


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise BadValueError(f"has the key {key!r:.60}, and keys are strings in JSON")
    check_text(key)
    return key


def _number(value: Decimal) -> int | float | str | None:
    if not value.is_finite():
        return None
    if abs(value.adjusted()) < 400 and value == value.to_integral_value():
        return int(value)
    # What JSON writes for a float is its repr: exact if that is the same decimal number.
    nearest = float(value)
    return nearest if Decimal(repr(nearest)) == value else str(value)
