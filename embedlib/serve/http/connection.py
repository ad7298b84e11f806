"""A connection of uvicorn's, with time limits for heads and without needless work for each request.

Source: uvicorn 0.54, `protocols/http/httptools_impl.py`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar, cast

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from embedlib.serve.app import Application
from embedlib.serve.http.direct import DirectRequest
from embedlib.serve.http.parsing import FRAMING, RequestParser
from embedlib.serve.http.repeated import RepeatedHead
from embedlib.serve.http.slow_readers import ReadLimitedProtocol
from embedlib.serve.requests.asgi import DIRECT, Request, Scope

MAX_WAITING = 1024
"""Requests behind the one that is answered: a piece may bring any number of small ones, and all are
parsed at once."""
MAX_HEAD_BYTES = 64 << 10
"""Of the head of a request, beside the piece that it begins in; and of all else that is no body,
such as trailers. Source: that of h11, the other parser of uvicorn."""


class Connection(ReadLimitedProtocol):
    """uvicorn's protocol, which gives requests their connection as a `Direct`.

    It closes connections whose request head comes too late, or is too large. A head that arrives in
    one piece, as nearly all do, costs no timer. A head like the one before, which nearly all are as
    well, is not parsed. uvicorn's middleware finds the client of requests that came through a
    proxy; only these pay for it.
    """

    application: ClassVar[Application]
    head_seconds: ClassVar[float]
    _head_limit: asyncio.TimerHandle | None = None
    _awaits_head = False
    _num_bytes = 0
    """That have come since a message began, or some of its body."""
    _repeated: RepeatedHead | None = None
    """The head of the last request, if it was a usual one and the parser has seen nothing since."""
    _idle_since = 0.0
    """When the last request was answered, on the clock of the loop."""
    _request: Request | None = None
    """What that head means; None: it was not repeated yet."""
    _is_resumed = False
    """Whether the head that is parsed now is `RequestParser`'s own."""
    _running: RequestResponseCycle | None = None
    """The request that is answered, or was last; `cycle` may be one that waits behind it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """Take what uvicorn gives its protocol."""
        super().__init__(*arguments, **more)
        self.parser = RequestParser(self)

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take a request, or a part of one, or several."""
        if self._repeated is not None and self.cycle.response_complete:
            body = self._repeated.body_of(data)
            if body is not None:
                self._repeat(body)
                return
        was_between = not self._awaits_head and (self.cycle is None or not self.cycle.more_body)
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head has more than {MAX_HEAD_BYTES} bytes.")
        elif self._head_limit is None and (self._awaits_head or self._is_answered()):
            self._arm()
        elif was_between and self.cycle is not None and self.app is self.application:
            self._remember(data)

    def _remember(self, data: bytes) -> None:
        """Keep the head of a request that was parsed, if these bytes are all of it."""
        names = [name for name, _ in self.scope["headers"]]
        self._repeated = RepeatedHead.find(data, names, len(self.cycle.body))
        self._request = None

    def _repeat(self, body: bytes) -> None:
        """Answer a request with the head of the last one."""
        self._disarm()
        last = self.cycle
        self.cycle = cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=last.message_event,
            expect_100_continue=False,
            keep_alive=last.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.body += body
        cycle.more_body = False
        if self._request is None:
            self._request = Request.from_scope(cast(Scope, self.scope))
            del self._request.headers["content-length"]  # it was the first one's
        request = self._request
        request.direct = DirectRequest(cycle, self._gone, self.pipeline)
        answer: Any = self.application.answer  # uvicorn knows more types of messages
        self._start_asgi_task(cycle, lambda _, receive, send: answer(request, receive, send))

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for one.

        uvicorn sets a timer after each answer and cancels it with the next request. Here one timer
        looks whether the connection was idle all the time.
        """
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            if self.pipeline:
                self.flow.pause_reading()  # it has resumed: a piece may bring thousands more
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._wait_for_request(self.timeout_keep_alive)

    def _wait_for_request(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, if it has been idle for so long."""
        self.timeout_keep_alive_task = None
        if self.cycle.response_complete and not self._awaits_head:
            left = self._idle_since + self.timeout_keep_alive - self.loop.time()
            if left > 0:
                self._wait_for_request(left)
            else:
                super().timeout_keep_alive_handler()

    def on_message_begin(self) -> None:
        """Begin to read a head."""
        if self._is_resumed:
            return
        if len(self.pipeline) >= MAX_WAITING:
            raise ValueError("too many requests wait")  # uvicorn takes it for one that is wrong
        self._disarm()
        self._awaits_head = True
        self._num_bytes = 0
        self._repeated = None
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._num_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        if self._is_resumed:
            self._is_resumed, self.headers = False, []
            return
        self._disarm()
        self._awaits_head = False
        is_forwarded = b"x-forwarded-for" in dict(self.headers)
        self.app = self.config.loaded_app if is_forwarded else self.application
        if is_forwarded and self.client is None:
            # A proxy at our unix socket, which is believed as one at a loopback address.
            self.scope["client"] = ("127.0.0.1", 0)
        super().on_headers_complete()
        direct = DirectRequest(self.cycle, self._gone, self.pipeline)
        self.scope["extensions"] = {DIRECT: {"connection": direct}}
        # Trailers are no headers: they would take the place of those that a proxy has set.
        self.headers = []

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and count it: the log would be its sender's to fill."""
        metrics = self.application.metrics
        metrics.failures["invalid"] += 1
        metrics.statuses["4xx"] += 1
        is_behind = self.cycle is not None and not self.cycle.more_body and not self._is_answered()
        if is_behind and msg.startswith("Invalid") and len(self.pipeline) < MAX_WAITING:
            msg += " It follows a request, whose Content-Length must count bytes, not characters."
        super().send_400_response(msg)

    def resume(self, parser: RequestParser) -> Iterable[tuple[bytes, bytes]]:
        """Go on with a message whose head is parsed again; see `RequestParser`."""
        self._is_resumed, self.parser = True, parser
        return [header for header in self.scope["headers"] if header[0] in FRAMING]

    def on_message_complete(self) -> None:
        """End a message, unless its head offered another protocol: then its body comes yet."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self.application.is_draining:
            self.loop.call_soon(self._end_behind, cycle)  # when all that came with it is parsed
        super()._start_asgi_task(cycle, app)

    def _end_behind(self, cycle: RequestResponseCycle) -> None:
        """Close the connection with an answer, unless requests wait behind it.

        Another one could be on its way when the end of the server closes it.
        """
        cycle.keep_alive = cycle.keep_alive and bool(self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who answers that the client has left."""
        self._disarm()
        self._unset_keepalive_if_required()
        self._gone.set_result(None)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn tells the last request alone
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End with the server: an idle connection at once, another one with its answer."""
        super().shutdown()
        is_written = self.transport.is_closing() and not self.transport.get_write_buffer_size()
        if is_written and self.scheme == "https":
            self._forgo_goodbye()

    def _forgo_goodbye(self) -> None:
        """Let TLS end without a word of the client.

        One that keeps its connection for later says none, and uvloop would wait for 30 s. Reading
        the end of the stream in its place closes the connection, as soon as all is written.
        """
        found = self.transport.get_extra_info("socket")
        if found is not None:  # it may be closed in this turn
            with suppress(OSError), found.dup() as same:
                same.shutdown(socket.SHUT_RD)

    def _is_answered(self) -> bool:
        """Whether only the rest of a body can come, or the next head: uvicorn has no timer."""
        return self.cycle is not None and self.cycle.response_complete

    def _arm(self) -> None:
        self._head_limit = self.loop.call_later(self.head_seconds, self._end_head)

    def _end_head(self) -> None:
        """Close the connection, whose next head has not come in time, unless it was not read."""
        if self.pipeline:
            self._arm()  # it is read when these are answered
        else:
            self.transport.close()

    def _disarm(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None
