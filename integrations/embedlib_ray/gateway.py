"""The front of a fleet: reads a request, finds its model and lane, and lets a replica answer it.

It computes nothing, so that it answers while replicas start, and holds requests until they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from embedlib.errors import first_line
from embedlib.serve import ServeOptions
from embedlib.serve.fleet import (
    BodyReader,
    ClientGoneError,
    ElsewhereError,
    Exchange,
    Handle,
    HTTPError,
    Keys,
    Receive,
    RemoteModels,
    Request,
    Response,
    Route,
    Scope,
    Send,
    Task,
    check_entrance,
    find_route,
    headers_of,
)
from embedlib_ray.replica import Answer, Call

QUERY_TEXTS = 16
"""Texts of a request that is a query, as for `encode_query`."""
QUERY_BYTES = 64 << 10
"""A larger body is bulk; its texts are not counted."""
READY_SECONDS = 6.0
"""A replica that does not tell within this time is not ready; its own canary may take 5."""
LIST_SECONDS = 1.0
"""What a replica does not tell of its model within this time is left out of a list."""
_NO_METRICS = """the metrics are those of a replica, and a scrape would start one, or push a model \
out of one; take Ray's (ray_serve_...), or replicas that never end (min_replicas=1)"""
_REQUEST_ID = b"x-request-id"
"""Ray's proxy adds it to every answer."""

Lanes = Mapping[str, Callable[[Call], Awaitable[Answer]]]
"""By lane, "query" and "bulk": who answers a request."""


class Gateway:
    """The ASGI application in front of the replicas."""

    def __init__(
        self,
        lanes: Mapping[str, Lanes],
        options: ServeOptions,
        *,
        sources: Mapping[str, str],
        are_awake: bool,
    ) -> None:
        """Take the models.

        Args:
            lanes: by name of a model, who answers.
            options: the bounds of each server of the fleet.
            sources: what models were made from, by name.
            are_awake: whether each model has a replica at any time. Else none is asked how it is,
                which would start one.
        """
        self._lanes = lanes
        self._options = options
        self._are_awake = are_awake
        self._keys = Keys(options.api_keys)
        self._bodies = BodyReader(options)
        named = {name: sources.get(name, "") for name in lanes}
        self._models = RemoteModels(named, options, self._ask_tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection."""
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        if scope["type"] != "http":
            return
        request = Request.from_scope(scope)
        exchange = self._models.exchange(request, self._answer_part)
        answer: Response | Answer
        try:
            route, exchange.rest = find_route(request)
            exchange.refuse = route.dialect.respond
            check_entrance(route, request, self._keys, self._options)
            if route.keeps_jobs:
                _ = exchange.jobs  # refused before the body: there are none
            call = Call(
                method=request.method,
                path=request.path,
                query=scope.get("query_string", b""),
                headers=list(scope["headers"]),
                client=scope.get("client"),
            )
            answer = await self._bodies.answer(
                exchange, receive, partial(self._answer, route, call)
            )
        except ClientGoneError:
            return
        except _PartRefusedError as refused:
            answer = refused.answer
        except Exception as raised:
            answer = exchange.refuse(exchange.error_of(raised))
        with suppress(OSError):  # the client has left meanwhile
            if isinstance(answer, Response):
                await answer.send(send, _without_id(headers_of(exchange, answer.status)))
                return
            head = {"status": answer.status, "headers": _without_id(answer.headers)}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, route: Route, call: Call, exchange: Exchange) -> Response | Answer:
        """Answer a request whose body is there.

        Raises:
            HTTPError: there is no such model, or a field is wrong.
        """
        if route.method == "GET":
            return await self._get(route, exchange, call)
        return await self._post(route, exchange, replace(call, body=exchange.body))

    async def _get(self, route: Route, exchange: Exchange, call: Call) -> Response | Answer:
        """Answer what has no body: all replicas together, one, or none."""
        name = exchange.rest
        match route.path:
            case "/ready":
                return await self._ready(call)
            case "/v1/models" | "/models" if self._are_awake:
                return await self._list(route, exchange, call)
            case "/v1/models/" | "/models/" if self._are_awake and name in self._lanes:
                return await self._lanes[name]["query"](call)
            case "/metrics" if not self._are_awake:
                raise HTTPError(404, _NO_METRICS, "no_route")
            case "/metrics":
                return await self._lanes[next(iter(self._lanes))]["query"](call)
            case "/info":
                return await self._post(route, exchange, call)
        return await route.handle(exchange)

    async def _post(self, route: Route, exchange: Exchange, call: Call) -> Response | Answer:
        """Let a replica of the request's model answer; with one model, any name is right."""
        if len(self._lanes) > 1:
            try:
                return await self._models.choose(route.handle, exchange)
            except ElsewhereError as found:
                name = found.model
        else:
            [name] = self._lanes
        return await self._lanes[name][lane_of(call.body)](call)

    async def _answer_part(self, handle: Handle, exchange: Exchange) -> Response:
        """Let a replica answer an instance of `POST /vertex`."""
        try:
            return await self._models.choose(handle, exchange)
        except ElsewhereError as found:
            lane = self._lanes[found.model][lane_of(exchange.body)]
        answer = await lane(Call(method="POST", path="/", body=exchange.body))
        if answer.status != 200:
            raise _PartRefusedError(answer)
        kind = dict(answer.headers)[b"content-type"]  # bytes have no place in the whole
        return Response(answer.body, content_type=kind.decode("latin-1"))

    async def _ask_tasks(self, name: str) -> tuple[Task, ...]:
        """Return what a model computes, as a replica of it says."""
        # Replicas ask for no key.
        answer = await self._lanes[name]["query"](Call(method="GET", path="/v1/models"))
        [facts] = msgspec.json.decode(answer.body)["data"]
        return tuple(facts["tasks"])

    async def _list(self, route: Route, exchange: Exchange, call: Call) -> Response:
        """Answer `GET /v1/models`: what a replica of each model says; of one that starts, less."""
        own = msgspec.json.decode((await route.handle(exchange)).body)
        said = await asyncio.gather(
            *(self._ask(name, "query", call, LIST_SECONDS) for name in self._lanes)
        )
        for facts, answer in zip(own["data"], said, strict=True):
            told = None if answer is None else _told(answer, "data", 0)
            facts.update({"state": "loading"} if told is None else told)
        return Response(msgspec.json.encode(own))

    async def _ready(self, call: Call) -> Response:
        """Answer `GET /ready`: a replica of each model and lane is, where all have one."""
        states = dict.fromkeys(self._lanes, "ready")
        if self._are_awake:
            places = [(name, lane) for name, lanes in self._lanes.items() for lane in lanes]
            said = await asyncio.gather(
                *(self._ask(name, lane, call, READY_SECONDS) for name, lane in places)
            )
            for (name, lane), answer in zip(places, said, strict=True):
                if answer is None or answer.status != 200:
                    why = None if answer is None else _told(answer, "models", name)
                    states[name] = why or f"no replica for {lane} answers"
        is_ready = set(states.values()) == {"ready"}
        content = {"status": "ready" if is_ready else "not ready", "models": states}
        return Response(msgspec.json.encode(content), 200 if is_ready else 503)

    async def _ask(self, name: str, lane: str, call: Call, seconds: float) -> Answer | None:
        """Return what a replica answers; None: none does in time."""
        try:
            return await asyncio.wait_for(self._lanes[name][lane](call), seconds)
        except asyncio.TimeoutError:
            return None
        except Exception as error:  # Ray's: the replica has died, or cannot start
            logging.getLogger(__name__).warning("%s for %s: %s", name, lane, first_line(error))
            return None


class _PartRefusedError(Exception):
    """A replica refuses a part of a body, and so the whole."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


def _told(answer: Answer, *path: str | int) -> Any:
    """Return a value of a replica's answer; None: it is not there."""
    try:
        value = msgspec.json.decode(answer.body)
        for key in path:
            value = value[key]
    except (msgspec.DecodeError, LookupError, TypeError):
        return None
    return value


def lane_of(body: bytes) -> str:
    """Return the lane of a request: few short texts are a query."""
    if len(body) > QUERY_BYTES:
        return "bulk"
    try:
        num_texts = _num_texts(msgspec.json.decode(body or b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "query"  # it cannot be read, and the replica says why
    return "bulk" if num_texts > QUERY_TEXTS else "query"


def _num_texts(value: Any) -> int:
    """Return how many texts a body has at most: those of its longest field, in any dialect."""
    if isinstance(value, dict):
        return max(map(_num_texts, value.values()), default=0)
    if not isinstance(value, list) or (value and isinstance(value[0], int)):
        return 1  # a list of numbers is one text, in tokens
    # A dict is an instance of several; a list in a list is a pair of texts, or one in tokens.
    return sum(_num_texts(each) if isinstance(each, dict) else 1 for each in value)


def _without_id(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] != _REQUEST_ID]
