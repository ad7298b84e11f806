"""When the answer of a request is of no use any more, from the headers that clients send."""

from __future__ import annotations

from collections.abc import Mapping

MAX_CLOCK_SECONDS = 3600.0
"""A deadline that is further away than this tells that the clocks differ."""


def seconds_left(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the earliest deadline; None: there is none.

    Source: `request-timeout-ms` and `request-deadline-ms` (Unix time) are of Baseten's client,
    `x-stainless-read-timeout` (seconds) of openai-python.

    Args:
        headers: of the request.
        now: Unix time.
    """
    limits = []
    timeout = _number(headers.get("request-timeout-ms"))
    if timeout is not None:
        limits.append(timeout / 1000)
    read_timeout = _number(headers.get("x-stainless-read-timeout"))
    if read_timeout is not None:
        limits.append(read_timeout)
    deadline = _number(headers.get("request-deadline-ms"))
    if deadline is not None and abs(deadline / 1000 - now) <= MAX_CLOCK_SECONDS:
        limits.append(max(0.0, deadline / 1000 - now))
    return min(limits, default=None)


def _number(text: str | None) -> float | None:
    """Return a number of a header; None: it has none, or one that is no time."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
