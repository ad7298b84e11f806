"""Reranking and scoring as Cohere, Jina, Voyage, vLLM, Infinity and LiteLLM spell them.

`POST /rerank` with `texts` is text-embeddings-inference's. Source: cohere-python 7.3; voyageai 0.5;
vLLM, `entrypoints/pooling/scoring`; Infinity, `infinity_server.py`; NVIDIA's
https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/using-reranking.html.
"""

from __future__ import annotations

from time import time
from typing import Any, Literal

import msgspec
import numpy as np

from embedlib.serve.dialects.cutting import cut_texts
from embedlib.serve.dialects.dialect import COHERE, OPENAI, OPENAI_AND_VOYAGE, TEI, Route
from embedlib.serve.dialects.ranking import RANKING, check_one_score, embed_both, rank_scores
from embedlib.serve.dialects.tei import rerank_texts
from embedlib.serve.dialects.vllm import PoolingFields, take_pooling_fields
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.compute import score_by_tokens, score_pairs
from embedlib.serve.models.estimate import check_lengths
from embedlib.serve.requests.asgi import Response, new_id
from embedlib.serve.requests.exchange import Common, Exchange, check_number, ranked, usage_of
from embedlib.serve.wire import TextObject, check_count, texts_of
from embedlib.vectors.similarity import similarity_pairwise


class RerankBody(PoolingFields, kw_only=True):
    """The body of `POST /rerank` with `documents`, or with `texts`."""

    query: str | None = None
    documents: list[str | TextObject] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    top_k: int | msgspec.UnsetType | None = msgspec.UNSET
    """Voyage's `top_n`."""
    return_documents: bool | None = None
    raw_scores: bool | None = None
    instruction: str | None = None
    max_tokens_per_doc: int | None = None
    """Cohere's and vLLM's: longer documents are cut; 0: the model's limit alone."""
    rank_fields: list[str] | None = None
    """Cohere's, of documents that are objects: only text."""


class ScoreBody(PoolingFields, kw_only=True):
    """The body of vLLM's `POST /score`: one or several on each side."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None


class RankingBody(Common, kw_only=True):
    """The body of NVIDIA's `POST /v1/ranking`."""

    query: TextObject
    passages: list[TextObject]
    truncate: Literal["NONE", "END"] | None = None
    """"NONE" refuses pairs that are too long."""


async def rerank(exchange: Exchange) -> Response:
    """Answer `POST /rerank`, `/v1/rerank` and `/v2/rerank`."""
    try:
        body = await exchange.read(RerankBody)
    except HTTPError:
        if "texts" in await exchange.decode(dict[str, msgspec.Raw]):
            exchange.refuse = TEI.respond
        raise
    if body.texts is not None:
        exchange.refuse = TEI.respond
        return await rerank_texts(exchange)
    if body.query is None or body.documents is None:
        raise HTTPError.missing_field("query" if body.query is None else "documents")
    documents = texts_of(body.documents, "documents", exchange.shared.options)
    is_voyage = body.top_k is not msgspec.UNSET
    is_v1 = exchange.request.path.endswith("/v1/rerank")
    top_k = body.top_k if isinstance(body.top_k, int) else None
    check_number(body.top_n, "top_n", least=0)
    check_number(top_k, "top_k", least=0)
    if None not in (body.top_n, top_k) and body.top_n != top_k:
        raise HTTPError(400, "top_n and top_k both say how many are kept; give one", param="top_n")
    take_pooling_fields(exchange, body)
    if body.rank_fields not in (None, ["text"]):
        raise HTTPError.wrong_value(
            "rank_fields", body.rank_fields, "documents are read by their text, put all into it"
        )
    if body.instruction is not None:
        check_lengths([body.instruction], len(body.instruction), "instruction")
        _check_takes_instruction(exchange.find(body.model, *RANKING), body.instruction)
    scores = await rank_scores(
        exchange,
        body.model,
        body.query,
        await _cut(exchange, body, documents),
        raw_scores=bool(body.raw_scores) or body.use_activation is False,
        instruction=body.instruction,
    )
    assert exchange.model is not None, "rank_scores finds it"
    name = exchange.model.name

    def content() -> dict[str, Any]:
        results = [
            {
                "index": index,
                "relevance_score": float(scores[index]),
                # Absent and not null otherwise: LiteLLM refuses null.
                **({"document": {"text": documents[index]}} if body.return_documents else {}),
            }
            for index in ranked(scores, body.top_n or top_k)
        ]
        return {
            "id": f"rerank-{new_id()}",
            "object": "list" if is_voyage else "rerank",
            "model": name,
            **({} if is_voyage else {"results": results}),
            # Voyage's own client sends top_k; others that speak to it name only its path.
            **({"data": results} if is_voyage or is_v1 else {}),
            "usage": usage_of(exchange),
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": exchange.work.usage.num_tokens},
            },
        }

    return await exchange.answer(content, len(scores))


async def rank_passages(exchange: Exchange) -> Response:
    """Answer NVIDIA's `POST /v1/ranking`: the model's own scores."""
    body = await exchange.read(RankingBody)
    options = exchange.shared.options
    [query] = texts_of(body.query, "query", options)
    passages = texts_of(body.passages, "passages", options)
    exchange.work.on_truncate = "error" if body.truncate == "NONE" else "ignore"
    scores = await rank_scores(
        exchange, body.model, query, passages, raw_scores=True, field="passages"
    )

    def content() -> dict[str, Any]:
        rankings = [
            {"index": index, "logit": float(scores[index])} for index in ranked(scores, None)
        ]
        return {"rankings": rankings, "usage": usage_of(exchange)}

    return await exchange.answer(content, len(scores))


def _check_takes_instruction(model: ServedModel, instruction: str) -> None:
    """Check that a model has a place for an instruction, as some rerankers.

    Raises:
        HTTPError: it has none, or is not loaded.
    """
    head = model.open().spec.head
    if head is None or head.template is None or not head.template.takes_instruction:
        raise HTTPError.wrong_value(
            "instruction", instruction, f"model {model.name!r} has no place for one, leave it out"
        )


async def _cut(exchange: Exchange, body: RerankBody, documents: list[str]) -> list[str]:
    """Return the documents without what is behind their first `max_tokens_per_doc` tokens.

    Raises:
        HTTPError: the number is wrong, or there is no such model.
    """
    limit = body.max_tokens_per_doc
    if limit is not None and limit < 0:
        raise HTTPError.wrong_value(
            "max_tokens_per_doc", limit, "it must be 0 (the model's limit) or more"
        )
    if not limit:
        return documents
    tokenizer = exchange.find(body.model, *RANKING).open().tokenizer
    return await cut_texts(exchange, tokenizer, documents, limit, "documents")


async def score(exchange: Exchange) -> Response:
    """Answer vLLM's `POST /score`: 1 to N, or N to N."""
    body = await exchange.read(ScoreBody)
    take_pooling_fields(exchange, body)
    first_name, first = _only_of(body, "text_1", "queries", "data_1")
    second_name, second = _only_of(body, "text_2", "documents", "items", "data_2")
    check_count(second, second_name, exchange.shared.options.max_texts)
    if len(first) not in (1, len(second)):
        raise HTTPError(
            400,
            f"{first_name} has {len(first)} texts and {second_name} {len(second)}; give one, or as "
            "many",
            param=first_name,
        )
    model = exchange.find(body.model, *RANKING)
    names = first_name, second_name
    if model.task == "embed_multi_vector":
        documents = [second] if len(first) == 1 else [[text] for text in second]
        found = await score_by_tokens(model, first, documents, exchange.work, names)
        scores = np.concatenate(found)
    elif model.task == "embed":
        vectors = await embed_both(exchange, model, first, second, names)
        scores = await exchange.make(lambda: similarity_pairwise("cosine", *vectors), len(second))
    else:
        queries = first * len(second) if len(first) == 1 else first
        pairs = list(zip(queries, second, strict=True))
        check_one_score(model)
        exchange.work.field = second_name
        # By the model's own activation, as vLLM, which may have none; not from 0 to 1 then.
        is_raw = body.use_activation is False
        scores = (await score_pairs(model, pairs, exchange.work, raw_scores=is_raw))[:, 0]

    def content() -> dict[str, Any]:
        return {
            "id": f"score-{new_id()}",
            "object": "list",
            "created": int(time()),
            "model": model.name,
            "data": [
                {"index": index, "object": "score", "score": value}
                for index, value in enumerate(scores.tolist())
            ],
            "usage": usage_of(exchange),
        }

    return await exchange.answer(content, len(scores))


def _only_of(body: ScoreBody, *names: str) -> tuple[str, list[str]]:
    """Return the field of these that the body has, and its texts.

    Raises:
        HTTPError: it has none of them, or two.
    """
    found = [name for name in names if getattr(body, name) is not None]
    if not found:
        raise HTTPError.missing_field(names[0])
    if len(found) > 1:
        both = " and ".join(found[:2])
        raise HTTPError(400, f"{both} are the same side; send one of them", param=found[1])
    value: str | list[str] = getattr(body, found[0])
    return found[0], [value] if isinstance(value, str) else value


_RANKED = "Documents in the order in which they answer a query."
ROUTES = (
    Route("POST", "/rerank", rerank, OPENAI, _RANKED, RerankBody),
    Route("POST", "/v1/rerank", rerank, OPENAI_AND_VOYAGE, _RANKED, RerankBody),
    Route("POST", "/v2/rerank", rerank, COHERE, _RANKED, RerankBody),
    Route("POST", "/v1/ranking", rank_passages, OPENAI, _RANKED, RankingBody),
    Route("POST", "/score", score, OPENAI, "The scores of pairs of texts.", ScoreBody),
    Route("POST", "/v1/score", score, OPENAI, "The scores of pairs of texts.", ScoreBody),
)
