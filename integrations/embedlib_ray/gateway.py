"""The front of a fleet: reads a request, finds its model and lane, and lets a replica answer it.

It computes nothing, so that it answers while replicas start, and holds requests until they have.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from time import time
from typing import Any, TypeVar

import msgspec

from embedlib import __version__
from embedlib.serve import ServeOptions
from embedlib.serve.fleet import (
    OPENAI,
    BodyReader,
    ClientGoneError,
    Endable,
    HTTPError,
    Keys,
    Receive,
    Request,
    Response,
    Route,
    Scope,
    Send,
    check_host,
    describe,
    find_route,
    seconds_left,
)
from embedlib_ray.replica import Answer, Call

T = TypeVar("T")

QUERY_TEXTS = 16
"""Texts of a request that is a query, as for `encode_query`."""
QUERY_BYTES = 64 << 10
"""A larger body is bulk; its texts are not counted."""
_LISTS = ("input", "inputs", "texts", "documents", "queries")
"""Fields with the texts of a request, in all dialects."""

Lanes = Mapping[str, Callable[[Call], Awaitable[Answer]]]
"""By lane, "query" and "bulk": who answers a request."""


class _Body(msgspec.Struct):
    """What a body says of its model; the texts are skipped."""

    model: Any = None


class Gateway:
    """The ASGI application in front of the replicas."""

    def __init__(self, lanes: Mapping[str, Lanes], options: ServeOptions) -> None:
        """Take the models.

        Args:
            lanes: by name of a model, who answers.
            options: the bounds of each server of the fleet.
        """
        self._lanes = lanes
        self._options = options
        self._keys = Keys(options.api_keys)
        self._bodies = BodyReader(
            max_bytes=options.max_body_bytes,
            max_held_bytes=options.max_held_bytes,
            seconds=options.body_seconds,
        )
        self._started = int(time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection."""
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            return
        route: Route | None = None
        try:
            request = Request.from_scope(scope)
            route, _ = find_route(request)
            check_host(request.headers.get("host"), self._options.allowed_hosts)
            if route.needs_key:
                self._keys.check(request.headers)
            own = self._own_answer(route)
            if own is not None:
                await own.send(send)
                return
            answer = await self._forward(request, route, scope, receive)
        except ClientGoneError:
            return
        except Exception as raised:
            error = describe(raised)
            if error.kind == "internal":
                logging.getLogger(__name__).exception("request %s", scope["path"])
            await (route.dialect if route else OPENAI).respond(error).send(send)
            return
        with suppress(OSError):  # the client has left meanwhile
            head = {"status": answer.status, "headers": answer.headers}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": answer.body})

    def _own_answer(self, route: Route) -> Response | None:
        """Return the answer of the fleet: none of its models is woken to tell that it lives."""
        if route.method != "GET":
            return None
        if route.path in ("/", "/health", "/ready"):
            return Response(msgspec.json.encode({"status": "ok", "version": __version__}))
        if route.path == "/v1/models":
            models = [
                {"id": name, "object": "model", "created": self._started, "owned_by": "embedlib"}
                for name in self._lanes
            ]
            return Response(msgspec.json.encode({"object": "list", "data": models}))
        return None

    async def _forward(
        self, request: Request, route: Route, scope: Scope, receive: Receive
    ) -> Answer:
        """Let a replica answer, until the client leaves or its deadline passes.

        Raises:
            ClientGoneError: the client has left.
            HTTPError: there is no such model, or the deadline has passed.
        """
        with Endable() as block:
            body = b""
            if route.method == "POST":
                body = await self._bodies.read(request, receive, block)
            try:
                block.end_without_client(request.direct, receive)
                limit = seconds_left(request.headers, time())
                if limit is not None:
                    block.end_after(limit, partial(HTTPError.too_late, limit))
                call = Call(
                    method=request.method,
                    path=request.path,
                    query=scope.get("query_string", b""),
                    headers=list(scope["headers"]),
                    body=body,
                    client=scope.get("client"),
                )
                return await self._lanes[self._find_model(body)][lane_of(route, body)](call)
            finally:
                self._bodies.release(body)

    def _find_model(self, body: bytes) -> str:
        """Return the model of a request; with one model, any name is right.

        Raises:
            HTTPError: there is no such model.
        """
        first = next(iter(self._lanes))
        if len(self._lanes) == 1:
            return first
        found = _decoded(body, _Body)
        named = None if found is None else found.model
        if named is None:
            return first
        if isinstance(named, str) and named in self._lanes:
            return named
        raise HTTPError(
            404,
            f"no model {str(named)[:100]!r} here; there is {', '.join(self._lanes)}",
            "not_found",
            param="model",
        )


def lane_of(route: Route, body: bytes) -> str:
    """Return the lane of a request: few short texts are a query."""
    if route.method != "POST":
        return "query"
    if len(body) > QUERY_BYTES:
        return "bulk"
    fields = _decoded(body, dict[str, Any]) or {}
    lists = [fields[name] for name in _LISTS if isinstance(fields.get(name), list)]
    # A list of numbers is one text, in tokens.
    num_texts = [len(texts) for texts in lists if texts and not isinstance(texts[0], int)]
    return "bulk" if max(num_texts, default=0) > QUERY_TEXTS else "query"


def _decoded(body: bytes, kind: type[T]) -> T | None:
    """Return what a body says; None: nothing that can be read, and the replica says why."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
