"""Retries of requests: which failures are temporary, and how long to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from embedlib.errors import SinkError
from embedlib.indexing import import_extra

T = TypeVar("T")

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0

_TEMPORARY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
"""Source: gRPC's status codes, and its mapping from HTTP: 429, 502, 503 and 504 are UNAVAILABLE."""
_TORN = "RST_STREAM"
"""In the details of code INTERNAL: a proxy has closed the stream."""
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_DETAILS = 300
"""Maximum characters of a server's message to show."""


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: in one line.
        is_temporary: whether the same request may succeed later.
        wait_s: how long the server asks to wait; None: it does not say.
    """

    reason: str
    is_temporary: bool
    wait_s: float | None = None


def retry(
    action: Callable[[], T],
    *,
    name: str,
    num_retries: int,
    remedy: str,
    tell: Callable[[str], None],
    sleep: Callable[[float], None],
) -> T:
    """Return what `action` returns; repeat it after temporary failures.

    Args:
        action: a request that may be repeated safely.
        name: the destination, for messages.
        num_retries: maximum number of repetitions.
        remedy: what to do after the last one.
        tell: called with a line before every wait.
        sleep: waits for a number of seconds.

    Raises:
        SinkError: a permanent failure, or the last temporary one.
    """
    number = 0
    while True:
        try:
            return action()
        except Exception as error:
            failure = _classify(error)
            if not failure.is_temporary:
                raise SinkError(f"{name}: {failure.reason}") from error
            if number == num_retries:
                raise SinkError(
                    f"{name}: failed {number + 1} times: {failure.reason}; {remedy}"
                ) from error
            wait_s = min(FIRST_WAIT_S * 2**number, LONGEST_WAIT_S)
            wait_s = max(wait_s, failure.wait_s or 0.0)
            number += 1
            tell(f"{name}: {failure.reason}; trying again in {wait_s:g} s ({number}/{num_retries})")
            sleep(wait_s)


def _classify(error: Exception) -> Failure:
    grpc = import_extra("grpc", "qdrant")
    exceptions = import_extra("qdrant_client.common.client_exceptions", "qdrant")
    if isinstance(error, exceptions.ResourceExhaustedResponse):
        return Failure(f"RESOURCE_EXHAUSTED {_shorten(str(error))}", True, error.retry_after_s)
    if not isinstance(error, grpc.RpcError):
        return Failure(_shorten(f"{type(error).__name__}: {error}"), False)
    code, details = error.code().name, _shorten(error.details() or "")
    if code in _REFUSED:
        hint = "; the API key is read from the environment variable QDRANT_API_KEY"
        return Failure(f"{code} {details}{hint}", False)
    is_torn = code == "INTERNAL" and _TORN in details
    return Failure(f"{code} {details}".strip(), code in _TEMPORARY or is_torn)


def _shorten(text: str) -> str:
    return " ".join(text.split())[:_DETAILS]
