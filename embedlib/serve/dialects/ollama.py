"""Ollama's `POST /api/embed`, its older form, and its list of models. Source: ollama's api.md."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import msgspec

from embedlib.serve.dialects.dialect import OLLAMA, Route
from embedlib.serve.models.compute import embed
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Common, Exchange
from embedlib.serve.vectors import as_decimals, encoded
from embedlib.serve.wire import texts_of


class EmbedBody(Common, kw_only=True):
    """The body of `POST /api/embed`."""

    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None


class EmbeddingsBody(Common, kw_only=True):
    """The body of the older `POST /api/embeddings`."""

    prompt: str


async def embed_texts(exchange: Exchange) -> Response:
    """Answer `POST /api/embed`; its vectors have unit length."""
    started = perf_counter_ns()
    body = await exchange.read(EmbedBody)
    texts = texts_of(body.input, "input", exchange.shared.options)
    exchange.work.on_truncate = "error" if body.truncate is False else "ignore"
    model = exchange.find(body.model, "embed")
    rows = await embed(model, texts, exchange.work, normalizes=True, dimensions=body.dimensions)

    def content() -> dict[str, Any]:
        return {
            "model": model.name,
            "embeddings": encoded(rows),
            "total_duration": perf_counter_ns() - started,
            "load_duration": 0,
            "prompt_eval_count": exchange.work.usage.num_tokens,
        }

    return await exchange.answer(content, len(rows))


async def embed_prompt(exchange: Exchange) -> Response:
    """Answer `POST /api/embeddings`."""
    body = await exchange.read(EmbeddingsBody)
    model = exchange.find(body.model, "embed")
    [row] = await embed(model, [body.prompt], exchange.work)
    return await exchange.answer({"embedding": msgspec.Raw(as_decimals(row))})


async def tags(exchange: Exchange) -> Response:
    """Answer `GET /api/tags`."""
    names = [{"name": model.name, "model": model.name} for model in exchange.shared.catalog]
    return await exchange.answer({"models": names})


ROUTES = (
    Route("POST", "/api/embed", embed_texts, OLLAMA, "Vectors of unit length.", EmbedBody),
    Route("POST", "/api/embeddings", embed_prompt, OLLAMA, "The vector of a text.", EmbeddingsBody),
    Route("GET", "/api/tags", tags, OLLAMA, "The models of this server."),
)
