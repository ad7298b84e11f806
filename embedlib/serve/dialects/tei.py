"""The routes of text-embeddings-inference, which Baseten's and Hugging Face's clients share.

Source: text-embeddings-inference 1.9, router/src/http/{types,server}.rs.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from embedlib.classifier import Classifier
from embedlib.embedder import Embedder
from embedlib.serve.dialects.dialect import TEI, Route
from embedlib.serve.dialects.ranking import rank_scores
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ALL_TASKS, Task
from embedlib.serve.models.compute import embed, embed_tokens, score_pairs, score_texts
from embedlib.serve.models.sessions import engine_of
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Common, Exchange, check_number, ranked
from embedlib.serve.vectors import encoded
from embedlib.serve.wire import Input, check_count, inputs_of, texts_of
from embedlib.session.label_scores import label_scores
from embedlib.session.scoring import activate
from embedlib.vectors.similarity import similarity
from embedlib.version import __version__


class Truncating(Common, kw_only=True):
    """Fields of every route that computes."""

    truncate: bool | None = None
    """False refuses texts that are too long."""
    truncation_direction: str | None = None
    prompt_name: str | None = None


class EmbedBody(Truncating, kw_only=True):
    """The body of `POST /embed`."""

    inputs: Input
    normalize: bool | None = None
    dimensions: int | None = None


class EmbedAllBody(Truncating, kw_only=True):
    """The body of `POST /embed_all` and `/embed_sparse`."""

    inputs: Input


class PredictBody(Truncating, kw_only=True):
    """The body of `POST /predict`: a text, a pair, or a list of lists of one or two texts."""

    inputs: str | list[str | list[str]]
    raw_scores: bool | None = None


class RerankBody(Truncating, kw_only=True):
    """The body of `POST /rerank` with `texts`."""

    query: str
    texts: list[str]
    raw_scores: bool | None = None
    return_text: bool | None = None
    top_n: int | None = None
    """LiteLLM's."""


class Sentences(msgspec.Struct):
    """What `POST /similarity` compares."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(msgspec.Struct):
    """Options of `POST /similarity`."""

    truncate: bool | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None


class SimilarityBody(Common, kw_only=True):
    """The body of `POST /similarity`."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None


def _take_truncation(exchange: Exchange, given: Truncating | SimilarityParameters) -> None:
    match (given.truncation_direction or "right").lower():
        case "left" | "right" as side:
            exchange.work.side = side
        case _:
            raise HTTPError.wrong_value(
                "truncation_direction", given.truncation_direction, "it must be Left or Right"
            )
    exchange.work.on_truncate = "error" if given.truncate is False else "ignore"


async def embed_texts(exchange: Exchange) -> Response:
    """Answer `POST /embed`."""
    body = await exchange.read(EmbedBody)
    _take_truncation(exchange, body)
    rows = await embed(
        exchange.find(body.model, "embed"),
        inputs_of(body.inputs, "inputs", exchange.shared.options),
        exchange.work,
        prompt_name=body.prompt_name,
        normalizes=body.normalize is not False,
        dimensions=body.dimensions,
    )
    return _timed(exchange, await exchange.answer(lambda: encoded(rows), len(rows)))


async def embed_all(exchange: Exchange) -> Response:
    """Answer `POST /embed_all`: the vector of every token, special ones included."""
    texts = await _embed_tokens(exchange, "token_embeddings", "embed")
    num_rows = sum(map(len, texts))
    return _timed(exchange, await exchange.answer(lambda: list(map(encoded, texts)), num_rows))


async def embed_sparse(exchange: Exchange) -> Response:
    """Answer `POST /embed_sparse`: lexical weights."""
    weights = await _embed_tokens(exchange, "sparse", "embed_sparse")

    def content() -> list[list[dict[str, Any]]]:
        return [
            [{"index": index, "value": float(value)} for index, value in row.items() if value]
            for row in weights
        ]

    return _timed(exchange, await exchange.answer(content, sum(map(len, weights))))


async def _embed_tokens(
    exchange: Exchange, output: Literal["token_embeddings", "sparse"], task: Task
) -> list[Any]:
    body = await exchange.read(EmbedAllBody)
    _take_truncation(exchange, body)
    if body.truncate is False or exchange.work.side == "left":
        raise HTTPError(
            422,
            "truncate, truncation_direction: long texts are truncated on the right here, leave "
            "both out",
            param="truncate",
        )
    return await embed_tokens(
        exchange.find(body.model, task),
        texts_of(body.inputs, "inputs", exchange.shared.options),
        exchange.work,
        output,
        prompt_name=body.prompt_name,
    )


async def predict(exchange: Exchange) -> Response:
    """Answer `POST /predict`."""
    body = await exchange.read(PredictBody)
    _take_truncation(exchange, body)
    groups = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    # An empty list is no single text: it is refused below as empty.
    is_single = bool(groups) and all(isinstance(item, str) for item in groups)
    inputs: list[list[str]] = (
        [[str(text) for text in groups]]
        if is_single
        else [[item] if isinstance(item, str) else item for item in groups]
    )
    check_count(inputs, "inputs", exchange.shared.options.max_texts)
    sizes = {len(texts) for texts in inputs}
    if sizes not in ({1}, {2}):
        raise HTTPError(
            422, "inputs: give texts alone, [[text], ...], or pairs, [[a, b], ...]", param="inputs"
        )
    if sizes == {1}:
        model = exchange.find(body.model, "classify")
        scores = await score_texts(
            model,
            [texts[0] for texts in inputs],
            exchange.work,
            raw_scores=bool(body.raw_scores),
        )
    else:
        model = exchange.find(body.model, "rerank")
        scores = await score_pairs(
            model,
            [(texts[0], texts[1]) for texts in inputs],
            exchange.work,
            raw_scores=True,
        )
        if not body.raw_scores:
            # Whatever the model's own activation is. Source: `predict`, core/src/infer.rs.
            scores = activate(scores, "sigmoid" if scores.shape[1] == 1 else "softmax")
    session = model.open()
    assert not isinstance(session, Embedder), "the catalog finds models by their task"
    labels = session.labels

    def content() -> list[Any]:
        named = label_scores(scores, labels)
        return named[0] if is_single else named

    return _timed(exchange, await exchange.answer(content, len(scores)))


async def rerank_texts(exchange: Exchange) -> Response:
    """Answer `POST /rerank` with `texts`: a bare list, the best first."""
    body = await exchange.read(RerankBody)
    _take_truncation(exchange, body)
    check_count(body.texts, "texts", exchange.shared.options.max_texts)
    check_number(body.top_n, "top_n", least=0)
    scores = await rank_scores(
        exchange,
        body.model,
        body.query,
        body.texts,
        raw_scores=bool(body.raw_scores),
        field="texts",
    )

    def content() -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "score": float(scores[index]),
                **({"text": body.texts[index]} if body.return_text else {}),
            }
            for index in ranked(scores, body.top_n)
        ]

    return _timed(exchange, await exchange.answer(content, len(scores)))


async def compare(exchange: Exchange) -> Response:
    """Answer `POST /similarity`."""
    body = await exchange.read(SimilarityBody)
    given = body.parameters or SimilarityParameters()
    _take_truncation(exchange, given)
    check_count(body.inputs.sentences, "sentences", exchange.shared.options.max_texts)
    rows = await embed(
        exchange.find(body.model, "embed"),
        [body.inputs.source_sentence, *body.inputs.sentences],
        exchange.work,
        prompt_name=given.prompt_name,
    )

    def content() -> list[float]:
        scores: list[float] = similarity("cosine", rows[:1], rows[1:])[0].tolist()
        return scores

    return _timed(exchange, await exchange.answer(content, len(rows)))


async def info(exchange: Exchange) -> Response:
    """Answer `GET /info` for the first model of the first task that has one."""
    options = exchange.shared.options
    model = exchange.find(None, *ALL_TASKS)
    session = model.open()
    if isinstance(session, Embedder):
        # What clients of text-embeddings-inference choose /embed_sparse by.
        own = {"embed_sparse": "splade", "embed_multi_vector": "multi_vector"}.get(model.task or "")
        kind: dict[str, Any] = {"embedding": {"pooling": own or session.spec.pooling.modes[0]}}
    else:
        labels = {str(index): label for index, label in enumerate(session.labels)}
        ids = {label: index for index, label in enumerate(session.labels)}
        name = "classifier" if isinstance(session, Classifier) else "reranker"
        kind = {name: {"id2label": labels, "label2id": ids}}
    return await exchange.answer(
        {
            "model_id": model.source or model.name,
            "model_sha": None,
            "model_dtype": session.precision,
            "served_model_name": model.name,
            "model_type": kind,
            "max_concurrent_requests": options.max_bulk_texts,
            "max_input_length": session.max_seq_length,
            "max_batch_tokens": engine_of(session).limits.max_batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": options.max_texts,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }
    )


def _timed(exchange: Exchange, response: Response) -> Response:
    """Add the headers with the times of a request, in whole milliseconds."""
    usage = exchange.work.usage
    times = {
        "x-compute-type": "cpu",
        "x-compute-time": usage.total_seconds,
        "x-compute-tokens": usage.num_tokens,
        "x-total-time": usage.total_seconds,
        "x-tokenization-time": usage.tokenize_seconds,
        "x-queue-time": usage.queue_seconds,
        "x-inference-time": usage.compute_seconds,
    }
    response.headers += [
        (name, str(round(value * 1000)) if isinstance(value, float) else str(value))
        for name, value in times.items()
    ]
    return response


ROUTES = (
    Route("POST", "/embed", embed_texts, TEI, "The vectors of texts, as lists.", EmbedBody),
    Route("POST", "/embed_all", embed_all, TEI, "The vectors of all tokens.", EmbedAllBody),
    Route("POST", "/embed_sparse", embed_sparse, TEI, "The weights of tokens.", EmbedAllBody),
    Route("POST", "/predict", predict, TEI, "The labels of texts or pairs.", PredictBody),
    Route("POST", "/similarity", compare, TEI, "The cosine of a text to others.", SimilarityBody),
    Route("GET", "/info", info, TEI, "The first model."),
)
