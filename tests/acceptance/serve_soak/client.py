"""A client over plain sockets, which sees status, head and body of each answer."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

MIB = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What came back for a request."""

    status: int
    head: bytes
    body: bytes
    seconds: float


class Client:
    """Sends requests, each on a connection that carries no other one meanwhile."""

    def __init__(self, url: str) -> None:
        """Open nothing yet."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def request(self, path: str, content: object, *headers: str) -> bytes:
        """Return the bytes of a request; without content it is a GET."""
        body = b"" if content is None else json.dumps(content).encode()
        method = "GET" if content is None else "POST"
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer.

        Raises:
            OSError: the connection was lost before the whole answer was there.
        """
        started = time.perf_counter()
        reader, writer = await self._take()
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(found.group(1)) if found else 0)
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise OSError("the server closed the connection") from error
        self._free.append((reader, writer))
        return Answer(int(head[9:12]), head, body, time.perf_counter() - started)

    async def leave(self, request: bytes, seconds: float) -> None:
        """Send a request and close the connection before it is answered."""
        _, writer = await self._open()
        writer.write(request)
        await asyncio.sleep(seconds)
        writer.transport.abort()

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a free connection that the server has not closed meanwhile, or a new one."""
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await self._open()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=8 * MIB)

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._free:
            writer.transport.abort()
