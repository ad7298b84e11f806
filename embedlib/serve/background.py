"""Answers the requests of jobs as their routes do, on the bulk lane and through the same door."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

from embedlib.serve.dialects.dialect import OPENAI, Route, check_json
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.requests.asgi import Request
from embedlib.serve.requests.exchange import Exchange, Shared


class Background:
    """Answers bodies without a connection."""

    def __init__(self, routes: Iterable[Route], shared: Shared) -> None:
        """Answer as these routes do."""
        self._routes = {route.path: route for route in routes if route.method == "POST"}
        self._shared = shared

    async def answer(self, path: str, body: bytes, request_id: str) -> Answer:
        """Return the answer of a body; an error is an answer."""
        route = self._routes.get(path)
        refuse = (OPENAI if route is None else route.dialect).respond
        request = Request(method="POST", path=path, query="", headers={}, client="")
        exchange = Exchange(request, body, self._shared, request_id, refuse)
        exchange.work.is_always_bulk = True
        error: HTTPError | None = None
        started = perf_counter()
        try:
            if route is None:  # the job is of another version of the server
                raise HTTPError(404, f"{path:.80} is not there any more", "no_route")
            response = check_json(await route.handle(exchange), "a job's answer")
            exchange.count(perf_counter() - started)
        except Exception as raised:
            error = _lasting(exchange, exchange.error_of(raised))
            response = exchange.refuse(error)
        return Answer(
            status=response.status,
            body=response.body,
            error=error,
            num_tokens=exchange.work.usage.num_tokens,
            model="" if exchange.model is None else exchange.model.name,
        )


def _lasting(exchange: Exchange, error: HTTPError) -> HTTPError:
    """Return an error as that of a model which only a new start brings back, if it is such a one.

    A GPU that is lost would fail all lines of all batches until the server is started again.
    """
    lost = None if exchange.model is None else exchange.model.lost
    if lost is None or error.kind not in ("failed", "unavailable"):
        return error
    return HTTPError(503, lost, "not_loaded")
