"""The header Host: a page in a browser must not reach a server on loopback by another name."""

from __future__ import annotations

from collections.abc import Collection

from embedlib.serve.errors import HTTPError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(address: str) -> bool:
    """Return whether an address to listen on is reached from this machine alone."""
    return address in LOOPBACK or address.startswith("127.")


def check_host(host: str | None, allowed: Collection[str] | None) -> None:
    """Check the header Host of a request.

    Args:
        host: the header.
        allowed: the names to accept; None: any.

    Raises:
        HTTPError: another name (DNS rebinding: a web page's own name that leads to loopback).
    """
    if allowed is None or host is None:
        return
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name.lower() not in map(str.lower, allowed):
        raise HTTPError(
            421,
            f"Host = {host!r:.80} is not served here; add --allow-host {name:.60}",
            "wrong_host",
        )
