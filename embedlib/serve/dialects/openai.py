"""OpenAI's `/v1/embeddings`, as vLLM, Voyage, Jina and Infinity extend them.

Source: openai-python 3.54, `types/embedding_create_params.py`; vLLM, `entrypoints/pooling/embed`;
voyageai 0.5, `util.py`; https://api.jina.ai/redoc; infinity_client, `models`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial
from time import time
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.embedder import Embedder
from embedlib.serve.dialects.dialect import OPENAI_AND_VOYAGE, Route
from embedlib.serve.dialects.embedding_fields import as_type, check_type, prompt_of
from embedlib.serve.dialects.vllm import (
    PoolingFields,
    check_length_is_own,
    take_pooling_fields,
)
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.compute import embed
from embedlib.serve.requests.asgi import Response, new_id
from embedlib.serve.requests.exchange import Exchange, check_number, usage_of
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
    """The body of `POST /v1/embeddings`; fields of other spellings are those of other servers."""

    input: Input
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    dimensions: int | None = None
    """0 is all of them: Infinity's clients send it."""
    output_dimension: int | None = None
    input_type: str | None = None
    """"query" or "document"."""
    prompt_name: str | None = None
    normalize: bool | None = None
    user: str | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    """Of base64 and bytes; vLLM's, as the next one."""
    endianness: Literal["native", "big", "little"] | None = None
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    """Voyage's."""
    embedding_type: Literal["float", "base64", "binary", "ubinary"] | None = None
    """Jina's, as the next three."""
    task: str | None = None
    normalized: bool | None = None
    late_chunking: bool | None = None
    """Only false: each text gets its own vector."""
    modality: str | None = None
    """Infinity's: only "text"."""


async def embeddings(exchange: Exchange) -> Response:
    """Answer `POST /v1/embeddings`."""
    body = await exchange.read(EmbeddingsBody)
    texts = inputs_of(body.input, "input", exchange.shared.options)
    dimensions = body.dimensions or body.output_dimension
    check_number(body.dimensions, "dimensions", least=0)
    check_number(body.output_dimension, "output_dimension", least=1)
    take_pooling_fields(exchange, body)
    _check_fields(body)
    model = exchange.find(body.model, "embed")
    session = model.open_as(Embedder)
    role, prompt_name = prompt_of(session, body.input_type, body.prompt_name, body.task)
    kind = body.output_dtype or body.embedding_type or "float"
    field = "output_dtype" if body.output_dtype else "embedding_type"
    normalizes = bool(body.normalize or body.normalized)
    check_type(session, kind, field, dimensions=dimensions, normalizes=normalizes)
    rows = await embed(
        model,
        texts,
        exchange.work,
        role=role,
        prompt_name=prompt_name,
        normalizes=normalizes,
        dimensions=dimensions,
        dimensions_field="dimensions" if body.dimensions else "output_dimension",
    )
    if _is_quantized(body):
        rows = await exchange.make(partial(as_type, rows, kind, session), len(rows))
    return await _respond(exchange, rows, body, model.name)


def _is_quantized(body: EmbeddingsBody) -> bool:
    return body.output_dtype not in (None, "float") or body.embedding_type in ("binary", "ubinary")


def _check_fields(body: EmbeddingsBody) -> None:
    """Check what other servers take beside OpenAI's fields.

    Raises:
        HTTPError: it would change the vectors, or their bytes, in ways that are not there.
    """
    if body.modality not in (None, "text"):
        raise HTTPError.wrong_value(
            "modality", body.modality, "there are no images or audio here, send texts"
        )
    if body.late_chunking:
        raise HTTPError.wrong_value(
            "late_chunking",
            True,
            "each text is embedded for itself here; leave it out, or let embedlib index cut and "
            "embed documents (--late-chunking)",
        )
    if body.dimensions and body.output_dimension not in (None, body.dimensions):
        raise HTTPError(
            400,
            "dimensions and output_dimension both say how many are kept; give one",
            param="dimensions",
        )
    if body.output_dtype is not None and body.embedding_type is not None:
        raise HTTPError(
            400,
            "output_dtype and embedding_type both choose the type of the numbers; give one",
            param="output_dtype",
        )
    if _is_quantized(body) and body.encoding_format in ("bytes", "bytes_only"):
        raise HTTPError.wrong_value(
            "encoding_format",
            body.encoding_format,
            "plain bytes are of embed_dtype, ask for float or base64",
        )
    if _is_quantized(body) and body.embed_dtype is not None:
        raise HTTPError.wrong_value(
            "embed_dtype",
            body.embed_dtype,
            "output_dtype or embedding_type chooses another type, leave one out",
        )
    check_length_is_own(body)
    if body.embed_dtype is not None and body.embed_dtype not in STORED_TYPES:
        raise HTTPError.wrong_value(
            "embed_dtype", body.embed_dtype, f"it must be {', '.join(STORED_TYPES)}"
        )


def _encoding_of(
    exchange: Exchange, body: EmbeddingsBody
) -> Literal["float", "base64", "bytes", "msgpack"]:
    """Return how numbers are written; `Accept` decides where no field does."""
    match body.embedding_type:
        case "base64":
            return "base64"
        case "binary" | "ubinary":
            # Also beside base64: the openai SDK asks for it by itself, and reads float32.
            return "float"
    match body.encoding_format:
        case "float" | "base64" as encoding:
            return encoding
        case "bytes" | "bytes_only":
            return "bytes"
    if not _is_quantized(body):
        if exchange.prefers(OCTETS):
            return "bytes"
        if exchange.prefers(MSGPACK):
            return "msgpack"
    return "float"


async def _respond(
    exchange: Exchange, rows: NDArray[Any], body: EmbeddingsBody, model: str
) -> Response:
    encoding = _encoding_of(exchange, body)
    if encoding == "bytes":
        return await exchange.make(lambda: _respond_bytes(exchange, rows, body), len(rows))
    encoded: Iterable[bytes]
    if encoding == "msgpack":
        encoded = await exchange.make(lambda: as_msgpack(rows), len(rows))
    else:
        encode_row = as_base64 if encoding == "base64" else as_decimals
        stored: NDArray[Any] = rows
        is_stored = bool(body.embed_dtype or body.endianness) and not _is_quantized(body)
        if encoding == "base64" and is_stored:
            stored, encode_row = _stored(rows, body), as_stored_base64
        encoded = map(encode_row, stored)  # one by one, where the content is made
    truncated = [row for row, _ in exchange.work.usage.truncated]

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
            **({"truncated": truncated} if truncated else {}),
        }

    if encoding == "msgpack":
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


ROUTES = tuple(
    Route("POST", path, embeddings, OPENAI_AND_VOYAGE, "The vectors of texts.", EmbeddingsBody)
    for path in ("/v1/embeddings", "/embeddings")
)
