"""What a request does with uvicorn's connection beside ASGI's messages: see `asgi.Direct`.

Source: uvicorn 0.54, `RequestResponseCycle` of `protocols/http/httptools_impl.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

from embedlib.serve.requests.asgi import Headers

_END = b"\r\n\r\n"
"""Of a head."""


class DirectRequest:
    """The request and response of a connection at one time.

    It does what `receive` and `send` do where neither would wait, and leaves them all else.
    """

    __slots__ = ("_cycle", "_pipeline", "gone")

    def __init__(
        self, cycle: RequestResponseCycle, gone: asyncio.Future[None], pipeline: Sized
    ) -> None:
        """Take what uvicorn knows of the request.

        Args:
            cycle: the request.
            gone: the future of the connection's end.
            pipeline: the requests of the connection that wait behind it.
        """
        self._cycle = cycle
        self._pipeline = pipeline
        self.gone = gone

    def take_body(self) -> bytes | None:
        """Return the body, or what is left of it, if all of it is there; None: `receive` waits."""
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        self.resume_reading()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def resume_reading(self) -> None:
        """Read on behind the body: of a connection that is not read nobody sees the end.

        uvicorn stops at bodies of some size, and goes on when the next part is asked for. While
        other requests wait already, no more of them are read: they may come without an end.
        """
        if not self._pipeline:
            self._cycle.flow.resume_reading()

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer, unless that is not so simple; False: `send` must do it."""
        cycle = self._cycle
        is_simple = cycle.keep_alive and not cycle.disconnected and not cycle.flow.write_paused
        if not is_simple or len(body) > HIGH_WATER_LIMIT or cycle.scope["method"] == "HEAD":
            return False
        lines = [b"%b: %b" % header for header in (*cycle.default_headers, *headers)]
        if HEADER_VALUE_RE.search(b"".join(lines)):  # control characters: `send` refuses them
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.transport.write(b"".join((STATUS_LINE[status], b"\r\n".join(lines), _END, body)))
        cycle.on_response()
        return True
