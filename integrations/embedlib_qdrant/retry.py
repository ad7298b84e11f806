"""Retries of requests: which failures are temporary, and how long to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from embedlib.errors import SinkError, count_of
from embedlib.indexing import UnreachableSinkError, import_extra

T = TypeVar("T")

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
_LONGEST_FOR_SEARCH_S = 5.0
"""A search is not tried again where that takes longer."""

_NUM_RETRIES = 8
"""Of a load: about two minutes."""
_NUM_FEW_RETRIES = 3
"""Of a search, for which somebody waits. Before the first answer of the server the address is more
likely to be wrong."""
_CHECK_ADDRESS = (
    "check that the server runs, its host, that the port is the one of gRPC (6334), and that the "
    "URL begins with qdrant+https:// if the server uses TLS"
)
_RUN_AGAIN = "written rows are kept, run the same command again to continue"
_LATER = "try again later"

_TEMPORARY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
"""Source: gRPC's status codes, and its mapping from HTTP: 429, 502, 503 and 504 are UNAVAILABLE."""
_PASSING = (
    *("RST_STREAM", "Stream removed"),
    "enough active replicas",
    "status: Unavailable",
    "0 of 0 read operations failed",
)
"""In the details of code INTERNAL or UNKNOWN: a proxy or gRPC itself has closed the stream
(https://github.com/grpc/grpc/issues/34076); nodes of a cluster have died, or have come back and are
not ready, or do not reach each other; another process is creating the collection."""
_NEVER_PASSES = "larger than rate limiter capacity"
"""Of a rate limit in strict mode that is smaller than one request."""
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_KEY_HINT = "the API key is read from the environment variable QDRANT_API_KEY"
_PORT_HINT = "6333 is usually the port of REST; give the one of gRPC, usually 6334"
_WRONG_ADDRESS = {
    "Expected SETTINGS frame": f"the port answers HTTP/1, not gRPC; {_PORT_HINT}",
    "Received http2 header with status: 4": f"the port answers HTTP, not gRPC; {_PORT_HINT}",
    "WRONG_VERSION_NUMBER": "the port does not use TLS; write qdrant:// in place of "
    "qdrant+https://, or give the port that does",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not trusted; if it is signed by an "
    "authority of your own, set GRPC_DEFAULT_SSL_ROOTS_FILE_PATH to that one's PEM file",
    "is not in peer certificate": "the server's certificate is for another host; use the name "
    "that it was made for",
}
"""By a part of gRPC's message: what it says about the address, before the first answer."""
_DETAILS = 300
"""Maximum characters of a server's message to show."""


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: in one line.
        is_temporary: whether the same request may succeed later.
        wait_s: how long the server asks to wait; None: it does not say.
        wrong_address: what is wrong with host, port or scheme; None: nothing is known to be.
        has_timed_out: whether the server let the time of a request pass without an answer.
    """

    reason: str
    is_temporary: bool
    wait_s: float | None = None
    wrong_address: str | None = None
    has_timed_out: bool = False


def retry(
    action: Callable[[], T],
    *,
    name: str,
    has_answered: bool,
    is_load: bool,
    tell: Callable[[str], None],
    sleep: Callable[[float], None],
) -> T:
    """Return what `action` returns; repeat it after temporary failures.

    Args:
        action: a request that may be repeated safely.
        name: the destination, for messages.
        has_answered: whether the server has answered a request before.
        is_load: whether rows are written, and nobody waits for an answer.
        tell: called with a line before every wait.
        sleep: waits for a number of seconds.

    Raises:
        UnreachableSinkError: the last temporary failure.
        SinkError: a permanent failure, or that of `action`.
    """
    num_retries = _NUM_RETRIES if is_load else _NUM_FEW_RETRIES
    remedy = _RUN_AGAIN if is_load else _LATER if has_answered else _CHECK_ADDRESS
    number = 0
    while True:
        try:
            return action()
        except SinkError:
            raise  # says what to do
        except Exception as error:
            failure = classify(error)
            if failure.wrong_address and not has_answered:
                raise SinkError(f"{name}: {failure.wrong_address}") from error
            if not failure.is_temporary:
                raise SinkError(f"{name}: {failure.reason}") from error
            wait_s = min(FIRST_WAIT_S * 2**number, LONGEST_WAIT_S)
            wait_s = max(wait_s, failure.wait_s or 0.0)
            is_slow = failure.has_timed_out or wait_s > _LONGEST_FOR_SEARCH_S
            if number == num_retries or (is_slow and not is_load):
                times = count_of(number + 1, "time")
                raise UnreachableSinkError(
                    f"{name}: failed {times}: {failure.reason}; {remedy}"
                ) from error
            number += 1
            tell(f"{name}: {failure.reason}; trying again in {wait_s:g} s ({number}/{num_retries})")
            sleep(wait_s)


def classify(error: Exception) -> Failure:
    """Return why a request failed, from the client's or gRPC's exception."""
    grpc = import_extra("grpc", "qdrant")
    exceptions = import_extra("qdrant_client.common.client_exceptions", "qdrant")
    if isinstance(error, exceptions.ResourceExhaustedResponse):
        passes = _NEVER_PASSES not in str(error)
        return Failure(f"RESOURCE_EXHAUSTED {_shorten(str(error))}", passes, error.retry_after_s)
    if not isinstance(error, grpc.RpcError):
        return Failure(_shorten(f"{type(error).__name__}: {error}"), False)
    code, details = error.code().name, error.details() or ""
    wrong = next((said for part, said in _WRONG_ADDRESS.items() if part in details), None)
    reason = f"{code} {_shorten(details)}".strip()
    if code in _REFUSED:
        wrong = wrong and f"{wrong}; if it is the right port, {_KEY_HINT}"
        return Failure(f"{reason}; {_KEY_HINT}", False, wrong_address=wrong)
    passes = code in ("INTERNAL", "UNKNOWN") and any(part in details for part in _PASSING)
    passes |= code in _TEMPORARY and _NEVER_PASSES not in details
    return Failure(reason, passes, _read_wait(error), wrong, code == "DEADLINE_EXCEEDED")


def is_refused(error: Exception) -> bool:
    """Return whether the server did not accept the key, or what it is for."""
    grpc = import_extra("grpc", "qdrant")
    return isinstance(error, grpc.RpcError) and error.code().name in _REFUSED


def _read_wait(error: Any) -> float | None:
    """Return the seconds that a server asks to wait; the client reads them the same way."""
    for key, value in error.trailing_metadata() or ():
        if key == "retry-after" and str(value).isdecimal():
            return float(value)
    return None


def _shorten(text: str) -> str:
    return " ".join(text.split())[:_DETAILS]
