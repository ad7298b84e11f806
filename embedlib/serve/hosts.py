"""What a page in a browser must not do: reach a server on loopback that nobody else reaches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Final

from embedlib.serve.errors import HTTPError
from embedlib.serve.keys import KEY_HEADERS

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SENT_UNASKED: Final = (
    *("", "text/plain", "multipart/form-data"),
    "application/x-www-form-urlencoded",
)
"""Content types that a page may send to any site without its browser asking there first.

Source: Fetch, 2.2.2, CORS-safelisted request-header."""


def is_loopback(address: str) -> bool:
    """Return whether an address to listen on is reached from this machine alone."""
    return address in LOOPBACK or address.startswith("127.")


def check_host(method: str, host: str | None, allowed: Collection[str] | None) -> None:
    """Check the header Host of a request.

    Probes ask by an address, to which no page can make its own name lead. A page may send what
    changes something to an address, though, and its browser need not tell: that takes a name.

    Args:
        method: of the request.
        host: the header.
        allowed: the names to accept; None: any.

    Raises:
        HTTPError: another name (DNS rebinding: a web page's own name that leads to loopback).
    """
    if allowed is None or host is None:
        return
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    is_probe = method in ("GET", "HEAD") and _is_address(name)
    if name.lower() not in map(str.lower, allowed) and not is_probe:
        raise HTTPError(
            421,
            f"Host = {host!r:.80} is not served here; add --allow-host {name:.60}",
            "wrong_host",
        )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def check_page(method: str, headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site sends without its browser having asked first.

    The browser hides the answer from the page, but the request would be computed, and jobs kept.

    Args:
        method: of a request.
        headers: its head; browsers tell in one of them which page it is of.

    Raises:
        HTTPError: it is such a request. Source: W3C, Fetch Metadata Request Headers, 2.4.
    """
    if method != "POST" or headers.get("sec-fetch-site") != "cross-site":
        return  # a browser asks before it sends any other method that changes something
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _SENT_UNASKED and not any(name in headers for name in KEY_HEADERS):
        raise HTTPError(
            403,
            "a page of another site sent this; send it from a page of this server, or by a proxy "
            "that allows that site",
            "wrong_host",
        )
