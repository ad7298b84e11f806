"""What a job's request is answered with, and by whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from embedlib.serve.errors import Kind

BUSY_SECONDS = 1.0
"""Before a request is tried again that the server was too busy for, unless the answer says."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one request."""

    status: int
    """Of HTTP, as the request's route would answer."""
    body: bytes
    """JSON on one line."""
    kind: Kind | None = None
    """Of the error; None: there is none."""
    message: str = ""
    """Of the error."""
    retry_seconds: float | None = None
    num_tokens: int = 0
    model: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether the server cannot answer now, so that the request waits and is no failure."""
        return self.kind in ("overloaded", "unavailable", "not_loaded")

    @property
    def busy_seconds(self) -> float:
        """The time before the request is tried again if the server was too busy."""
        return self.retry_seconds or BUSY_SECONDS

    @property
    def is_not_loaded(self) -> bool:
        """Whether its model could not be loaded, which only a new start of the server changes."""
        return self.kind == "not_loaded"

    @property
    def has_failed(self) -> bool:
        """Whether the same request may be answered when it is tried again."""
        return self.kind in ("failed", "internal", "timeout")


Answerer = Callable[[str, bytes, str], Awaitable[Answer]]
"""Answers the body of a request to a path, under a request id."""
