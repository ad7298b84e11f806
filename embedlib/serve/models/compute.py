"""Runs the texts of a request on a model, without blocking the event loop.

It is `Session._arun` for a server: the lane is the request's, and a lone query is computed on a
thread of the model's own, as `encode` computes it on the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.batching.usage import Usage
from embedlib.classifier import Classifier
from embedlib.config import OnTruncate
from embedlib.embedder import Embedder
from embedlib.engines.base import Lane
from embedlib.models.prompts import Role
from embedlib.reranker import Reranker
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.estimate import check_lengths, count_chars
from embedlib.serve.models.sessions import (
    AnyModel,
    Asked,
    TokenOutput,
    ignore_truncated,
    lane_of_texts,
    pair_call,
    pipeline_of,
    text_call,
    token_call,
)
from embedlib.session.call import PromptArguments
from embedlib.session.running import aconvert, arun, rows_from
from embedlib.vectors.maxsim import maxsim

MAX_CHARS_IN_LOOP = 2000
"""Characters of queries that the event loop tokenizes itself: some 200 microseconds."""
MAX_TEXTS_IN_LOOP = 32
"""Queries that it tokenizes itself: empty ones have no characters to count."""
MAX_TOKEN_NUMBERS = 1 << 26
"""Numbers of the tokens' vectors in one answer: 256 MiB, and more than twice that as JSON."""
MAX_QUERY_CHARACTERS = 1 << 27
"""Of the first texts of all pairs, with an instruction: a body has a query once, and pairs have it
as often as it has documents, for which it is tokenized again."""
SLICE_TOKENS = 1 << 16
"""Tokens that are computed before they are counted, at most, or those of one text."""


class Work(msgspec.Struct):
    """How the texts of one request are computed, and what that took."""

    lane: Lane | None = None
    """None: the lane of `encode` and `rank`. Known when the call starts."""
    on_truncate: OnTruncate = "ignore"
    """"error" refuses texts that are too long."""
    side: Side = "right"
    """Where the others lose tokens."""
    is_always_bulk: bool = False
    """Whether no lane that the request names may put it ahead: it belongs to a job."""
    field: str = "input"
    """The field of the body that has the texts, for errors of the library about them."""
    usage: Usage = msgspec.field(default_factory=Usage)
    dimensions: int | None = None
    """Of the vectors that were made; None: there are none."""


async def embed(
    model: ServedModel,
    texts: Sequence[str] | Sequence[Sequence[int]],
    work: Work,
    *,
    role: Role | None = None,
    prompt_name: str | None = None,
    normalizes: bool = False,
    dimensions: int | None = None,
    dimensions_field: str = "dimensions",
) -> NDArray[Any]:
    """Return the vectors of texts: float32[N, D].

    Args:
        model: the model.
        texts: N texts, or the token ids of each.
        work: takes the counts and times, and the lane.
        role: chooses the prompt.
        prompt_name: chooses the prompt by name.
        normalizes: scale to unit length even if the model does not.
        dimensions: keep only so many.
        dimensions_field: the field of the body that says so.

    Raises:
        HTTPError: the model has no place for it, or fewer dimensions.
        what `Embedder.encode` raises.
    """
    session = model.open_as(Embedder)
    if dimensions is not None:
        num_dims = session.get_embedding_dimension()
        if not 1 <= dimensions <= num_dims:
            raise HTTPError.wrong_value(
                dimensions_field,
                dimensions,
                f"{model.name} has {num_dims}, ask for 1 to {num_dims}",
            )
    asked, finish = model.forms.call(
        session, texts, role, prompt_name, normalizes, dimensions, work.on_truncate, work.side
    )
    rows = await aconvert(finish, await run(model, session, asked, work))
    work.dimensions = rows.shape[1]
    return rows


async def embed_tokens(
    model: ServedModel,
    texts: Sequence[str],
    work: Work,
    output: TokenOutput,
    *,
    role: Role | None = None,
    prompt_name: str | None = None,
) -> list[Any]:
    """Return what each text has of its tokens: vectors float32[L, H], or {token id: weight}.

    A second engine computes it, but of models that have no other output. Of a late-interaction
    model H is its own dimension, and tokens that it skips have no vector. Cancelling the task drops
    what is not being computed yet.

    Raises:
        HTTPError: the model has no place for it, or they are more numbers than one answer has.
        what `Embedder.encode` raises.
    """
    session = model.open_as(Embedder)
    own = lane_of_texts(session, len(texts), role)
    work.lane = lane = Lane.BULK if work.is_always_bulk else work.lane or own
    num_chars = count_chars(texts)
    check_lengths(texts, num_chars, work.field)
    load = model.estimate.load_of(texts, num_chars)
    await model.admission.take(lane, load)
    loop = asyncio.get_running_loop()
    prompt = PromptArguments(prompt_name=prompt_name, role=role)
    outputs: list[Any] = []
    num_left = MAX_TOKEN_NUMBERS
    num_tokens = work.usage.num_tokens
    try:
        for part in _slices(texts, session):
            # The first one loads the second engine: asyncio's own threads are for all models.
            prepare = partial(
                token_call, session, part, output, prompt, work.on_truncate, work.side
            )
            call, finish, pipeline = await loop.run_in_executor(model.token_calls, prepare)
            call = replace(call, usage=work.usage, lane=lane)
            with rows_from(len(outputs)):
                found = await aconvert(finish, await arun(pipeline, call, ignore_truncated))
            outputs += found
            num_left -= sum(row.size if isinstance(row, np.ndarray) else len(row) for row in found)
            if num_left < 0:
                raise HTTPError(
                    413,
                    f"the tokens of these texts have more than {MAX_TOKEN_NUMBERS} numbers; send "
                    "fewer texts at once",
                    "too_large",
                )
    finally:
        model.admission.give_back(lane, load)
    model.estimate.learn(texts, num_chars, work.usage.num_tokens - num_tokens)
    model.note_answer()
    return outputs


async def score_by_tokens(
    model: ServedModel,
    queries: Sequence[str],
    documents: Sequence[Sequence[str]],
    work: Work,
    fields: tuple[str, str],
) -> list[NDArray[np.float32]]:
    """Return how well its M documents answer each query, float32[M], by a late-interaction model.

    Args:
        model: the model.
        queries: N queries.
        documents: of each query.
        work: takes the counts and times, and the lane.
        fields: of the body, which have the queries and the documents.

    Raises:
        HTTPError: the model has no place for it, or they have too many tokens for one request.
        what `Embedder.encode` raises.
    """
    lane = work.lane
    work.field = fields[0]
    asked = await embed_tokens(model, queries, work, "multi_vector", role="query")
    work.field = fields[1]
    work.lane = lane  # as asked for, not that of the queries
    texts = list(chain.from_iterable(documents))
    vectors = iter(await embed_tokens(model, texts, work, "multi_vector", role="document"))
    is_mean = model.open_as(Embedder).similarity_fn_name == "meanmaxsim"

    def scores() -> list[NDArray[np.float32]]:
        answers = [list(islice(vectors, len(each))) for each in documents]
        return [
            maxsim(query, found, is_mean=is_mean)[0] if found else np.empty(0, np.float32)
            for query, found in zip(asked, answers, strict=True)
        ]

    return await asyncio.to_thread(scores)


async def score_pairs(
    model: ServedModel,
    pairs: Sequence[tuple[str, str]],
    work: Work,
    *,
    raw_scores: bool = False,
    instruction: str | None = None,
) -> NDArray[np.float32]:
    """Return the scores of pairs: float32[N, labels].

    Raises:
        HTTPError: the model has no place for it, or the queries are too long for so many pairs.
        what `Reranker.predict` raises.
    """
    session = model.open_as(Reranker)
    num_chars = sum([len(first) for first, _ in pairs]) + len(instruction or "") * len(pairs)
    if num_chars > MAX_QUERY_CHARACTERS:
        raise HTTPError(
            413,
            f"the queries of {len(pairs):,} documents have {num_chars:,} characters, each counted "
            f"for every document; the limit is {MAX_QUERY_CHARACTERS:,}, send fewer at a time",
            "too_large",
        )
    asked, make_scores = pair_call(
        session,
        pairs,
        work.on_truncate,
        work.side,
        raw_scores=raw_scores,
        instruction=instruction,
    )
    return make_scores(await run(model, session, asked, work))


async def score_texts(
    model: ServedModel, texts: Sequence[str], work: Work, *, raw_scores: bool = False
) -> NDArray[np.float32]:
    """Return the scores of texts: float32[N, labels].

    Raises:
        HTTPError: the model has no place for it.
        what `Classifier.predict` raises.
    """
    session = model.open_as(Classifier)
    asked, make_scores = text_call(
        session, texts, work.on_truncate, work.side, raw_scores=raw_scores
    )
    return make_scores(await run(model, session, asked, work))


async def run(
    model: ServedModel, session: AnyModel, asked: Asked, work: Work
) -> NDArray[np.float32]:
    """Run what is asked when the model has a place for it; return the engine's rows.

    Cancelling the task drops what is not being computed yet.

    Raises:
        HTTPError: the model has no place for it, or a text is too long for its tokenizer.
        what `encode` raises.
    """
    work.lane = lane = Lane.BULK if work.is_always_bulk else work.lane or asked.lane
    num_chars = count_chars(asked.texts)
    check_lengths(asked.texts, num_chars, work.field)
    load = model.estimate.load_of(asked.texts, num_chars)
    if lane is Lane.BULK:
        model.tokens_per_second()  # a measure ends here: queries that came before are not in bulk's
    await model.admission.take(lane, load)
    try:
        pipeline = pipeline_of(session)
        job = pipeline.open_job(load.texts, lane)
        try:
            if lane is Lane.QUERY and not _needs_thread(model, asked, num_chars):
                model.gathering.add(pipeline, asked.tokenize(job, 0, asked.texts))
            elif lane is Lane.QUERY:
                model.feeders.submit(pipeline.feed_or_fail, job, asked.texts, asked.tokenize)
            else:
                await pipeline.afeed_bulk(job, asked.texts, asked.tokenize)
            await model.gathering.when_over(job.future)
            rows = job.future.result()
        except BaseException:
            job.future.cancel()  # the client has left: drops what is still queued
            raise
    finally:
        model.admission.give_back(lane, load)
    num_tokens = work.usage.num_tokens
    job.add_to(work.usage)
    model.estimate.learn(asked.texts, num_chars, work.usage.num_tokens - num_tokens)
    if lane is Lane.BULK:
        model.tokens_per_second()  # its measure ends here, and is not of queries that come after
    model.note_answer()
    return rows


def _slices(texts: Sequence[str], session: Embedder) -> Iterator[list[str]]:
    """Yield texts in their order, at a time no more than have `SLICE_TOKENS`.

    A text has a token for each byte at most, and the special ones; with a prompt, any number.
    """
    most = session.max_seq_length
    around = most if session.prompts else most - session.count_room("document")
    part: list[str] = []
    num_tokens = 0
    for text in texts:
        here = min(len(text.encode("utf-8", "replace")) + around, most)
        if part and num_tokens + here > SLICE_TOKENS:
            yield part
            part, num_tokens = [], 0
        part.append(text)
        num_tokens += here
    yield part


def _needs_thread(model: ServedModel, asked: Asked, num_chars: int) -> bool:
    """Whether a thread should feed these queries: it computes a lone one, or tokenizes for long."""
    if len(asked.texts) == 1 and model.computes_on_callers:
        return True
    return num_chars > MAX_CHARS_IN_LOOP or len(asked.texts) > MAX_TEXTS_IN_LOOP
