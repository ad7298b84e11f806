"""HTTP as ASGI gives it: the head of a request, and a response.

Source: the ASGI specification 3.0, HTTP & WebSocket message format 2.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from random import getrandbits
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
Headers = Iterable[tuple[bytes, bytes]]
DIRECT = "embedlib.direct"
"""The extension of a scope whose `connection` is a `Direct`."""


class Direct(Protocol):
    """The connection of a request, of a server that offers it beside the messages of ASGI.

    What is there at once takes one call in place of several messages and a time limit.
    """

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done when the client has left."""

    def take_body(self) -> bytes | None:
        """Return the body, or what is left of it, if all of it is there; None: `receive` waits."""

    def resume_reading(self) -> None:
        """Read on behind the body, so that `gone` is seen."""

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer, unless that is not so simple; False: `send` must do it."""


class Request(msgspec.Struct):
    """The head of a request; its body is read later.

    A struct, as others that each request has: its constructor costs a fifth of a dataclass's.
    """

    method: str
    path: str
    """Without the path that the application is mounted under."""
    query: str
    headers: dict[str, str]
    """By name in lower case; of a header that was sent twice the last value."""
    client: str
    """The address of the client; empty for a unix socket."""
    direct: Direct | None = None
    """The connection; None: there are only messages."""
    entrance: Any = None
    """What the application found out about this head; a server may bring the head again."""

    @classmethod
    def from_scope(cls, scope: Scope) -> Request:
        """Return the request of an ASGI connection scope."""
        root: str = scope.get("root_path", "")
        path: str = scope["path"]
        client = scope.get("client")
        return cls(
            method=scope["method"],
            path=path[len(root) :] if root and path.startswith(root) else path,
            query=scope.get("query_string", b"").decode("latin-1"),
            headers={
                name.decode("latin-1"): value.decode("latin-1")  # names come in lower case
                for name, value in scope["headers"]
            },
            client=client[0] if client else "",
            # Taken out of the scope, which it refers to: else only the garbage collector ends both.
            direct=scope.get("extensions", {}).pop(DIRECT, {}).get("connection"),
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the query; of one that was sent twice the last value."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


class Response(msgspec.Struct):
    """A response whose body is complete."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """The size of the body."""
        return len(self.body)

    def send_directly(self, direct: Direct, more_headers: Headers) -> bool:
        """Send head and body at once, with headers beside its own; False: `send` must do it."""
        return direct.answer(self.status, self._all_headers(more_headers), self.body)

    async def send(self, send: Send, more_headers: Headers = ()) -> None:
        """Send head and body, with headers beside its own."""
        headers = self._all_headers(more_headers)
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})

    def _all_headers(self, more_headers: Headers) -> list[tuple[bytes, bytes]]:
        found = [(b"content-type", self.content_type.encode("latin-1"))]
        if self.status != 304:  # not modified: it would be the length of what is not sent
            found.append((b"content-length", b"%d" % self.num_bytes))
        for name, value in self.headers:
            found.append((name.encode("latin-1"), value.encode("latin-1", "replace")))
        found += more_headers
        return found


class PartsResponse(Response, kw_only=True):
    """A response whose body is sent in parts, so that it is never in memory as a whole."""

    body: bytes = b""
    parts: AsyncIterator[bytes]
    size: int
    """Bytes of all parts together."""
    direct: Direct | None = None
    """The connection, if it tells when the client has left."""

    @property
    def num_bytes(self) -> int:
        """The size of the body."""
        return self.size

    def send_directly(self, direct: Direct, more_headers: Headers) -> bool:
        """Remember the connection: parts are sent as they come, while the client is there."""
        self.direct = direct
        return False

    async def send(self, send: Send, more_headers: Headers = ()) -> None:
        """Send head and parts."""
        headers = self._all_headers(more_headers)
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        async for part in self.parts:
            if self.direct is not None and self.direct.gone.done():
                return  # `send` would drop it, and all that are read yet
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def new_id() -> str:
    """Return 32 hexadecimal digits; not by `uuid4`, which asks the system each time."""
    return f"{getrandbits(128):032x}"
