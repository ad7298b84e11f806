"""Answers the requests of jobs as their routes do, on the bulk lane and through the same door."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter

from embedlib.serve.asgi import Request, Response
from embedlib.serve.dialects.dialect import OPENAI, Route, check_json
from embedlib.serve.errors import HTTPError, describe
from embedlib.serve.exchange import Exchange, Shared
from embedlib.serve.jobs.answers import Answer


async def _refuse(exchange: Exchange) -> Response:
    """Refuse a job of another version of the server.

    Raises:
        HTTPError: always.
    """
    raise HTTPError(404, f"{exchange.request.path:.80} is not there any more", "no_route")


_UNKNOWN = Route("POST", "", _refuse, OPENAI, "")


class Background:
    """Answers bodies without a connection."""

    def __init__(self, routes: Iterable[Route], shared: Shared) -> None:
        """Answer as these routes do."""
        self._routes = {route.path: route for route in routes if route.method == "POST"}
        self._shared = shared

    async def answer(self, path: str, body: bytes, request_id: str) -> Answer:
        """Return the answer of a body; an error is an answer."""
        route = self._routes.get(path, _UNKNOWN)
        request = Request(method="POST", path=path, query="", headers={}, client="")
        exchange = Exchange(request, body, self._shared, request_id)
        exchange.work.is_always_bulk = True
        error: HTTPError | None = None
        started = perf_counter()
        try:
            response = check_json(await route.handle(exchange), "a job's answer")
            exchange.count(perf_counter() - started)
        except Exception as raised:
            error = describe(raised, exchange.work.field)
            if error.kind == "internal":
                logging.getLogger(__name__).exception("request %s", request_id)
            response = route.dialect.respond(error)
        return Answer(
            status=response.status,
            body=response.body,
            kind=None if error is None else error.kind,
            message="" if error is None else error.message,
            retry_seconds=None if error is None else error.retry_seconds,
            num_tokens=exchange.work.usage.num_tokens,
            model="" if exchange.model is None else exchange.model.name,
        )
