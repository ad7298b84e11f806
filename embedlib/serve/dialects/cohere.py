"""Cohere's `POST /v2/embed`, and `POST /v1/embed` of its older client.

Source: cohere-python 7.3, `v2/raw_client.py`, `raw_base_client.py`, `types/embed_input.py`
and `types/embed_response.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import msgspec

from embedlib.embedder import Embedder
from embedlib.serve.dialects.cutting import cut_texts
from embedlib.serve.dialects.dialect import COHERE, Route
from embedlib.serve.dialects.embedding_fields import (
    EmbeddingType,
    as_type,
    check_type,
    role_of,
)
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.compute import embed
from embedlib.serve.requests.asgi import Response, new_id
from embedlib.serve.requests.exchange import Common, Exchange, check_number
from embedlib.serve.vectors import as_base64, as_decimals, encoded
from embedlib.serve.wire import check_count


class EmbedContent(msgspec.Struct):
    """A part of an input."""

    type: str
    text: str | None = None


class EmbedInput(msgspec.Struct):
    """A text, as clients spell it that also send images."""

    content: list[EmbedContent]


class EmbedBody(Common, kw_only=True):
    """The body of `POST /v2/embed` and `/v1/embed`."""

    texts: list[str] | None = None
    inputs: list[EmbedInput] | None = None
    """In the place of `texts`; only texts, one each."""
    input_type: str | None = None
    max_tokens: int | None = None
    """Of a text, which is truncated to them; special tokens and the prompt are not counted."""
    output_dimension: int | None = None
    embedding_types: list[EmbeddingType] | None = None
    """None: float alone; on `/v1/embed` its rows are the answer's, without a type."""
    truncate: Literal["NONE", "START", "END"] | None = None


async def embed_texts(exchange: Exchange, *, version: Literal["1", "2"]) -> Response:
    """Answer `POST /v2/embed` or, in version 1 of the interface, `/v1/embed`."""
    body = await exchange.read(EmbedBody)
    given = _texts_of(body)
    check_count(given, "texts", exchange.shared.options.max_texts)
    check_number(body.output_dimension, "output_dimension", least=1)
    check_number(body.max_tokens, "max_tokens", least=1)
    exchange.work.on_truncate = "error" if body.truncate == "NONE" else "ignore"
    exchange.work.side = "left" if body.truncate == "START" else "right"
    model = exchange.find(body.model, "embed")
    session = model.open_as(Embedder)
    texts = await _cut(exchange, session, body, given)
    # Each once: a repetition would be encoded again, and gives the same key.
    kinds: Iterable[EmbeddingType] = dict.fromkeys(body.embedding_types or ("float",))
    for kind in kinds:
        check_type(session, kind, "embedding_types", dimensions=body.output_dimension)
    rows = await embed(
        model,
        texts,
        exchange.work,
        role=role_of(body.input_type),
        dimensions=body.output_dimension,
        dimensions_field="output_dimension",
    )
    num_tokens = exchange.work.usage.num_tokens
    is_plain = version == "1" and not body.embedding_types

    def content() -> dict[str, Any]:
        embeddings = {
            kind: encoded(
                as_type(rows, kind, session), as_base64 if kind == "base64" else as_decimals
            )
            for kind in kinds
        }
        return {
            "id": new_id(),
            "embeddings": embeddings["float"] if is_plain else embeddings,
            "texts": given,
            "meta": {
                "api_version": {"version": version},
                "billed_units": {"input_tokens": num_tokens, "image_tokens": 0},
            },
            "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
        }

    return await exchange.answer(content, len(rows))


def _texts_of(body: EmbedBody) -> list[str]:
    """Return the texts of a body.

    Raises:
        HTTPError: it has none, has them twice, or has something else.
    """
    if body.inputs is None:
        if body.texts is None:
            raise HTTPError.missing_field("texts")
        return body.texts
    if body.texts is not None:
        raise HTTPError(400, "texts and inputs are both there; send one of them", param="inputs")
    texts = []
    for place, each in enumerate(body.inputs):
        found = [
            part.text for part in each.content if part.type == "text" and part.text is not None
        ]
        if len(found) != 1 or len(each.content) != 1:
            kinds = ", ".join(part.type for part in each.content) or "nothing"
            raise HTTPError(
                400,
                f"inputs[{place}].content has {kinds:.60}; send one text in each input, there are "
                "no images here",
                param="inputs",
            )
        texts += found
    return texts


async def _cut(
    exchange: Exchange, session: Embedder, body: EmbedBody, texts: list[str]
) -> list[str]:
    """Return the texts with `max_tokens` each.

    Raises:
        HTTPError: one has more, and may not be truncated.
    """
    limit = body.max_tokens
    if limit is None or limit >= session.max_seq_length:  # the model's own limit is lower
        return texts
    side = exchange.work.side
    cut = await cut_texts(exchange, session.tokenizer, texts, limit, "texts", side)
    if body.truncate == "NONE" and cut != texts:
        row = next(row for row, text in enumerate(texts) if cut[row] != text)
        raise HTTPError(
            400,
            f"text {row} has more than max_tokens = {limit} tokens; leave truncate = NONE out to "
            "truncate it",
            "too_long",
            param="max_tokens",
        )
    return cut


_SUMMARY = "The vectors of texts, in several types."
ROUTES = (
    Route("POST", "/v2/embed", partial(embed_texts, version="2"), COHERE, _SUMMARY, EmbedBody),
    Route("POST", "/v1/embed", partial(embed_texts, version="1"), COHERE, _SUMMARY, EmbedBody),
)
