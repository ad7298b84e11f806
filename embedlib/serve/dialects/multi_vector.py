"""Jina's `POST /v1/multi-vector`: the vectors of a text's tokens, by a late-interaction model.

Source: https://api.jina.ai/openapi.json, `/v1/multi-vector`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from embedlib.embedder import Embedder
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.dialects.embedding_fields import role_of
from embedlib.serve.dialects.vllm import (
    PoolingFields,
    check_length_is_own,
    take_pooling_fields,
)
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.compute import embed_tokens
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange, usage_of
from embedlib.serve.vectors import as_base64, as_decimals, encoded
from embedlib.serve.wire import Texts, texts_of
from embedlib.vectors.arrays import Vectors


class MultiVectorBody(PoolingFields, kw_only=True):
    """The body of `POST /v1/multi-vector`."""

    input: Texts
    input_type: str | None = None
    """"query" or, by default, "document"."""
    dimensions: int | None = None
    """Only that of the model."""
    embedding_type: Literal["float", "base64"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    """The same as OpenAI's clients spell it."""


async def embed_multi_vectors(exchange: Exchange) -> Response:
    """Answer `POST /v1/multi-vector`."""
    body = await exchange.read(MultiVectorBody)
    texts = texts_of(body.input, "input", exchange.shared.options)
    take_pooling_fields(exchange, body)
    check_length_is_own(body)
    model = exchange.find(body.model, "embed_multi_vector")
    dimensions = model.open_as(Embedder).get_embedding_dimension()
    if body.dimensions not in (None, dimensions):
        raise HTTPError.wrong_value(
            "dimensions", body.dimensions, f"{model.name} has {dimensions}, leave it out"
        )
    role = role_of(body.input_type) or "document"
    is_base64 = "base64" in (body.embedding_type, body.encoding_format)
    rows = await embed_tokens(model, texts, exchange.work, "multi_vector", role=role)
    exchange.work.dimensions = dimensions

    def written(vectors: Vectors) -> object:
        return encoded(vectors, as_base64) if is_base64 else msgspec.Raw(as_decimals(vectors))

    def content() -> dict[str, Any]:
        return {
            "object": "list",
            "model": model.name,
            "data": [
                {"object": "embeddings", "index": index, "embeddings": written(vectors)}
                for index, vectors in enumerate(rows)
            ],
            "usage": usage_of(exchange),
        }

    return await exchange.answer(content, sum(map(len, rows)))


ROUTES = (
    Route(
        "POST",
        "/v1/multi-vector",
        embed_multi_vectors,
        OPENAI,
        "The vectors of the tokens of texts.",
        MultiVectorBody,
    ),
)
