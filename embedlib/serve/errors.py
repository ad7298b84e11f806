"""What goes wrong with a request: its status, its kind, and one line for the caller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Literal

from embedlib.errors import (
    ClosedError,
    ConfigError,
    EmbedlibError,
    InputError,
    QueueFullError,
    SequenceTooLongError,
    shortened,
)

Kind = Literal[
    "invalid",  # a field is wrong
    "too_long",  # a text has more tokens than the model takes, and may not be truncated
    "empty",  # nothing to compute
    "no_route",  # no such path, or not with this method
    "not_found",  # no such model
    "wrong_model",  # the model cannot do this
    "unauthorized",  # the API key is missing or wrong
    "wrong_host",  # the name that the request was sent to, or the site of the page that sent it
    "too_large",  # the body
    "encoded",  # the body is compressed
    "timeout",  # the body came late, or the deadline passed
    "overloaded",  # come again
    "missing",  # no such file, batch or request
    "disk_full",  # what was sent cannot be kept
    "unavailable",  # the model is loading, or the server drains
    "not_loaded",  # the model could not be loaded, or is lost: only a new start brings it back
    "failed",  # the engine
    "internal",  # a bug
]

BUG_MESSAGE = "the server has a bug; its log has the traceback under this request id"


class ClientGoneError(Exception):
    """The client has closed the connection; nobody reads an answer."""


class HTTPError(Exception):
    """An answer that is an error; each dialect has its own body for it."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: Kind = "invalid",
        *,
        param: str | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        """Describe the error.

        Args:
            status: of HTTP; dialects may have another one for this kind.
            message: one line, for the caller.
            kind: what dialects choose their own codes by.
            param: the field of the body that is wrong.
            retry_seconds: when to come again.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind: Kind = kind
        self.param = param
        self.retry_seconds = retry_seconds
        self._headers: list[tuple[str, str]] = []

    @classmethod
    def wrong_value(cls, param: str, value: object, remedy: str) -> HTTPError:
        """Return the error of a field whose value, of which it shows the beginning, is wrong."""
        said = str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"  # as JSON has it
        return cls(HTTPStatus.BAD_REQUEST, f"{param} = {said}; {remedy}", param=param)

    @classmethod
    def missing_field(cls, param: str) -> HTTPError:
        """Return the error of a body without a field that it must have."""
        message = f"{param} is missing; the body must have it"
        return cls(HTTPStatus.UNPROCESSABLE_ENTITY, message, param=param)

    @classmethod
    def overloaded(cls, message: str, seconds: float) -> HTTPError:
        """Return the error of a server that has too much to do for `seconds`."""
        return cls(
            HTTPStatus.TOO_MANY_REQUESTS, message, "overloaded", retry_seconds=max(0.05, seconds)
        )

    @classmethod
    def too_late(cls, limit: float) -> HTTPError:
        """Return the error of a request that was not answered within `limit` seconds."""
        message = f"the deadline of the request, {limit:.3f} seconds, has passed"
        return cls(HTTPStatus.GATEWAY_TIMEOUT, message, "timeout")

    @classmethod
    def wrong_method(cls, what: str, allowed: Sequence[str]) -> HTTPError:
        """Return the error of a path that takes other methods. Source: RFC 9110, 15.5.6."""
        methods = ", ".join(allowed)
        error = cls(
            HTTPStatus.METHOD_NOT_ALLOWED, f"{what} is not there; use {methods}", "no_route"
        )
        error._headers = [("allow", methods)]
        return error

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of the answer, such as those that say when to come again.

        Source: `retry-after-ms` is of openai-python, `_base_client.py`; `Retry-After` is of
        RFC 9110, 10.2.3.
        """
        if self.retry_seconds is None:
            return self._headers
        return [
            ("retry-after", str(math.ceil(self.retry_seconds))),
            ("retry-after-ms", str(round(self.retry_seconds * 1000))),
        ]


def describe(error: BaseException, field: str) -> HTTPError:
    """Return the answer for an exception of the library; a bug is told without its text.

    Args:
        error: the exception.
        field: of the body that has the texts.
    """
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, SequenceTooLongError):
        # The library's advice names an argument that requests do not have.
        what, _, advice = str(error).partition("; ")
        advice = "shorten them, or let them be truncated" if "on_truncate" in advice else advice
        return HTTPError(400, f"{what}; {advice}", "too_long", param=field)
    if isinstance(error, InputError):
        return HTTPError(400, str(error), param=field)
    if isinstance(error, ConfigError):
        return HTTPError(400, str(error))
    if isinstance(error, QueueFullError):
        return HTTPError.overloaded(str(error), seconds=1)
    if isinstance(error, ClosedError):
        return HTTPError(503, str(error), "unavailable", retry_seconds=5)
    if isinstance(error, EmbedlibError):
        return HTTPError(500, shortened(str(error)), "failed")
    if isinstance(error, MemoryError):
        return HTTPError.overloaded("the server is out of memory; send fewer texts", seconds=1)
    return HTTPError(500, BUG_MESSAGE, "internal")
