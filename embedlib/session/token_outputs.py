"""Outputs made of per-token vectors: the vectors themselves, lexical weights, chunks.

`TokenPipeline` computes per-token vectors with a second engine; `token_call` makes of them the
outputs of one call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.callers import Callers, counted
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.errors import (
    CloseTimeoutError,
    ConfigError,
    EngineRunError,
    InputError,
    shown,
)
from embedlib.models.weights.token_heads import TokenHead, ignored_token_ids, load_token_head
from embedlib.session.call import Call, EmbeddingCall
from embedlib.session.model import RunningModel
from embedlib.threads.closing import CLOSE_SECONDS, Deadline, closed_error
from embedlib.vectors.modules import apply_modules
from embedlib.vectors.similarity import normalize
from embedlib.vectors.sparse import SparseVector, strongest
from embedlib.vectors.tokens import Span, lexical_weights, pool_spans

TokenVectors = NDArray[np.float32]
"""float32[L, H]: the per-token vectors of a text with L tokens."""
FinishText = Callable[[TokenVectors, list[int]], Any]
"""Takes the per-token vectors and the token ids of a text, and returns its output."""
CallAndFinish = tuple[Call, Callable[[Any], Any]]
"""The call to run, and what makes its outputs of the engine's rows: a list, or for a single str
its only output."""
Chunks = Sequence[Span] | Sequence[Sequence[Span]]
"""Spans of one text, or of each of several texts."""


class TokenPipeline:
    """The pipeline of a second engine, which returns per-token vectors; the first use makes it.

    Any number of threads may call any method.
    """

    def __init__(
        self,
        lower: Callable[[], Engine],
        start: Callable[[Engine], Pipeline],
        callers: Callers,
    ) -> None:
        """Make no engine yet.

        Args:
            lower: makes the engine.
            start: starts its pipeline.
            callers: of the model.
        """
        self.callers = callers
        self._lower = lower
        self._start = start
        self._pipeline: Pipeline | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @counted
    def get(self) -> Pipeline:
        """Return the pipeline; the first call makes its engine.

        Raises:
            EngineError: the engine cannot be made.
            ClosedError: closed.
        """
        with self._lock:
            if self._pipeline is None and not self._is_closed:
                engine = self._lower()
                if self._is_closed:  # `close` has timed out while this thread loaded the engine
                    engine.close()
                else:
                    try:
                        self._pipeline = self._start(engine)
                    except BaseException:
                        engine.close()
                        raise
            if self._is_closed or self._pipeline is None:
                raise closed_error()
            return self._pipeline

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Free the engine, if there is one.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds.
        """
        if os.getpid() != self._pid:
            return  # a forked child has no engine, and a copy of the lock that may be held
        self._is_closed = True
        deadline = Deadline(timeout)
        if not self._lock.acquire(timeout=-1 if timeout is None else deadline.seconds_left() or 0):
            raise CloseTimeoutError(
                f"the model was not closed within {round(timeout or 0, 2):g} s: another thread "
                "still loads the engine for per-token vectors, and frees it afterwards"
            )
        self._lock.release()
        if self._pipeline is not None:
            self._pipeline.close(deadline.seconds_left())


def token_call(call: EmbeddingCall, finish_text: FinishText | list[FinishText]) -> CallAndFinish:
    """Return a call for per-token vectors, and what makes the outputs of its texts.

    Args:
        call: the texts.
        finish_text: makes the output of a text; or one for each text.
    """
    each = finish_text if isinstance(finish_text, list) else [finish_text] * len(call.texts)
    token_ids: dict[int, list[int]] = {}

    def tokenize(job: Job, first_row: int, texts: Sequence[str]) -> list[TokenizedText]:
        sequences = list(call.tokenize(job, first_row, texts))
        token_ids.update((sequence.row, sequence.token_ids) for sequence in sequences)
        return sequences

    def finish(rows: Iterable[TokenVectors]) -> Any:
        texts = enumerate(zip(each, rows, strict=True))
        finished = [finish_one(row, token_ids[number]) for number, (finish_one, row) in texts]
        return finished[0] if call.is_single else finished

    # Windows have no per-token vectors: on_truncate="chunk" does not help with long texts.
    return replace(call, tokenize=tokenize, can_divide=False), finish


def make_token_call(
    model: RunningModel,
    config: Config,
    call: EmbeddingCall,
    output_value: str,
    chunks: Chunks | None,
) -> CallAndFinish:
    """Check that the model has an output and return the call that computes it; see `token_call`.

    Args:
        model: the model.
        config: its options.
        call: the texts, and the form of vectors.
        output_value: one of `checked.OUTPUT_VALUES`; the caller has checked it.
        chunks: spans of the call's only text, or a list of them for each text; each span gets a
            vector.

    Raises:
        ConfigError: the model has no such output, or an option contradicts it.
        InputError: `chunks` are not spans, or not of all texts.
        ModelWeightsError: the weights cannot be read.
    """
    what = "chunks" if chunks is not None else f"output_value = {output_value!r}"
    if model.files is None:
        raise ConfigError(
            f"{what} needs per-token vectors, which `from_engine` does not support; load the model "
            "by name or folder"
        )
    if config.on_truncate == "chunk":
        raise ConfigError(
            f"{what} needs all tokens in one sequence; pass on_truncate='warn' to the Embedder"
        )
    if chunks is not None:
        if output_value != "sentence_embedding":
            raise ConfigError(
                f"chunks get sentence embeddings; leave output_value out, not {output_value!r}"
            )
        return token_call(call, list(_pool_chunks(model, call, chunks)))
    if call.precision != "float32":
        raise ConfigError(
            f"precision = {call.precision!r} is for sentence embeddings; leave it out with {what}"
        )
    if output_value == "sparse":
        head = load_token_head(model.files, "sparse")
        ignored = ignored_token_ids(model.files, model.tokenizer)
        kept = call.max_active_dims
        return token_call(call, partial(_sparse, head=head, ignored_ids=ignored, num_kept=kept))
    if output_value == "multi_vector":
        head = load_token_head(model.files, "multi_vector")
        return token_call(call, partial(_multi_vector, head=head))
    return token_call(call, _token_embeddings)


def _pool_chunks(model: RunningModel, call: EmbeddingCall, chunks: Chunks) -> Iterator[FinishText]:
    """Check the arguments and yield for each text the function that pools its spans."""
    names = ["chunks"] if call.is_single else [f"chunks[{row}]" for row in range(len(call.texts))]
    of_texts: Any = [chunks] if call.is_single else chunks
    if not isinstance(of_texts, Sequence) or len(of_texts) != len(names):
        raise InputError(
            f"chunks = {shown(chunks)}; of {len(names)} texts it must be {len(names)} lists of "
            "(start, end)"
        )
    spans = [_check_spans(name, each) for name, each in zip(names, of_texts, strict=True)]
    modes = model.spec.pooling.modes
    if modes != ("mean",):
        raise ConfigError(
            f"chunks need a model that pools by the mean of its tokens; this one pools by "
            f"{', '.join(modes)}, so a part of its tokens has no vector of its own"
        )
    open_weights = cache(model.open_weights)  # once for all texts

    def pool(
        vectors: TokenVectors, token_ids: list[int], row: int, offsets: Sequence[Span]
    ) -> NDArray[Any]:
        assert len(token_ids) == len(offsets), "one offset for each token; a bug in embedlib"
        pooled = pool_spans(vectors, offsets, spans[row], call.texts[row], names[row])
        pooled = apply_modules(pooled, model.spec.modules, open_weights)
        if not np.isfinite(pooled).all():
            raise EngineRunError(
                f"a vector of {names[row]} is not finite; the model's weights do not fit this text"
            )
        return replace(call, is_single=False).finish(pooled)

    for row, text in enumerate(call.texts):
        yield partial(pool, row=row, offsets=call.tokenizer.offsets(text, call.prompt, row))


def _token_embeddings(vectors: TokenVectors, token_ids: list[int]) -> TokenVectors:
    del token_ids
    return vectors


def _sparse(
    vectors: TokenVectors,
    token_ids: list[int],
    head: TokenHead,
    ignored_ids: frozenset[int],
    num_kept: int | None,
) -> SparseVector:
    # The reference sets negative weights to 0; `lexical_weights` keeps only those above 0 anyway.
    return strongest(lexical_weights(head(vectors), token_ids, ignored_ids), num_kept)


def _multi_vector(vectors: TokenVectors, token_ids: list[int], head: TokenHead) -> TokenVectors:
    del token_ids
    return normalize(head(vectors[1:]))


def _check_spans(name: str, chunks: object) -> list[Span]:
    """Return the spans of a text as a list, or raise InputError."""
    if not isinstance(chunks, Iterable):
        raise InputError(f"{name} = {shown(chunks)}; it must be a list of (start, end)")
    spans = list(chunks)
    for index, span in enumerate(spans):
        is_pair = isinstance(span, Sequence) and not isinstance(span, str) and len(span) == 2
        if not is_pair or not all(isinstance(place, (int, np.integer)) for place in span):
            raise InputError(
                f"{name}[{index}] = {shown(span)}; it must be (start, end), counted in characters"
            )
    return spans
