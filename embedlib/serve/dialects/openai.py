"""OpenAI's `/v1/embeddings` and `/v1/models`, as vLLM, Voyage and Jina extend them.

Source: openai-python 3.54, `types/embedding_create_params.py`; vLLM, `entrypoints/pooling/embed`.
"""

from __future__ import annotations

import json
from time import time
from typing import Any, Literal

import msgspec
import numpy as np

from embedlib.serve.asgi import JSON, Response, new_id
from embedlib.serve.catalog import describe_model
from embedlib.serve.compute import embed
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.errors import HTTPError
from embedlib.serve.exchange import Common, Exchange, check_positive
from embedlib.serve.vectors import as_base64, as_bytes, as_decimals, as_msgpack
from embedlib.serve.wire import Input, texts_of
from embedlib.vectors.arrays import Vectors

MSGPACK = "application/msgpack"
OCTETS = "application/octet-stream"


class EmbeddingsBody(Common, kw_only=True):
    """The body of `POST /v1/embeddings`; fields of other spellings are Voyage's and vLLM's."""

    input: Input
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    dimensions: int | None = None
    output_dimension: int | None = None
    input_type: str | None = None
    """"query" or "document"."""
    prompt_name: str | None = None
    normalize: bool | None = None
    truncation: bool | None = None
    """False refuses texts that are too long."""
    truncate_prompt_tokens: int | None = None
    user: str | None = None


async def embeddings(exchange: Exchange) -> Response:
    """Answer `POST /v1/embeddings`."""
    body = await exchange.read(EmbeddingsBody)
    texts = texts_of(body.input, "input", max_texts=exchange.shared.options.max_texts)
    dimensions = body.dimensions or body.output_dimension
    check_positive(body.dimensions, "dimensions")
    check_positive(body.output_dimension, "output_dimension")
    if body.truncate_prompt_tokens not in (None, -1):
        raise HTTPError(
            400,
            f"truncate_prompt_tokens = {body.truncate_prompt_tokens}; only the model's own limit "
            "(-1) is there, leave it out",
            param="truncate_prompt_tokens",
        )
    model = exchange.find(body.model, "embed")
    exchange.work.on_truncate = "error" if body.truncation is False else "ignore"
    rows = await embed(
        model,
        texts,
        exchange.work,
        role=role_of(body.input_type),
        prompt_name=body.prompt_name,
        normalizes=bool(body.normalize),
        dimensions=dimensions,
    )
    return await _respond(exchange, rows, body.encoding_format, model.name)


def role_of(input_type: str | None) -> Literal["query", "document"] | None:
    """Return the role that clients spell in several ways.

    Raises:
        HTTPError: it is none of them.
    """
    match input_type:
        case None | "" | "classification" | "clustering":
            return None
        case "query" | "search_query":
            return "query"
        case "document" | "passage" | "search_document":
            return "document"
    raise HTTPError(
        400, f"input_type = {input_type!r:.40}; it must be query or document", param="input_type"
    )


def usage_of(exchange: Exchange) -> dict[str, int]:
    """Return the object `usage`; vLLM's has completion_tokens too."""
    num_tokens = exchange.work.usage.num_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}


async def _respond(exchange: Exchange, rows: Vectors, encoding: str | None, model: str) -> Response:
    if encoding in ("bytes", "bytes_only") or (encoding is None and OCTETS in exchange.accepts):
        return _respond_bytes(exchange, rows, encoding or "bytes")
    is_msgpack = encoding is None and MSGPACK in exchange.accepts
    if is_msgpack:
        encoded = [msgspec.Raw(row) for row in await exchange.in_thread(lambda: as_msgpack(rows))]
    else:
        encode_row = as_base64 if encoding == "base64" else as_decimals
        encoded = await exchange.encode_rows(rows, encode_row)
    content: dict[str, Any] = {
        "id": f"embd-{new_id()}",
        "object": "list",
        "created": int(time()),
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(encoded)
        ],
        "usage": usage_of(exchange),
    }
    if exchange.work.usage.truncated:
        content["truncated"] = exchange.truncated_rows
    if is_msgpack:
        return Response(msgspec.msgpack.encode(content), content_type=MSGPACK)
    return await exchange.answer(content, len(rows))


def _respond_bytes(exchange: Exchange, rows: Vectors, encoding: str) -> Response:
    """Return the plain float32 of all rows; `bytes` has a header that says where each one is."""
    dim = rows.shape[1]
    headers = [("x-embedlib-shape", f"{len(rows)},{dim}")]
    if encoding == "bytes":
        data = [
            {
                "index": index,
                "embed_dtype": "float32",
                "endianness": "little",
                "start": index * dim * 4,
                "end": (index + 1) * dim * 4,
                "shape": [dim],
            }
            for index in range(len(rows))
        ]
        metadata = json.dumps({"data": data, "usage": usage_of(exchange)}, separators=(",", ":"))
        headers += [("metadata", metadata)] if len(metadata) < 8000 else []
    return Response(as_bytes(np.asarray(rows)), content_type=OCTETS, headers=headers)


async def models(exchange: Exchange) -> Response:
    """Answer `GET /v1/models`."""
    found = [describe_model(model) for model in exchange.shared.catalog]
    return Response(msgspec.json.encode({"object": "list", "data": found}), content_type=JSON)


async def model(exchange: Exchange) -> Response:
    """Answer `GET /v1/models/NAME`; a name may have slashes."""
    for found in exchange.shared.catalog:
        if found.name == exchange.rest:
            return Response(msgspec.json.encode(describe_model(found)))
    raise HTTPError(
        404, f"no model {exchange.rest!r:.80} here; GET /v1/models lists them", "not_found"
    )


ROUTES = (
    *(
        Route(
            method="POST",
            path=path,
            handle=embeddings,
            dialect=OPENAI,
            summary="The vectors of texts.",
            body=EmbeddingsBody,
        )
        for path in ("/v1/embeddings", "/embeddings")
    ),
    *(
        Route(
            method="GET",
            path=f"{prefix}{path}",
            handle=handle,
            dialect=OPENAI,
            summary=summary,
        )
        for prefix in ("/v1", "")
        for path, handle, summary in (
            ("/models", models, "The models of this server."),
            ("/models/", model, "One model of this server."),
        )
    ),
)
