"""What a server takes of a session beside its public methods; no other module here looks inside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.batching.tokenizing.tokenizer_thread import Tokenize
from embedlib.classifier import Classifier
from embedlib.config import OnTruncate
from embedlib.embedder import Embedder
from embedlib.engines.base import Engine, Lane
from embedlib.errors import ConfigError
from embedlib.models.prompts import Prompt, Role
from embedlib.models.weights.token_heads import has_token_head
from embedlib.reranker import Reranker
from embedlib.session.call import Call, EmbeddingCall, PromptArguments, VectorArguments
from embedlib.session.scoring import Scores, activate, lane_of, lane_of_pairs
from embedlib.vectors.arrays import Vectors

AnyModel: TypeAlias = "Embedder | Reranker | Classifier"
MakeScores = Callable[[Vectors], Scores]
"""Makes scores float32[N, labels] of the engine's rows."""
Finish = Callable[[Vectors], NDArray[Any]]
"""Makes the vectors that `encode` returns of the engine's rows."""
TokenOutput = Literal["token_embeddings", "sparse", "multi_vector"]
"""Outputs of `encode` with something of each token."""
MAX_FORMS = 256
"""Combinations of options that are kept for a model."""


def pipeline_of(session: AnyModel) -> Pipeline:
    """Return the threads and queues of a session."""
    return session._pipeline


def engine_of(session: AnyModel) -> Engine:
    """Return the engine that computes; its pipeline closes it."""
    return session._model.engine


def has_sparse_head(embedder: Embedder) -> bool:
    """Return whether a model with vectors has weights of tokens as well, as bge-m3."""
    files = embedder._model.files
    return files is not None and has_token_head(files, "sparse")


def ranges_of(embedder: Embedder) -> NDArray[np.float32] | None:
    """Return the ranges of int8 and uint8 vectors, float32[2, D]; None: there are none."""
    return embedder._calls.ranges


def check_quantization(
    embedder: Embedder, kind: str, dimensions: int | None, *, normalizes: bool
) -> None:
    """Refuse to quantize vectors that are computed with these arguments, if ranges do not fit.

    Raises:
        ConfigError: the ranges are those of other vectors.
    """
    vectors = VectorArguments(normalizes, dimensions, kind)
    embedder._calls.check_quantization(vectors)


def computed(session: AnyModel) -> tuple[int, float]:
    """Return the tokens that were computed, and the seconds in which the engine did so."""
    stats = session.stats()
    parallel = engine_of(session).limits.num_parallel_batches
    return stats.num_tokens, stats.engine_ms / 1000 / parallel


def lane_of_texts(embedder: Embedder, num_texts: int, role: Role | None) -> Lane:
    """Return the lane of `encode` for so many texts."""
    return embedder._calls.lane_of(num_texts, role)


class Asked(msgspec.Struct):
    """What a request asks of a model: a `Call` without what a server has of its own."""

    texts: Sequence[Any]
    """Texts, pairs, or the token ids of each."""
    lane: Lane
    tokenize: Tokenize


class EmbeddingForms:
    """Makes the calls of one embedder; what the options of requests mean is found out once."""

    def __init__(self) -> None:
        """Start without any."""
        self._forms: dict[Hashable, EmbeddingCall] = {}

    def call(
        self,
        embedder: Embedder,
        texts: Sequence[str] | Sequence[Sequence[int]],
        role: Role | None = None,
        prompt_name: str | None = None,
        normalizes: bool = False,
        dimensions: int | None = None,
        on_truncate: OnTruncate = "ignore",
        side: Side = "right",
    ) -> tuple[Asked, Finish]:
        """Return the call of `encode` with these arguments, which treats long texts in its own way.

        Token ids in the place of texts are taken as they are.

        Raises:
            ConfigError: an argument is out of range, or asks for a prompt in front of token ids.
        """
        prompt = PromptArguments(prompt_name=prompt_name, role=role)
        tokenizer = embedder._tokenizer_of(prompt)
        key = (tokenizer, role, prompt_name, normalizes, dimensions, on_truncate, side)
        form = self._forms.get(key)
        if form is None:
            vectors = VectorArguments(normalizes, dimensions)
            form = embedder._calls.make([], tokenizer, prompt, vectors)
            tokenizer = form.tokenizer.with_truncation(on_truncate, side)
            form = replace(form, tokenize=partial(tokenizer, prompt=form.prompt))
            if len(self._forms) >= MAX_FORMS:  # clients choose the options
                self._forms.clear()
            self._forms[key] = form
        lane = lane_of_texts(embedder, len(texts), role)
        tokenize = form.tokenize
        if not isinstance(texts[0], str):
            if role is not None or prompt_name is not None:
                _check_no_prompt(form)
            tokenize = form.tokenizer.take_ids
        return Asked(texts, lane, tokenize), form.finish


def token_call(
    embedder: Embedder,
    texts: Sequence[str],
    output: TokenOutput,
    prompt: PromptArguments,
    on_truncate: OnTruncate,
    side: Side,
) -> tuple[Call, Callable[[Vectors], list[Any]], Pipeline]:
    """Return the call of `encode` for this output, what makes it of the rows, and where to run it.

    Blocks while the engine of token vectors is loaded, the first time.

    Raises:
        what `Embedder.encode` raises.
    """
    tokenizer = embedder._tokenizer_of(prompt)
    call = embedder._calls.make(texts, tokenizer, prompt, VectorArguments(output_value=output))
    own = tokenizer.with_truncation(on_truncate, side)
    call = replace(call, tokenize=partial(own, prompt=call.prompt))
    return embedder._outputs(call, output)


def ignore_truncated(truncated: Sequence[tuple[int, int]], num_truncated: int) -> None:
    """Warn of no truncated text: the answer of a server counts them."""


def _check_no_prompt(form: EmbeddingCall) -> None:
    around = form.prompt.examples + form.prompt.prefix + form.prompt.suffix
    if around:
        place = "around" if form.prompt.suffix else "in front of"
        raise ConfigError(
            f"token ids are embedded as they are, without the prompt {around!r:.60}; put its ids "
            f"{place} them and leave input_type and prompt_name out, or send texts"
        )


def pair_call(
    reranker: Reranker,
    pairs: Sequence[tuple[str, str]],
    on_truncate: OnTruncate,
    side: Side,
    *,
    raw_scores: bool,
    instruction: str | None,
) -> tuple[Asked, MakeScores]:
    """Return the call of `predict` with these arguments, with the lane of `rank`.

    Raises:
        ConfigError: there is no place for an instruction.
    """
    partial_tokenize = reranker._tokenize(None, None, instruction)
    assert isinstance(partial_tokenize, partial), "it binds the prompt; this is a bug in embedlib"
    tokenizer = reranker._tokenizer.with_truncation(on_truncate, side)
    lane = lane_of_pairs(len(pairs), reranker.config.max_queued_texts)
    asked = Asked(list(pairs), lane, partial(tokenizer, **partial_tokenize.keywords))
    return asked, partial(activate, activation=reranker._activation(None, raw_scores))


def text_call(
    classifier: Classifier,
    texts: Sequence[str],
    on_truncate: OnTruncate,
    side: Side,
    *,
    raw_scores: bool,
) -> tuple[Asked, MakeScores]:
    """Return the call of `predict` with these arguments."""
    tokenizer = classifier._tokenizer.with_truncation(on_truncate, side)
    asked = Asked(list(texts), lane_of(len(texts) == 1), partial(tokenizer, prompt=Prompt()))
    return asked, partial(activate, activation=classifier._activation(raw_scores))
