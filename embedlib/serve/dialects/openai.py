"""OpenAI's `/v1/embeddings` and `/v1/models`, as vLLM, Voyage and Jina extend them.

Source: openai-python 3.54, `types/embedding_create_params.py`; vLLM, `entrypoints/pooling/embed`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from time import time
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.serve.asgi import JSON, Response, new_id
from embedlib.serve.catalog import describe_model
from embedlib.serve.compute import embed
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.dialects.vllm import PoolingFields, take_pooling_fields
from embedlib.serve.errors import HTTPError
from embedlib.serve.exchange import Exchange, check_positive
from embedlib.serve.vectors import (
    STORED_TYPES,
    as_base64,
    as_decimals,
    as_msgpack,
    as_stored_base64,
    stored_as,
)
from embedlib.serve.wire import Input, inputs_of
from embedlib.vectors.arrays import Vectors

MSGPACK = "application/msgpack"
OCTETS = "application/octet-stream"
MAX_DESCRIBED_ROWS = 64
"""Of an answer in bytes: a row takes some 100 bytes of a header, and clients refuse 8 kB."""


class EmbeddingsBody(PoolingFields, kw_only=True):
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
    user: str | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    """Of base64 and bytes; vLLM's, as the next one."""
    endianness: Literal["native", "big", "little"] | None = None


async def embeddings(exchange: Exchange) -> Response:
    """Answer `POST /v1/embeddings`."""
    body = await exchange.read(EmbeddingsBody)
    texts = inputs_of(body.input, "input", exchange.shared.options)
    dimensions = body.dimensions or body.output_dimension
    check_positive(body.dimensions, "dimensions")
    check_positive(body.output_dimension, "output_dimension")
    take_pooling_fields(exchange, body)
    _check_fields(body)
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
    return await _respond(exchange, rows, body, model.name)


def _check_fields(body: EmbeddingsBody) -> None:
    """Check what vLLM takes for vectors alone.

    Raises:
        HTTPError: it would change the vectors, or their bytes, in ways that are not there.
    """
    if body.use_activation is False:
        raise HTTPError(
            400,
            "use_activation = false; vectors have the length that the model gives them, leave it "
            "out",
            param="use_activation",
        )
    if body.embed_dtype is not None and body.embed_dtype not in STORED_TYPES:
        raise HTTPError(
            400,
            f"embed_dtype = {body.embed_dtype!r}; it must be {', '.join(STORED_TYPES)}",
            param="embed_dtype",
        )


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


async def _respond(exchange: Exchange, rows: Vectors, body: EmbeddingsBody, model: str) -> Response:
    encoding = body.encoding_format
    if encoding in ("bytes", "bytes_only") or (encoding is None and OCTETS in exchange.accepts):
        return await exchange.make(lambda: _respond_bytes(exchange, rows, body), len(rows))
    is_msgpack = encoding is None and MSGPACK in exchange.accepts
    encoded: Iterable[bytes]
    if is_msgpack:
        encoded = await exchange.in_thread(lambda: as_msgpack(rows))
    else:
        encode_row = as_base64 if encoding == "base64" else as_decimals
        stored: NDArray[Any] = rows
        if encoding == "base64" and (body.embed_dtype or body.endianness):
            stored, encode_row = _stored(rows, body), as_stored_base64
        encoded = map(encode_row, stored)  # one by one, where the content is made

    def content() -> dict[str, Any]:
        return {
            "id": f"embd-{new_id()}",
            "object": "list",
            "created": int(time()),
            "model": model,
            "data": [
                {"object": "embedding", "index": index, "embedding": msgspec.Raw(row)}
                for index, row in enumerate(encoded)
            ],
            "usage": usage_of(exchange),
            **({"truncated": exchange.truncated_rows} if exchange.work.usage.truncated else {}),
        }

    if is_msgpack:
        written = await exchange.make(lambda: msgspec.msgpack.encode(content()), len(rows))
        return Response(written, content_type=MSGPACK)
    return await exchange.answer(content, len(rows))


def _stored(rows: Vectors, body: EmbeddingsBody) -> NDArray[Any]:
    is_big = body.endianness == "big" or (body.endianness == "native" and sys.byteorder == "big")
    return stored_as(rows, body.embed_dtype or "float32", is_big_endian=is_big)


def _respond_bytes(exchange: Exchange, rows: Vectors, body: EmbeddingsBody) -> Response:
    """Return the plain numbers of all rows; `bytes` has a header that says where each one is.

    Of many rows it would be longer than clients accept; the shape says the same.
    """
    dim = rows.shape[1]
    stored = _stored(np.asarray(rows), body)
    headers = [("x-embedlib-shape", f"{len(rows)},{dim}")]
    if body.encoding_format in (None, "bytes") and len(rows) <= MAX_DESCRIBED_ROWS:
        size = dim * stored.itemsize
        data = [
            {
                "index": index,
                "embed_dtype": body.embed_dtype or "float32",
                "endianness": body.endianness or "little",
                "start": index * size,
                "end": (index + 1) * size,
                "shape": [dim],
            }
            for index in range(len(rows))
        ]
        metadata = json.dumps({"data": data, "usage": usage_of(exchange)}, separators=(",", ":"))
        headers.append(("metadata", metadata))
    return Response(stored.tobytes(), content_type=OCTETS, headers=headers)


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
        Route("POST", path, embeddings, OPENAI, "The vectors of texts.", EmbeddingsBody)
        for path in ("/v1/embeddings", "/embeddings")
    ),
    *(
        Route("GET", f"{prefix}{path}", handle, OPENAI, summary)
        for prefix in ("/v1", "")
        for path, handle, summary in (
            ("/models", models, "The models of this server."),
            ("/models/", model, "One model of this server."),
        )
    ),
)
