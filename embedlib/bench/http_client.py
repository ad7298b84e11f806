"""What runs in the client's process of `embedlib bench --serve`: requests over plain sockets.

A client of its own, because those that users have cost more than the server: it keeps its
connections, sends bytes that are ready and reads of an answer only status and length. The calls
come as `measuring.child` describes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from embedlib.measuring.child import serve_standard_streams

T = TypeVar("T")

MAX_SECONDS = 3600
"""Of a call: longer than any pass that is worth waiting for. A server that hangs never ends one."""

_OK = 200


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        """Wait for `connection_made`."""
        self._received = bytearray()
        self._num_awaited: int | None = None
        """Bytes of the answer; None: its head is not there yet."""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        """Collect an answer.

        Source: RFC 9112, 6.3; an answer without Content-Length fails.
        """
        self._received += data
        answer = self._answer
        if answer is None or answer.done():
            return
        if self._num_awaited is None:
            head, end, _ = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            _, found, length = head.lower().partition(b"\r\ncontent-length:")
            if not found:
                answer.set_exception(OSError("the answer has no Content-Length"))
                return
            self._num_awaited = len(head) + 4 + int(length.partition(b"\r\n")[0])
        if len(self._received) >= self._num_awaited:
            complete = bytes(self._received)
            self._received.clear()
            self._num_awaited = None
            answer.set_result(complete)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or OSError("the server closed the connection"))

    async def ask(self, request: bytes) -> int:
        """Send a request; return the status when the whole answer is there.

        Raises:
            OSError: the connection was lost.
        """
        assert self._transport is not None
        if self._transport.is_closing():
            raise OSError("the server closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return int((await self._answer)[9:12])

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class ClientCalls:
    """The calls that the parent can make; each names the URL of an embeddings route."""

    def __init__(self) -> None:
        """Start without texts."""
        self._texts: list[str] = []
        self._queries: list[str] = []

    def set_texts(self, texts: list[str], queries: list[str]) -> None:
        """Keep the texts of a bulk pass, and the queries."""
        self._texts, self._queries = texts, queries

    def status(self, url: str, model: str, request_texts: int) -> int:
        """Return the status of one request of so many texts."""

        async def ask() -> int:
            async with _connect(url, 1) as [connection]:
                return await connection.ask(self._bulk_requests(url, model, request_texts)[0])

        return _run(ask)

    def bulk(self, url: str, model: str, request_texts: int, connections: int) -> dict[str, float]:
        """Send all texts, in requests of so many; return the time."""
        requests = deque(self._bulk_requests(url, model, request_texts))

        async def send() -> None:
            async with _connect(url, connections) as opened:

                async def work(connection: Connection) -> None:
                    while requests:
                        await _ask_well(connection, requests.popleft())

                await asyncio.gather(*map(work, opened))

        return _timed(send)

    def query(self, url: str, model: str, seconds: float, connections: int = 1) -> dict[str, Any]:
        """Send queries through all connections, on each one after the other.

        It ends after `seconds`, when as many were sent as there are. Returns the latencies in ms.
        """
        requests = cycle(self._query_requests(url, model))
        latencies_ms: list[float] = []

        async def send() -> None:
            until = time.perf_counter() + seconds

            async def work(connection: Connection) -> None:
                while time.perf_counter() < until or len(latencies_ms) < len(self._queries):
                    latencies_ms.append(await _latency_ms(connection, next(requests)))

            async with _connect(url, connections) as opened:
                await asyncio.gather(*map(work, opened))

        return {**_timed(send), "latencies_ms": latencies_ms}

    def mixed(
        self,
        url: str,
        model: str,
        seconds: float,
        interval_s: float,
        request_texts: int,
        connections: int,
    ) -> dict[str, Any]:
        """Send queries on a fixed schedule while other connections send bulk requests."""
        bulk = cycle(self._bulk_requests(url, model, request_texts))
        queries = cycle(self._query_requests(url, model))
        latencies_ms: list[float] = []

        is_over = False

        async def fill(connection: Connection) -> None:
            while not is_over:  # the last query is one beside bulk, too
                await _ask_well(connection, next(bulk))

        async def ask(connection: Connection) -> None:
            nonlocal is_over
            due = time.perf_counter()
            until = due + seconds
            while due < until or len(latencies_ms) < len(self._queries):
                latencies_ms.append(await _latency_ms(connection, next(queries)))
                due = max(due + interval_s, time.perf_counter())
                await asyncio.sleep(due - time.perf_counter())
            is_over = True

        async def send() -> None:
            async with _connect(url, connections + 1) as [asker, *fillers]:
                await asyncio.gather(ask(asker), *map(fill, fillers))

        return {**_timed(send), "latencies_ms": latencies_ms}

    def crowd(
        self, url: str, model: str, clients: int, connect_timeout_s: float, requests: int
    ) -> dict[str, Any]:
        """Let so many clients connect and send requests of one text, all at the same time.

        Returns the latencies, and how many requests failed by reason.
        """
        ready = self._query_requests(url, model)
        latencies_ms: list[float] = []
        failures: dict[str, int] = {}

        async def live(number: int) -> None:
            for turn in range(requests):
                try:
                    if not turn:
                        connection = await asyncio.wait_for(_open(url), connect_timeout_s)
                    started = time.perf_counter()
                    status = await connection.ask(ready[(number + turn) % len(ready)])
                except (OSError, asyncio.TimeoutError) as error:
                    reason = str(error) or type(error).__name__
                    failures[reason] = failures.get(reason, 0) + requests - turn
                    return
                if status == _OK:
                    latencies_ms.append((time.perf_counter() - started) * 1e3)
                else:
                    failures[f"status {status}"] = failures.get(f"status {status}", 0) + 1
            connection.close()

        async def send() -> None:
            await asyncio.gather(*map(live, range(clients)))

        return {**_timed(send), "latencies_ms": latencies_ms, "failures": failures}

    def _bulk_requests(self, url: str, model: str, request_texts: int) -> list[bytes]:
        return [
            make_request(url, model, self._texts[start : start + request_texts])
            for start in range(0, len(self._texts), request_texts)
        ]

    def _query_requests(self, url: str, model: str) -> list[bytes]:
        return [make_request(url, model, query) for query in self._queries]


def make_request(url: str, model: str, texts: str | Sequence[str]) -> bytes:
    """Return the bytes of a request as the openai package sends it: vectors come as base64."""
    parts = urlsplit(url)
    content = {"model": model, "input": texts, "encoding_format": "base64"}
    body = json.dumps(content, ensure_ascii=False).encode()
    head = (
        f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _open(url: str) -> Connection:
    parts = urlsplit(url)
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, parts.hostname or "", parts.port or 80
    )
    return connection


@asynccontextmanager
async def _connect(url: str, num_connections: int) -> AsyncIterator[list[Connection]]:
    opened = [await _open(url) for _ in range(num_connections)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


async def _ask_well(connection: Connection, request: bytes) -> None:
    """Send a request that must succeed.

    Raises:
        OSError: it did not.
    """
    status = await connection.ask(request)
    if status != _OK:
        raise OSError(f"the server answered with status {status}")


async def _latency_ms(connection: Connection, request: bytes) -> float:
    started = time.perf_counter()
    await _ask_well(connection, request)
    return (time.perf_counter() - started) * 1e3


def _run(work: Callable[[], Awaitable[T]]) -> T:
    """Run work to its end.

    Raises:
        OSError: it failed, or a server hangs.
    """
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(work(), MAX_SECONDS))
    except asyncio.TimeoutError as error:
        if error.args:  # of a connection, which has its own reason since Python 3.11
            raise
        raise OSError(f"the server has not answered all within {MAX_SECONDS} s") from None
    finally:
        loop.close()


def _timed(work: Callable[[], Awaitable[None]]) -> dict[str, float]:
    """Run work; return its seconds, and those that this process computed."""
    cpu_started, started = time.process_time(), time.perf_counter()
    _run(work)
    return {
        "seconds": time.perf_counter() - started,
        "client_cpu_s": time.process_time() - cpu_started,
    }


if __name__ == "__main__":
    serve_standard_streams(ClientCalls())
