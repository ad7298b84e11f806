"""vLLM's `POST /pooling`: the vectors of texts or of their tokens, or the scores of classes.

Source: vLLM 0.26, `entrypoints/pooling/pooling/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any, Final, Literal

import msgspec

from embedlib.models.prompts import Role
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.dialects.embedding_fields import role_of
from embedlib.serve.dialects.vllm import (
    PoolingFields,
    check_length_is_own,
    take_pooling_fields,
)
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel, Tasks
from embedlib.serve.models.compute import embed, embed_tokens, score_texts
from embedlib.serve.requests.asgi import Response, new_id
from embedlib.serve.requests.exchange import Exchange, usage_of
from embedlib.serve.vectors import as_base64, as_decimals
from embedlib.serve.wire import Texts, texts_of
from embedlib.vectors.arrays import Vectors

_TASKS: Final[Mapping[str | None, Tasks]] = {
    None: ("embed", "embed_multi_vector", "classify"),
    "embed": ("embed",),
    "token_embed": ("embed_multi_vector", "embed"),
    "classify": ("classify",),
}
"""The models of each task, the best first."""


class PoolingBody(PoolingFields, kw_only=True):
    """The body of `POST /pooling`."""

    input: Texts
    task: Literal["embed", "token_embed", "classify"] | None = None
    """By default what the model is for."""
    input_type: str | None = None
    """"query" or "document", which a late-interaction model computes differently."""
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32"] | None = None
    """Of base64, as the next one."""
    endianness: Literal["little"] | None = None
    dimensions: int | None = None
    """Only none, as there."""


async def pool(exchange: Exchange) -> Response:
    """Answer `POST /pooling`."""
    body = await exchange.read(PoolingBody)
    texts = texts_of(body.input, "input", exchange.shared.options)
    take_pooling_fields(exchange, body)
    if body.dimensions is not None:
        raise HTTPError.wrong_value(
            "dimensions", body.dimensions, "POST /v1/embeddings cuts vectors, leave it out here"
        )
    model = exchange.find(body.model, *_TASKS[body.task])
    if model.task == "classify":
        is_raw = body.use_activation is False
        rows: Sequence[Vectors] = list(
            await score_texts(model, texts, exchange.work, raw_scores=is_raw)
        )
    else:
        check_length_is_own(body)
        rows = await _embed(exchange, model, texts, body.task, role_of(body.input_type))
    encode_row = as_base64 if body.encoding_format == "base64" else as_decimals

    def content() -> dict[str, Any]:
        return {
            "id": f"pool-{new_id()}",
            "object": "list",
            "created": int(time()),
            "model": model.name,
            "data": [
                {"index": index, "object": "pooling", "data": msgspec.Raw(encode_row(row))}
                for index, row in enumerate(rows)
            ],
            "usage": usage_of(exchange),
        }

    return await exchange.answer(content, sum(len(row) if row.ndim == 2 else 1 for row in rows))


async def _embed(
    exchange: Exchange, model: ServedModel, texts: list[str], task: str | None, role: Role | None
) -> Sequence[Vectors]:
    """Return float32[D] of each text, or float32[T, D] of its T tokens."""
    work = exchange.work
    if model.task == "embed_multi_vector":
        if role is None:
            raise HTTPError(
                400,
                "input_type is missing: a late-interaction model computes queries and documents "
                "differently, send query or document",
                param="input_type",
            )
        return await embed_tokens(model, texts, work, "multi_vector", role=role)
    if task != "token_embed":
        return list(await embed(model, texts, work, role=role))
    if work.on_truncate == "error" or work.side == "left":
        raise HTTPError(
            400,
            "truncation, truncation_side: long texts are truncated on the right with token_embed, "
            "leave both out",
            param="truncation",
        )
    return await embed_tokens(model, texts, work, "token_embeddings", role=role)


ROUTES = (Route("POST", "/pooling", pool, OPENAI, "The vectors or classes of texts.", PoolingBody),)
