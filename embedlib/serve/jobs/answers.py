"""What a job's request is answered with, and by whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from embedlib.serve.errors import HTTPError, Kind

BUSY_SECONDS = 1.0
"""Before a request is tried again that the server was too busy for, unless the answer says."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one request."""

    status: int
    """Of HTTP, as the request's route would answer."""
    body: bytes
    """JSON on one line."""
    error: HTTPError | None = None
    """That the body tells of."""
    num_tokens: int = 0
    model: str = ""

    @property
    def kind(self) -> Kind | None:
        """Of the error."""
        return None if self.error is None else self.error.kind

    @property
    def is_busy(self) -> bool:
        """Whether the server cannot answer now, so that the request waits and is no failure."""
        return self.kind in ("overloaded", "unavailable", "not_loaded")

    @property
    def busy_seconds(self) -> float:
        """The time before the request is tried again if the server was too busy."""
        seconds = None if self.error is None else self.error.retry_seconds
        return seconds or BUSY_SECONDS

    @property
    def is_not_loaded(self) -> bool:
        """Whether its model is not loaded, or lost, which only a new start changes."""
        return self.kind == "not_loaded"

    @property
    def has_failed(self) -> bool:
        """Whether the same request may be answered when it is tried again."""
        return self.kind in ("failed", "internal", "timeout")


Answerer = Callable[[str, bytes, str], Awaitable[Answer]]
"""Answers the body of a request to a path, under a request id."""
