"""When the answer of a request is of no use any more, from the headers that clients send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_CLOCK_SECONDS = 3600.0
"""A deadline that is further away than this tells that the clocks differ."""
_TIMEOUTS: Final = {"request-timeout-ms": 1000, "x-stainless-read-timeout": 1}
"""Headers, and how many of their units are a second. Source: the first, and the deadline in Unix
time, are of Baseten's client, the other of openai-python."""
_DEADLINE: Final = "request-deadline-ms"
_ALL: Final = frozenset((*_TIMEOUTS, _DEADLINE))


def seconds_left(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the earliest deadline; None: there is none.

    Args:
        headers: of the request.
        now: Unix time.
    """
    if _ALL.isdisjoint(headers):
        return None
    limits = []
    for name, per_second in _TIMEOUTS.items():
        if name in headers and (timeout := _number(headers[name])) is not None:
            limits.append(timeout / per_second)
    if _DEADLINE in headers and (deadline := _number(headers[_DEADLINE])) is not None:
        left = deadline / 1000 - now
        if abs(left) <= MAX_CLOCK_SECONDS:
            limits.append(max(0.0, left))
    return min(limits, default=None)


def _number(text: str) -> float | None:
    """Return the number of a header; None: it is no time."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
