"""The routes of the server, and the one that answers a request."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from embedlib.serve import console, operations
from embedlib.serve.dialects import (
    baseten,
    batches,
    by_task,
    classify,
    cohere,
    files,
    models,
    multi_vector,
    ollama,
    openai,
    pooling,
    rerank,
    search,
    tei,
    tokens,
)
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.errors import HTTPError
from embedlib.serve.hosts import check_host, check_page
from embedlib.serve.keys import Keys
from embedlib.serve.openapi import describe_routes
from embedlib.serve.options import ServeOptions
from embedlib.serve.requests.asgi import Request, Response
from embedlib.serve.requests.exchange import Exchange
from embedlib.serve.wire import check_encoding

COMPUTING: tuple[Route, ...] = (
    *openai.ROUTES,
    *multi_vector.ROUTES,
    *pooling.ROUTES,
    *tei.ROUTES,
    *by_task.ROUTES,
    *tokens.ROUTES,
    *rerank.ROUTES,
    *classify.ROUTES,
    *cohere.ROUTES,
    *ollama.ROUTES,
)
"""Those that a model answers, for a client that waits or for a job."""


async def _openapi(exchange: Exchange) -> Response:
    """Answer `GET /openapi.json`: without the routes that this server cannot answer."""
    shared = exchange.shared
    has_keys, has_jobs = bool(shared.options.api_keys), shared.jobs is not None
    has_search = any(shared.destinations)
    return Response(await exchange.in_thread(lambda: _description(has_keys, has_jobs, has_search)))


@cache  # it takes tens of milliseconds, and needs no key
def _description(has_keys: bool, has_jobs: bool, has_search: bool) -> bytes:
    left_out = () if has_search else search.ROUTES
    routes = [
        route for route in ROUTES if (has_jobs or not route.keeps_jobs) and route not in left_out
    ]
    return msgspec.json.encode(describe_routes(routes, has_keys=has_keys))


ROUTES: tuple[Route, ...] = (
    *COMPUTING,
    *models.ROUTES,
    *search.ROUTES,
    *files.ROUTES,
    *batches.ROUTES,
    *baseten.ROUTES,
    *operations.ROUTES,
    *console.ROUTES,
    Route("GET", "/openapi.json", _openapi, OPENAI, "This description.", needs_key=False),
)
_BY_PATH = {(route.method, route.path): route for route in ROUTES if not route.is_open}
_OPEN = tuple(route for route in ROUTES if route.is_open)
_SYNC = re.compile(
    r"\A(?:/(?:production|development|environments/[^/]+|deployment/[^/]+))?/sync(?=/)"
)
"""What stands in front of a model's own paths in Baseten's: the deployment, of which there is one
here. Source: the reference of its inference API."""


def check_entrance(route: Route, request: Request, keys: Keys, options: ServeOptions) -> str:
    """Check who sends a request to a route, and how; return whose jobs it sees, as `Keys.check`.

    Raises:
        HTTPError: it may not enter.
    """
    check_host(request.method, request.headers.get("host"), options.allowed_hosts)
    check_page(request.method, request.headers)
    owner = keys.check(request.headers) if route.needs_key else ""
    if route.body is not None:
        check_encoding(request.headers)
    return owner


def find_route(request: Request) -> tuple[Route, str]:
    """Return the route of a request, and the part of the path that the route leaves open.

    Raises:
        HTTPError: there is none.
    """
    path = request.path
    if (found := _BY_PATH.get((request.method, path))) is not None:
        return found, ""
    path = _SYNC.sub("", path)
    path = path.rstrip("/") or "/"
    method = "GET" if request.method == "HEAD" else request.method
    found = _BY_PATH.get((method, path))
    if found is not None:
        return found, ""
    for route in _OPEN:
        rest = route.rest_of(path)
        if route.method == method and rest:
            return route, rest
    others = sorted({route.method for route in ROUTES if route.rest_of(path) is not None})
    if others:
        raise HTTPError.wrong_method(f"{request.method} {path:.80}", others)
    raise HTTPError(
        404,
        f"{request.method} {path:.80} is not there; GET /openapi.json lists the routes",
        "no_route",
    )
