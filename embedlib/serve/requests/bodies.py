"""Bodies of requests, read within bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from time import time
from typing import TypeVar

from embedlib.serve.errors import ClientGoneError, HTTPError
from embedlib.serve.options import ServeOptions
from embedlib.serve.requests.asgi import Receive, Request
from embedlib.serve.requests.deadline import seconds_left
from embedlib.serve.requests.endable import Endable
from embedlib.serve.requests.exchange import Exchange

T = TypeVar("T")

MAX_DIGITS = 19
"""Of a length that is believed: any number of zeros may be in front, and Python reads no number of
thousands of digits."""


class BodyReader:
    """Reads bodies within bounds: of each one, of all that are held, and in time."""

    def __init__(self, options: ServeOptions) -> None:
        """Take the bounds."""
        self._options = options
        self.held_bytes = 0
        """Of all requests that are not answered."""

    async def answer(
        self, exchange: Exchange, receive: Receive, handle: Callable[[Exchange], Awaitable[T]]
    ) -> T:
        """Read the body and run a handler, until the client leaves or its deadline passes.

        Raises:
            ClientGoneError: the client has left.
            HTTPError: what the handler raised, the body is refused, or the deadline has passed.
        """
        request = exchange.request
        with Endable() as block:
            exchange.body = body = await self.read(request, receive, block)
            exchange.num_body_bytes = len(body)
            try:
                # Whichever comes first ends the handler; it drops its texts before it ends.
                block.end_without_client(request.direct, receive)
                limit = seconds_left(request.headers, time())
                if limit is not None:
                    block.end_after(limit, partial(HTTPError.too_late, limit))
                return await handle(exchange)
            finally:
                self.held_bytes -= len(body)

    async def read(self, request: Request, receive: Receive, block: Endable) -> bytes:
        """Return the body, whose bytes are held from now on.

        Args:
            request: its head.
            receive: of its connection.
            block: ended if the body is late.

        Raises:
            HTTPError: it is too large, or late, or too much is held already.
            ClientGoneError: the client has left.
        """
        declared = request.headers.get("content-length", "0")
        if len(declared) <= MAX_DIGITS and declared.isdecimal():
            self._check_size(int(declared))
        body = bytearray()  # parts of two bytes are objects of fifty
        try:
            while True:
                part, is_whole = await self._next(request, receive, block)
                self._hold(len(part), len(body) + len(part))
                if is_whole and not body:  # most are; a copy would take time
                    return part
                body += part
                if is_whole:
                    return bytes(body)
        except BaseException:
            self.held_bytes -= len(body)
            raise

    def _hold(self, num_bytes: int, size: int) -> None:
        """Hold bytes of a body that has so many by now.

        Raises:
            HTTPError: it is too large, or too much is held already.
        """
        self._check_size(size)
        if self.held_bytes + num_bytes > self._options.max_held_bytes:
            raise HTTPError.overloaded(
                f"{self.held_bytes + num_bytes:,} bytes of requests wait for an answer, the limit "
                f"is {self._options.max_held_bytes:,}; send fewer at a time",
                seconds=1,
            )
        self.held_bytes += num_bytes

    async def parts(self, exchange: Exchange, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the parts of a body as they arrive, and count them; nothing is held.

        Raises:
            HTTPError: a part is late.
            ClientGoneError: the client has left.
        """
        is_whole = False
        while not is_whole:
            with Endable() as block:
                part, is_whole = await self._next(exchange.request, receive, block)
            exchange.num_body_bytes += len(part)
            yield part

    async def _next(self, request: Request, receive: Receive, block: Endable) -> tuple[bytes, bool]:
        """Return the next part of a body, and whether it is the last."""
        rest = None if request.direct is None else request.direct.take_body()
        if rest is not None:
            return rest, True
        limit = block.end_after(self._options.body_seconds, self._late)
        message = await receive()
        limit.cancel()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if request.direct is not None and not message.get("more_body", False):
            request.direct.resume_reading()
        return message.get("body", b""), not message.get("more_body", False)

    def _late(self) -> HTTPError:
        return HTTPError(
            408,
            f"the body did not arrive within {self._options.body_seconds:g} seconds; send it at "
            "once",
            "timeout",
        )

    def _check_size(self, num_bytes: int) -> None:
        limit = self._options.max_body_bytes
        if num_bytes > limit:
            raise HTTPError(
                413,
                f"the body has {num_bytes:,} bytes or more, the limit is {limit:,}; send fewer "
                "texts at a time, or start the server with a higher --max-body-mb",
                "too_large",
            )
