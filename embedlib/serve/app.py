"""The ASGI application: from a connection to a handler and back, with its bounds and its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from time import perf_counter
from types import MappingProxyType
from typing import Final

from embedlib.errors import EmbedlibError
from embedlib.indexing.sinks.protocol import Sink
from embedlib.serve.background import Background
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.errors import ClientGoneError, HTTPError
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.spans import write_nowhere
from embedlib.serve.keys import Keys
from embedlib.serve.logs.access_log import AccessLog, line_of
from embedlib.serve.metrics import Metrics
from embedlib.serve.models.admission import Unread
from embedlib.serve.models.catalog import Catalog, ServedModel
from embedlib.serve.models.destinations import Destinations
from embedlib.serve.options import ServeOptions
from embedlib.serve.requests.asgi import Receive, Request, Response, Scope, Send, new_id
from embedlib.serve.requests.bodies import BodyReader
from embedlib.serve.requests.exchange import Exchange, Shared
from embedlib.serve.routes import COMPUTING, check_entrance, find_route
from embedlib.serve.tracing import Tracing

LOAD_SECONDS = 2.0
"""That the end of a server waits for a model which it is loading."""
BASETEN_ID = "x-baseten-customer-request-id"
"""The header in which Baseten's client sends the id of a request."""
_IDS: Final = (BASETEN_ID, "x-request-id")  # a proxy may add the second


class Application:
    """An ASGI application that serves models; see `create_app`."""

    def __init__(
        self,
        models: Iterable[ServedModel],
        options: ServeOptions,
        log: AccessLog | None = None,
        searched: Mapping[str, str | Sink] = MappingProxyType({}),
        tracing: Tracing | None = None,
    ) -> None:
        """Serve models that are loaded at the start of the server.

        Args:
            models: in the order of preference.
            options: the bounds.
            log: where a line for each request goes; None: nowhere.
            searched: destinations by name, which are opened here.
            tracing: where a span for each request goes; None: nowhere.

        Raises:
            SinkError: a destination cannot be read, or holds nothing.
            ConfigError: the folder of jobs cannot be used.
        """
        self.catalog = Catalog(models)
        self.options = options
        self.destinations = Destinations(searched, options.max_query_texts)
        self.unread = Unread()
        """Counted by connections; those of another server count nothing."""
        for model in self.catalog:
            model.admission.unread = self.unread
        searched_names = [each.name for each in self.destinations]
        self.metrics = Metrics(self.catalog, self.unread, searched_names)
        self.end_server: Callable[[], None] | None = None
        """Ends the server; None: it is not the application's own."""
        self.failure: EmbedlibError | None = None
        """Why this cannot serve; known when the models are loaded. Its own server ends then."""
        self._keys = Keys(options.api_keys)
        self._log = log
        self._tracing = tracing
        self._bodies = BodyReader(options)
        encoder = ThreadPoolExecutor(1, "embedlib-serve-encode")
        self._shared = Shared(self.catalog, options, encoder, self.metrics, self.destinations)
        if options.data_dir is not None:
            answer = Background(COMPUTING, self._shared).answer
            write_span = write_nowhere if tracing is None else tracing.write_job
            try:
                jobs = Jobs(options, answer, write_span=write_span)
            except BaseException:
                self.destinations.close()
                raise
            self._shared.jobs = jobs
            self.metrics.sections.append(jobs.metrics.render)
        self._loading: asyncio.Task[None] | None = None
        self._stopping: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection."""
        if scope["type"] == "http":
            await self.answer(Request.from_scope(scope), receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    @property
    def is_draining(self) -> bool:
        """Whether the server ends when what runs is answered."""
        return self._shared.is_draining

    def drain(self) -> None:
        """Answer `/ready` with no from now on; requests are served on, jobs wait."""
        self._shared.is_draining = True
        if self._shared.jobs is not None:
            self._stopping = asyncio.ensure_future(self._shared.jobs.stop())

    async def start(self) -> None:
        """Load the models in the background, and go on with the jobs."""
        self._loading = asyncio.create_task(self._load())
        if self._shared.jobs is not None:
            self._shared.jobs.start()

    async def _load(self) -> None:
        await self.catalog.load(tells_failure=self.end_server is not None)
        await self.destinations.find_models(self.catalog)
        self.failure = self.catalog.failure or self.destinations.failure
        if self.failure is not None and self.end_server is not None:
            self.end_server()  # it tells why
            return
        for destination in self.destinations:
            if destination.error:
                logging.getLogger(__name__).error(destination.error)

    @property
    def is_loading(self) -> bool:
        """Whether a thread still loads something, which may go on after `close`."""
        return self.catalog.is_loading or self.destinations.is_loading

    async def loaded(self) -> None:
        """Wait until every model is loaded or has failed to."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    async def close(self) -> None:
        """Stop the jobs, close the models, and end the threads of the application.

        What fails does not keep the rest: a model that computes for too long, for one.
        """
        async with AsyncExitStack() as stack:  # the last one is the first to end
            if self._tracing is not None:
                stack.push_async_callback(asyncio.to_thread, self._tracing.close)
            if self._log is not None:
                stack.callback(self._log.close)
            stack.callback(self._shared.encoder.shutdown, wait=False, cancel_futures=True)
            # A load may be a download of hours. A program that is more than a server waits for it.
            limit = None if self.end_server is None else LOAD_SECONDS
            stack.push_async_callback(self.catalog.close, limit)
            stack.push_async_callback(asyncio.to_thread, self.destinations.close, limit)
            stack.push_async_callback(self._stop_loading)
            if self._shared.jobs is not None:
                await self._shared.jobs.close()

    async def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            with suppress(asyncio.CancelledError):
                await self._loading

    async def _live(self, receive: Receive, send: Send) -> None:
        """Follow the life of the server. Source: ASGI, Lifespan Protocol 2.0."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def answer(self, request: Request, receive: Receive, send: Send) -> None:
        """Answer a request; the same object may come again, with the same head."""
        started = perf_counter()
        exchange = Exchange(request, b"", self._shared, request_id_of(request), OPENAI.respond)
        route: Route | None = None
        error: HTTPError | None = None
        self.metrics.num_inflight += 1
        try:
            try:
                if request.entrance is not None:
                    route, exchange.rest, exchange.owner = request.entrance
                    exchange.refuse = route.dialect.respond
                else:
                    route, exchange.rest = find_route(request)
                    exchange.refuse = route.dialect.respond
                    exchange.owner = check_entrance(route, request, self._keys, self.options)
                    request.entrance = route, exchange.rest, exchange.owner
                response = await self._handle(route, exchange, receive)
            except ClientGoneError:
                self.metrics.failures["gone"] += 1
                self._record(exchange, route, 499, perf_counter() - started, 0, None)
                return
            except (Exception, asyncio.CancelledError) as raised:
                error = self._error_of(raised, exchange)
                response = exchange.refuse(error)
            status = response.status
            headers = headers_of(exchange, status)
            if request.direct is None or not response.send_directly(request.direct, headers):
                try:
                    await response.send(send, headers)
                except HTTPError as raised:  # of a file, half-way: its server cuts the client off
                    error, status = raised, raised.status
                except OSError:  # the client has left meanwhile
                    pass
            seconds = perf_counter() - started
            self._count(exchange, status, error, seconds)
            self._record(exchange, route, status, seconds, response.num_bytes, error)
        finally:
            self.metrics.num_inflight -= 1

    def _error_of(self, raised: BaseException, exchange: Exchange) -> HTTPError:
        """Return the answer for an exception; raise it if nobody waits for an answer."""
        if isinstance(raised, asyncio.CancelledError):
            if not self.is_draining:
                raise raised
            return HTTPError(
                503, "the server ended before this was computed; send it again", "unavailable"
            )
        return exchange.error_of(raised)

    async def _handle(self, route: Route, exchange: Exchange, receive: Receive) -> Response:
        if route.method == "GET":
            return await route.handle(exchange)
        if route.takes_parts:
            exchange.parts = self._bodies.parts(exchange, receive)
            return await route.handle(exchange)
        return await self._bodies.answer(exchange, receive, route.handle)

    def _count(
        self, exchange: Exchange, status: int, error: HTTPError | None, seconds: float
    ) -> None:
        self.metrics.statuses[f"{status // 100}xx"] += 1
        if error is not None:
            other = "failed" if error.status >= 500 else "invalid"
            kind = "unavailable" if error.kind == "not_loaded" else error.kind
            reason = kind if kind in self.metrics.failures else other
            self.metrics.failures[reason] += 1
        else:
            exchange.count(seconds)

    def _record(
        self,
        exchange: Exchange,
        route: Route | None,
        status: int,
        seconds: float,
        num_bytes: int,
        error: HTTPError | None,
    ) -> None:
        """Write the line and the span of a request that is over."""
        if self._tracing is not None:
            path = route.path if route else ""
            self._tracing.write(exchange, path, status, error, seconds)
        if self._log is not None:
            message = "" if error is None else error.message
            self._log.write(line_of(exchange, status, seconds, num_bytes, message))


def request_id_of(request: Request) -> str:
    """Return the id of a request: the client's, or a new one."""
    for name in _IDS:
        given = request.headers.get(name)
        if given and len(given) <= 128 and given.isascii() and given.isprintable():
            return given
    return new_id()


def headers_of(exchange: Exchange, status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that tell of its request."""
    request_id = exchange.request_id.encode()
    headers = [(b"x-request-id", request_id)]
    if BASETEN_ID in exchange.request.headers:
        headers.append((b"x-baseten-request-id", request_id))
    if exchange.work.usage.truncated:
        headers.append((b"x-embedlib-truncated", b"%d" % len(exchange.work.usage.truncated)))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
