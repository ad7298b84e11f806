"""Routes that find out from the body what is asked for: `POST /`, `/invocations` and `/vertex`.

Source: text-embeddings-inference 1.9, router/src/http/server.rs; vLLM,
`entrypoints/sagemaker`, whose `/invocations` takes the bodies of its other routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from embedlib.batching.usage import Usage
from embedlib.serve.dialects import tei
from embedlib.serve.dialects.classify import classify
from embedlib.serve.dialects.dialect import TEI, Handle, Route, check_json
from embedlib.serve.dialects.openai import embeddings
from embedlib.serve.dialects.rerank import rerank, score
from embedlib.serve.models.compute import Work
from embedlib.serve.requests.asgi import JSON, Response
from embedlib.serve.requests.exchange import Exchange
from embedlib.serve.wire import check_count, decode


class VertexBody(msgspec.Struct, kw_only=True):
    """The body of `POST /vertex`: bodies of other routes."""

    foreign: ClassVar[Mapping[str, str]] = dict.fromkeys(("model", "lane"), "it in each instance")
    instances: list[msgspec.Raw]
    model: None = None
    """Only null, as the next one: each instance has its own."""
    lane: None = None


async def by_task(exchange: Exchange) -> Response:
    """Answer `POST /` as the route of the only model, or of the fields that the body has."""
    # Parses no text: the route reads the body again.
    fields = await exchange.decode(dict[str, msgspec.Raw])
    return await _handle_for(exchange, fields)(exchange)


def _handle_for(exchange: Exchange, fields: dict[str, msgspec.Raw]) -> Handle:
    if "texts" in fields:
        return tei.rerank_texts
    if "documents" in fields and "query" in fields:
        return rerank
    if "documents" in fields or fields.keys() & {"text_1", "data_1", "items"}:
        return score
    if bytes(fields.get("inputs", b""))[:1] == b"{":
        return tei.compare
    name = decode(bytes(fields.get("model", b"null")), Any)
    named = name if isinstance(name, str) else None
    model = exchange.choose(named, "embed", "embed_sparse", "classify", "rerank")
    if fields.keys() & {"input", "messages"}:
        return classify if model.task == "classify" else embeddings
    match model.task:
        case "embed" | None:
            return tei.embed_texts
        case "embed_sparse":
            return tei.embed_sparse
    return tei.predict


async def vertex(exchange: Exchange) -> Response:
    """Answer `POST /vertex`: each instance as `POST /` answers it."""
    body = await exchange.decode(VertexBody)
    check_count(body.instances, "instances", exchange.shared.options.max_texts)
    answers = []
    usage = Usage()
    # What a client accepts is the whole, of which an answer in another type is no part.
    headers = {**exchange.request.headers, "accept": JSON}
    exchange.request = msgspec.structs.replace(exchange.request, headers=headers)
    for instance in body.instances:
        check_count(range(usage.num_texts + 1), "instances", exchange.shared.options.max_texts)
        exchange.body = bytes(instance)
        exchange.work = Work(is_always_bulk=exchange.work.is_always_bulk)
        response = check_json(await exchange.run(by_task), "a prediction")
        answers.append(msgspec.Raw(response.body))
        usage.add(exchange.work.usage)
    exchange.work.usage = usage  # of the request, for its log and metrics
    return await exchange.answer({"predictions": answers}, len(answers))


ROUTES = (
    Route("POST", "/vertex", vertex, TEI, "Several bodies of other routes.", VertexBody),
    Route("POST", "/", by_task, TEI, "What the model computes.", tei.EmbedBody),
    Route("POST", "/invocations", by_task, TEI, "What the model computes.", tei.EmbedBody),
)
