"""HTTP as ASGI gives it: a request, its body read within bounds, and a response.

Source: the ASGI specification 3.0, HTTP & WebSocket message format 2.5.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from random import getrandbits
from typing import Any
from urllib.parse import parse_qsl

from embedlib.serve.errors import ClientGoneError, HTTPError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(slots=True)
class Request:
    """The head of a request; its body is read later."""

    method: str
    path: str
    """Without the path that the application is mounted under."""
    query: str
    headers: dict[str, str]
    """By name in lower case; of a header that was sent twice the last value."""
    client: str
    """The address of the client; empty for a unix socket."""

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
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in scope["headers"]
            },
            client=client[0] if client else "",
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the query; of one that was sent twice the last value."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


@dataclass(slots=True)
class Response:
    """A response whose body is complete."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """The size of the body."""
        return len(self.body)

    async def send(self, send: Send, more_headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send head and body."""
        await self._send_head(send, more_headers)
        await send({"type": "http.response.body", "body": self.body})

    async def _send_head(self, send: Send, more_headers: Iterable[tuple[str, str]]) -> None:
        headers = [
            (b"content-type", self.content_type.encode("latin-1")),
            (b"content-length", b"%d" % self.num_bytes),
        ]
        for name, value in (*self.headers, *more_headers):
            headers.append((name.encode("latin-1"), value.encode("latin-1", "replace")))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})


@dataclass(slots=True, kw_only=True)
class PartsResponse(Response):
    """A response whose body is sent in parts, so that it is never in memory as a whole."""

    body: bytes = b""
    parts: AsyncIterator[bytes]
    size: int
    """Bytes of all parts together."""

    @property
    def num_bytes(self) -> int:
        """The size of the body."""
        return self.size

    async def send(self, send: Send, more_headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send head and parts."""
        await self._send_head(send, more_headers)
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def new_id() -> str:
    """Return 32 hexadecimal digits; not by `uuid4`, which asks the system each time."""
    return f"{getrandbits(128):032x}"


class _TimeLimit:
    """Ends a block of the running task with TimeoutError after some seconds.

    It is `asyncio.timeout`, which Python 3.10 lacks; `wait_for` would make a task for each part of
    a body, a tenth of what a small request costs.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_passed = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are answered by tasks"
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._pass)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._timer.cancel()
        if self._has_passed and isinstance(error, asyncio.CancelledError):
            if sys.version_info >= (3, 11):
                self._task.uncancel()
            raise TimeoutError from None

    def _pass(self) -> None:
        self._has_passed = True
        self._task.cancel()


class BodyReader:
    """Reads bodies within bounds: of each one, of all that are held, and in time."""

    def __init__(self, *, max_bytes: int, max_held_bytes: int, seconds: float) -> None:
        """Set the bounds.

        Args:
            max_bytes: of one body.
            max_held_bytes: of the bodies of all requests that are not answered yet.
            seconds: in which a body must arrive.
        """
        self._max_bytes = max_bytes
        self._max_held_bytes = max_held_bytes
        self._seconds = seconds
        self.held_bytes = 0
        """Of all requests; whoever read a body gives its bytes back with `release`."""

    async def read(self, request: Request, receive: Receive) -> bytes:
        """Return the body; its bytes are held until `release`.

        Raises:
            HTTPError: it is too large, or late, or too much is held already.
            ClientGoneError: the client has left.
        """
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large(int(declared))
        parts: list[bytes] = []
        size = 0
        try:
            is_whole = False
            while not is_whole:
                part, is_whole = await self._next(receive)
                size += len(part)
                self.held_bytes += len(part)
                if size > self._max_bytes:
                    raise self._too_large(size)
                if self.held_bytes > self._max_held_bytes:
                    raise HTTPError.overloaded(
                        f"{self.held_bytes:,} bytes of requests wait for an answer, the limit is "
                        f"{self._max_held_bytes:,}; send fewer at a time",
                        seconds=1,
                    )
                parts.append(part)
        except BaseException:
            self.held_bytes -= size
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def parts(self, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the parts of a body as they arrive; nothing is held.

        Raises:
            HTTPError: a part is late.
            ClientGoneError: the client has left.
        """
        is_whole = False
        while not is_whole:
            part, is_whole = await self._next(receive)
            yield part

    async def _next(self, receive: Receive) -> tuple[bytes, bool]:
        """Return the next part of a body, and whether it is the last."""
        try:
            with _TimeLimit(self._seconds):
                message = await receive()
        except TimeoutError:
            raise HTTPError(
                408,
                f"the body did not arrive within {self._seconds:g} seconds; send it at once",
                "timeout",
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message.get("body", b""), not message.get("more_body", False)

    def release(self, body: bytes) -> None:
        """Count a body as answered."""
        self.held_bytes -= len(body)

    def _too_large(self, size: int) -> HTTPError:
        return HTTPError(
            413,
            f"the body has {size:,} bytes or more, the limit is {self._max_bytes:,}; send fewer "
            "texts at a time, or start the server with a higher --max-body-mb",
            "too_large",
        )
