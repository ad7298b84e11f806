"""Routes for those who run a server: health, readiness, metrics, and its description."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from functools import partial
from time import monotonic, time
from typing import Final

from embedlib.errors import EmbedlibError, first_line
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.compute import Work, embed, embed_tokens, score_pairs, score_texts
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange
from embedlib.version import __version__

CANARY_SECONDS = 30.0
"""A model that has answered within this time is known to answer."""
ANSWER_SECONDS = 5.0
"""A model that needs more for one short query is not ready; probes give up after some seconds."""


async def health(exchange: Exchange) -> Response:
    """Answer `GET /health`: the process lives, and a restart is not the only way to go on.

    Computes nothing, so that load cannot fail it.
    """
    lost = {model.name: model.lost for model in exchange.shared.catalog if model.lost}
    # Infinity's clients read `unix`.
    content: dict[str, object] = {"version": __version__, "unix": time()}
    content |= {"status": "lost", "models": lost} if lost else {"status": "ok"}
    return await exchange.answer(content, status=503 if lost else 200)


async def root(exchange: Exchange) -> Response:
    """Answer `GET /`: people get the page, probes the health."""
    if exchange.prefers("text/html"):
        return Response(b"", 307, headers=[("location", "ui")])
    return await health(exchange)


async def ready(exchange: Exchange) -> Response:
    """Answer `GET /ready`: every model is loaded and has answered lately, and nothing drains."""
    shared = exchange.shared
    states = {model.name: model.error or model.lost or model.state for model in shared.catalog}
    is_ready = shared.catalog.is_ready and not shared.is_draining
    if is_ready:
        asked = [model for model in shared.catalog if not model.lost]
        silences = await asyncio.gather(*map(_why_silent, asked))  # probes give up after seconds
        found = zip(asked, silences, strict=True)
        silent = {model.name: silence for model, silence in found if silence}
        is_ready = len(asked) == len(states) and not silent
        states |= silent
    for destination in shared.destinations:
        states[f"search {destination.name}"] = destination.error or (
            "loading" if destination.model is None else "ready"
        )
        is_ready = is_ready and destination.model is not None
    content = {
        "status": "ready" if is_ready else "draining" if shared.is_draining else "not ready",
        "models": states,
    }
    return await exchange.answer(content, status=200 if is_ready else 503)


async def _why_silent(model: ServedModel) -> str:
    """Return why a model answers no canary; empty: it does, or has answered lately."""
    if model.answered_at and monotonic() - model.answered_at <= CANARY_SECONDS:
        return ""
    try:
        await asyncio.wait_for(_compute_canary(model), ANSWER_SECONDS)
    except asyncio.TimeoutError:
        return f"it has not answered within {ANSWER_SECONDS:g} seconds"
    except (EmbedlibError, HTTPError) as error:
        return first_line(error)
    return ""


async def _compute_canary(model: ServedModel) -> None:
    match model.task:
        case "embed":
            await embed(model, ["a"], Work())
        case "embed_sparse":
            await embed_tokens(model, ["a"], Work(), "sparse")
        case "embed_multi_vector":
            await embed_tokens(model, ["a"], Work(), "multi_vector", role="query")
        case "rerank":
            await score_pairs(model, [("a", "a")], Work())
        case "classify":
            await score_texts(model, ["a"], Work())


async def metrics(exchange: Exchange) -> Response:
    """Answer `GET /metrics`."""
    if exchange.shared.jobs is not None:
        with suppress(HTTPError, sqlite3.Error):  # of the disk: all else is told all the same
            await exchange.shared.jobs.count()
    # A millisecond or two; the thread that writes large answers may be at one for seconds.
    body = await asyncio.to_thread(exchange.shared.metrics.render)
    return Response(body, content_type="text/plain; version=0.0.4; charset=utf-8")


async def load(exchange: Exchange) -> Response:
    """Answer vLLM's `GET /load`: how many requests wait for an answer, without this one."""
    return await exchange.answer({"server_load": max(0, exchange.shared.metrics.num_inflight - 1)})


async def version(exchange: Exchange) -> Response:
    """Answer `GET /version`."""
    return await exchange.answer({"version": __version__})


_open: Final = partial(Route, needs_key=False)

ROUTES = (
    _open("GET", "/", root, OPENAI, "To probes as /health, to browsers the page."),
    _open("GET", "/health", health, OPENAI, "Whether the process lives and no GPU is lost."),
    _open("GET", "/ping", health, OPENAI, "Whether the process lives and no GPU is lost."),
    _open("GET", "/ready", ready, OPENAI, "Whether requests are answered."),
    _open("GET", "/metrics", metrics, OPENAI, "Metrics for Prometheus."),
    _open("GET", "/load", load, OPENAI, "How many requests wait for an answer, as vLLM tells it."),
    _open("GET", "/version", version, OPENAI, "The version."),
)
