"""Cohere's `POST /v2/embed`. Source: cohere-python 7.3, `v2/raw_client.py`."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from numpy.typing import NDArray

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.serve.asgi import Response, new_id
from embedlib.serve.compute import embed
from embedlib.serve.dialects.dialect import COHERE, Route
from embedlib.serve.dialects.openai import role_of
from embedlib.serve.errors import HTTPError
from embedlib.serve.exchange import Common, Exchange, check_positive
from embedlib.serve.sessions import check_quantization, ranges_of
from embedlib.serve.vectors import EncodeRow, as_base64, as_decimals
from embedlib.serve.wire import check_count
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.quantization import quantize

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class EmbedBody(Common, kw_only=True):
    """The body of `POST /v2/embed`."""

    texts: list[str]
    input_type: str | None = None
    output_dimension: int | None = None
    embedding_types: list[EmbeddingType] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None


async def embed_texts(exchange: Exchange) -> Response:
    """Answer `POST /v2/embed`."""
    body = await exchange.read(EmbedBody)
    check_count(body.texts, "texts", exchange.shared.options.max_texts)
    check_positive(body.output_dimension, "output_dimension")
    exchange.work.on_truncate = "error" if body.truncate == "NONE" else "ignore"
    exchange.work.side = "left" if body.truncate == "START" else "right"
    model = exchange.find(body.model, "embed")
    session = model.open()
    assert isinstance(session, Embedder), "the catalog finds models by their task"
    kinds: list[EmbeddingType] = list(body.embedding_types or ("float",))
    rows = await embed(
        model,
        body.texts,
        exchange.work,
        role=role_of(body.input_type),
        dimensions=body.output_dimension,
    )
    embeddings: dict[str, Any] = {}
    for kind in kinds:
        encode_row: EncodeRow = as_base64 if kind == "base64" else as_decimals
        make = partial(_converted, rows, kind, session, body.output_dimension)
        converted = await exchange.make(make, len(rows))
        embeddings[kind] = await exchange.encode_rows(converted, encode_row)
    num_tokens = exchange.work.usage.num_tokens
    content = {
        "id": new_id(),
        "embeddings": embeddings,
        "texts": body.texts,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": num_tokens, "image_tokens": 0},
        },
        "response_type": "embeddings_by_type",
    }
    return await exchange.answer(content, len(rows))


def _converted(
    rows: Vectors, kind: EmbeddingType, session: Embedder, dimensions: int | None
) -> NDArray[Any]:
    if kind == "float" or kind == "base64":
        return rows
    ranges = ranges_of(session)
    if kind in ("int8", "uint8") and ranges is None:
        raise HTTPError(
            400,
            f"embedding_types has {kind!r}, which needs the range of every dimension; ask for "
            "float or binary, or serve an Embedder with quantization_ranges through create_app",
            param="embedding_types",
        )
    try:
        check_quantization(session, kind, dimensions)
        return quantize(rows, kind, ranges)
    except ConfigError as error:
        raise HTTPError(400, str(error), param="embedding_types") from None


ROUTES = (
    Route(
        "POST",
        "/v2/embed",
        embed_texts,
        COHERE,
        "The vectors of texts, in several types.",
        EmbedBody,
    ),
)
