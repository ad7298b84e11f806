"""Webhooks: where they may go, and one delivery, within bounds of size and time.

A client names the URL, so that a server could be made to speak to whatever it reaches (SSRF). So
only named hosts are spoken to, addresses that are not public only when they are named themselves,
the address that was checked is the one connected to, and redirects are not followed.

Source: OWASP, "Server Side Request Forgery Prevention"; RFC 9112 for the bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from embedlib.errors import ConfigError, shown
from embedlib.serve.errors import HTTPError
from embedlib.version import __version__

SECONDS = 10.0
"""For one delivery, from the name to the status line."""
MAX_URL_CHARS = 2048
MAX_LINE_BYTES = 16 << 10
"""Of the answer's status line; no more of it is read."""
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which a webhook is delivered again."""
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses for hosts that have only IPv6."""
_ORIGIN = re.compile(r"([a-zA-Z]*:?//)?([^/?#]*)")
"""Scheme and host of whatever is sent."""
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class DeliveryError(Exception):
    """A webhook was not delivered.

    Attributes:
        may_retry: whether it may be tried again.
    """

    def __init__(self, message: str, *, may_retry: bool) -> None:
        super().__init__(message)
        self.may_retry = may_retry


@dataclass(frozen=True)
class Endpoint:
    """A URL that webhooks may go to."""

    is_tls: bool
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def authority(self) -> str:
        """The header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The one spelling of all that lead there: a host has bounds, however it is written."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.target}"


class Policy:
    """Where webhooks may go."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Allow hosts by name, addresses, and networks of addresses (10.0.0.0/8).

        Raises:
            ConfigError: it is none of these.
        """
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for name in allowed:
            try:
                self._networks.append(ipaddress.ip_network(name.strip("[]"), strict=False))
            except ValueError:
                if not _HOST.fullmatch(name):
                    raise ConfigError(
                        f"webhooks to {shown(name)}: it must be the name of a host, an address or "
                        "a network (10.0.0.0/8), without scheme and port"
                    ) from None
                self._hosts.add(name.lower().rstrip("."))
        if "localhost" in self._hosts:
            self._networks += [ipaddress.ip_network("127.0.0.1"), ipaddress.ip_network("::1")]

    def endpoint(self, url: str) -> Endpoint:
        """Return where a URL leads.

        Raises:
            HTTPError: webhooks may not go there.
        """
        try:
            # First: `urlsplit` keeps what it was given last, 128 times.
            is_plain = url.isascii() and url.isprintable() and " " not in url
            parts = urlsplit(url if is_plain and len(url) <= MAX_URL_CHARS else "")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        unfit = f"it must be a URL of at most {MAX_URL_CHARS} ASCII characters"
        if not host:
            raise _refused(url, unfit)
        if parts.username is not None or parts.fragment:
            raise _refused(url, "leave out user, password and fragment")
        host = host.rstrip(".")
        if not self._knows(host):
            raise _refused(
                url, f"start the server with --webhook-allow {host:.80} to let it go there"
            )
        if parts.scheme != "https" and not (parts.scheme == "http" and self._networks):
            raise _refused(url, "it must begin with https://")
        is_tls = parts.scheme == "https"
        target = parts.path or "/"
        target = f"{target}?{parts.query}" if parts.query else target
        endpoint = Endpoint(is_tls, host, port or (443 if is_tls else 80), target)
        if len(endpoint.url) > MAX_URL_CHARS:  # a / longer than it was
            raise _refused(url, unfit)
        return endpoint

    def check_address(self, endpoint: Endpoint, text: str) -> None:
        """Check an address that a host has.

        Raises:
            DeliveryError: webhooks may not go there.
        """
        address = ipaddress.ip_address(text)
        if self._names(address):
            return
        if not endpoint.is_tls:
            raise DeliveryError(
                "http goes only to addresses that --webhook-allow names; use https",
                may_retry=False,
            )
        if not is_public(address):
            raise DeliveryError(
                f"{endpoint.host} leads to an address that is not public; name the address with "
                "--webhook-allow, too",
                may_retry=False,
            )

    def _knows(self, host: str) -> bool:
        try:
            return self._names(ipaddress.ip_address(host))
        except ValueError:
            return host in self._hosts

    def _names(self, address: Address) -> bool:
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


def is_public(address: Address) -> bool:
    """Return whether an address is of the public internet, and so is what is inside of it.

    Source: IANA special-purpose registries, by `ipaddress`; RFC 6052 for 64:ff9b::/96.
    """
    inner: Address | None = None
    if isinstance(address, ipaddress.IPv6Address):
        if address in _TRANSLATED:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local:
            return False
        inner = address.ipv4_mapped or address.sixtofour
    is_plain = address.is_global and not address.is_multicast and not address.is_reserved
    return is_plain and (inner is None or is_public(inner))


def _refused(url: str, remedy: str) -> HTTPError:
    # Without user, path and query, which may hold a secret.
    scheme, host = _ORIGIN.match(url[:MAX_URL_CHARS]).groups("")  # type: ignore[union-attr]
    shown = f"{scheme}{host.rpartition('@')[2]}"
    return HTTPError(
        400, f"webhook_endpoint = {shown!r:.120} is refused; {remedy}", param="webhook_endpoint"
    )


def sign(body: bytes, secrets: Sequence[str]) -> str:
    """Return the header that proves who sent a body: one signature for each secret.

    Source: Baseten's documentation, "Securing async inference".
    """
    digests = [hmac.new(each.encode(), body, hashlib.sha256).hexdigest() for each in secrets]
    return ",".join(f"v1={digest}" for digest in digests)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


class Sender:
    """Delivers bodies to endpoints."""

    def __init__(
        self, policy: Policy, *, seconds: float = SECONDS, resolve: Resolve = resolve
    ) -> None:
        """Deliver where the policy allows it, within some seconds."""
        self._policy = policy
        self._seconds = seconds
        self._resolve = resolve
        self._tls: ssl.SSLContext | None = None

    async def send(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Deliver a body.

        Raises:
            DeliveryError: it did not arrive, or was not taken.
        """
        try:
            endpoint = self._policy.endpoint(url)
        except HTTPError as error:
            raise DeliveryError(error.message, may_retry=False) from None
        try:
            status = await asyncio.wait_for(self._post(endpoint, headers, body), self._seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise DeliveryError(
                f"it was not taken within {self._seconds:g} seconds", may_retry=True
            ) from None
        except ssl.SSLError as error:
            raise DeliveryError(f"TLS failed: {error.reason}", may_retry=True) from None
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            name = type(error).__name__
            raise DeliveryError(f"the connection failed: {name}", may_retry=True) from None
        if not 200 <= status < 300:
            raise DeliveryError(f"it was answered with {status}", may_retry=status in RETRIED)

    async def _post(
        self, endpoint: Endpoint, headers: Sequence[tuple[str, str]], body: bytes
    ) -> int:
        addresses = await self._resolve(endpoint.host, endpoint.port)
        for address in addresses:  # all of them: which one is tried must not matter
            self._policy.check_address(endpoint, address)
        if endpoint.is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        reader, writer = await self._connect(endpoint, addresses)
        try:
            writer.write(_head(endpoint, headers, len(body)))
            writer.write(body)  # who refuses a large one answers and closes before it has read it
            return await _read_status(reader)
        finally:
            with suppress(OSError):
                writer.close()
            # A receiver that reads no more would keep the rest of the body in memory.
            asyncio.get_running_loop().call_later(self._seconds, writer.transport.abort)

    async def _connect(
        self, endpoint: Endpoint, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that takes it: `localhost` may be ::1 where nobody listens.

        Raises:
            OSError, TimeoutError: none does; that of the last one.
        """
        failure: Exception = OSError("the host has no address")
        for address in addresses:
            connecting = asyncio.open_connection(
                address,
                endpoint.port,
                limit=MAX_LINE_BYTES,
                ssl=self._tls if endpoint.is_tls else None,
                server_hostname=endpoint.host if endpoint.is_tls else None,
            )
            try:
                return await asyncio.wait_for(connecting, self._seconds / len(addresses))
            except (OSError, asyncio.TimeoutError) as error:
                failure = error
        raise failure


def _head(endpoint: Endpoint, headers: Sequence[tuple[str, str]], num_bytes: int) -> bytes:
    lines = [
        f"POST {endpoint.target} HTTP/1.1",
        f"Host: {endpoint.authority}",
        f"User-Agent: embedlib/{__version__}",
        "Content-Type: application/json",
        f"Content-Length: {num_bytes}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii")


async def _read_status(reader: asyncio.StreamReader) -> int:
    """Return the status of an answer; nothing more of it is read.

    Raises:
        ValueError: it is no HTTP.
    """
    for _ in range(8):  # interim answers, RFC 9110, 15.2
        words = (await reader.readline()).split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise ValueError("no HTTP")
        status = int(words[1])
        if status >= 200:
            return status
        while (await reader.readline()).strip():
            pass
    raise ValueError("no answer")
