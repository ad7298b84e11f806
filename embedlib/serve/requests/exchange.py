"""Exchange: one request with what its handler needs, and what log and metrics tell of it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Lane
from embedlib.serve.errors import HTTPError, describe
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.own_jobs import OwnJobs
from embedlib.serve.metrics import Metrics
from embedlib.serve.models.catalog import Catalog, ServedModel, Task
from embedlib.serve.models.compute import Work
from embedlib.serve.models.destinations import Destinations
from embedlib.serve.options import ServeOptions
from embedlib.serve.requests.asgi import JSON, Request, Response
from embedlib.serve.vectors import MAX_ROWS_IN_LOOP
from embedlib.serve.wire import decode

T = TypeVar("T")
Item = TypeVar("Item")

SLICE_SECONDS = 0.02
"""Time for which a thread works on the items of one request before others have their turn."""
MAX_BYTES_IN_LOOP = 256 * 1024
"""Larger bodies are decoded by a thread: a megabyte takes some 2 milliseconds."""
LANE_HEADER = "x-embedlib-lane"
_QUALITY = re.compile(r"(?:^|;)\s*q=([0-9](?:\.[0-9]*)?)\s*(?:;|$)")


class Common(msgspec.Struct, kw_only=True):
    """Fields that every body may have."""

    model: str | None = None
    lane: str | None = None
    """"query" or "bulk"; embedlib's own."""


C = TypeVar("C", bound=Common)


@dataclass(slots=True)
class Shared:
    """What all requests of a server share."""

    catalog: Catalog
    options: ServeOptions
    encoder: ThreadPoolExecutor
    """One thread that decodes large bodies and encodes large answers."""
    metrics: Metrics
    destinations: Destinations
    is_draining: bool = False
    """Whether the server ends when what runs is answered."""
    jobs: Jobs | None = None
    """None: the server was started without a folder for them."""


class Exchange(msgspec.Struct):
    """One request on its way through a handler."""

    request: Request
    body: bytes
    shared: Shared
    request_id: str
    refuse: Callable[[HTTPError], Response]
    """Returns the response of an error, as the dialect of the route words it."""
    rest: str = ""
    """The part of the path behind the route's own, of a route for many paths."""
    model: ServedModel | None = None
    """The model that computes; None until it is found."""
    work: Work = msgspec.field(default_factory=Work)
    parts: AsyncIterator[bytes] | None = None
    """The body as it arrives, of a route that reads it itself."""
    num_body_bytes: int = 0
    """That have been read."""
    owner: str = ""
    """Whose jobs it sees, as `Keys.check` returns it."""

    @property
    def jobs(self) -> OwnJobs:
        """The jobs that this request may see.

        Raises:
            HTTPError: it was started without a folder for them.
        """
        if self.shared.jobs is None:
            raise HTTPError(
                400, f"{self.request.path:.80} keeps jobs; start the server with --data-dir FOLDER"
            )
        return self.shared.jobs.of(self.owner)

    def count(self, seconds: float) -> None:
        """Count a request that was answered after so many seconds."""
        work = self.work
        if self.model is not None and work.lane is not None:
            self.shared.metrics.answered(self.model, work.lane, work.usage, seconds)

    def error_of(self, raised: BaseException) -> HTTPError:
        """Return what is told of an exception that is being handled; a bug is told by the log."""
        error = describe(raised, self.work.field)
        if error.kind == "internal":
            logging.getLogger(__name__).exception("request %s", self.request_id)
        # They lead to the frames that hold this error and the body, which then wait for the garbage
        # collector; it seldom comes (`server.GC_OBJECTS`).
        raised.__traceback__ = raised.__context__ = raised.__cause__ = None
        return error

    async def read(self, kind: type[C]) -> C:
        """Return the body as a value of this type, and take its lane.

        Raises:
            HTTPError: a field is wrong.
        """
        found = await self.decode(kind)
        self.work.lane = self._lane(found.lane)
        return found

    async def decode(self, kind: type[T], part: bytes | None = None) -> T:
        """Return the body, or a part of it, as a value of this type.

        Raises:
            HTTPError: a field is wrong.
        """
        body = self.body if part is None else part
        if len(body) <= MAX_BYTES_IN_LOOP:
            return decode(body, kind)
        return await self.in_thread(lambda: decode(body, kind))

    def choose(self, name: str | None, *tasks: Task) -> ServedModel:
        """Return the model of a request, loaded or not; `Catalog.find` with its arguments.

        Raises:
            HTTPError: there is no such model, or it cannot do this.
        """
        return self.shared.catalog.find(name, *tasks)

    def find(self, name: str | None, *tasks: Task) -> ServedModel:
        """Return the loaded model of a request, and remember it.

        Raises:
            HTTPError: there is no such model, it cannot do this, or is not loaded.
        """
        self.model = self.choose(name, *tasks)
        self.model.open()
        return self.model

    async def run(self, handle: Callable[[Exchange], Awaitable[Response]]) -> Response:
        """Return what a handler answers to a part of the body, which is `body` meanwhile."""
        return await handle(self)

    async def in_thread(self, make: Callable[[], T]) -> T:
        """Return what a function makes on the server's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self.shared.encoder, make)

    async def make_each(self, make: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
        """Return what a function makes of each item, which may take long, on asyncio's own threads.

        Others have their turn in between, and nothing more is made for a client that has left.
        """
        made: list[T] = []
        while len(made) < len(items):
            made += await asyncio.to_thread(_make_some, make, items, len(made))
        return made

    async def answer(self, content: Any, num_rows: int = 0, *, status: int = 200) -> Response:
        """Return a JSON response; one with many rows is written by a thread.

        Args:
            content: what it says, or a function that makes it there.
            num_rows: of it.
            status: of HTTP.
        """
        return Response(await self.make(partial(_written, content), num_rows), status)

    async def make(self, make: Callable[[], T], num_rows: int) -> T:
        """Return what a function makes of rows; of many by a thread."""
        return make() if num_rows <= MAX_ROWS_IN_LOOP else await self.in_thread(make)

    def prefers(self, kind: str) -> bool:
        """Return whether the header Accept names a media type, and does not rank JSON above it.

        Source: RFC 9110, 12.4.2 and 12.5.1. Ranges as */* name none: clients send them by default.
        """
        header = self.request.headers.get("accept", "").lower()
        if kind not in header:  # as nearly always
            return False
        qualities = dict(map(_with_quality, header.split(",")))
        quality = qualities.get(kind, 0.0)
        return quality > 0 and quality >= qualities.get(JSON, 0.0)

    def _lane(self, named: str | None) -> Lane | None:
        wanted = named or self.request.headers.get(LANE_HEADER)
        if wanted is None:
            return None
        try:
            return Lane(wanted)
        except ValueError:
            raise HTTPError.wrong_value("lane", wanted, "it must be query or bulk") from None


def _with_quality(entry: str) -> tuple[str, float]:
    """Return the media type of an entry of Accept, and its quality from 0 to 1."""
    kind, _, parameters = entry.partition(";")
    found = _QUALITY.search(parameters)
    return kind.strip(), float(found[1]) if found else 1.0


def _make_some(make: Callable[[Item], T], items: Sequence[Item], start: int) -> list[T]:
    """Return what is made of one item, and of those behind it until the time is over."""
    until = perf_counter() + SLICE_SECONDS
    made = [make(items[start])]
    for index in range(start + 1, len(items)):
        if perf_counter() >= until:
            break
        made.append(make(items[index]))
    return made


def _written(content: Any) -> bytes:
    return msgspec.json.encode(content() if callable(content) else content)


def usage_of(exchange: Exchange) -> dict[str, int]:
    """Return the object `usage`; vLLM's has completion_tokens too."""
    num_tokens = exchange.work.usage.num_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}


def ranked(scores: NDArray[np.float32], top_k: int | None) -> list[int]:
    """Return the places of the highest scores of float32[N], highest first; equal ones in order."""
    order = np.argsort(-scores, kind="stable")
    chosen: list[int] = (order if not top_k else order[:top_k]).tolist()
    return chosen


def check_number(value: int | None, name: str, *, least: Literal[0, 1]) -> None:
    """Check a number of results or dimensions; where it may be 0, that stands for all.

    Raises:
        HTTPError: it is lower.
    """
    if value is not None and value < least:
        wanted = "1" if least else "0 (all)"
        raise HTTPError.wrong_value(name, value, f"it must be {wanted} or more")
