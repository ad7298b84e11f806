"""What is made of a vector for every token: these vectors themselves, lexical weights, chunks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizer import Tokenizer
from embedlib.config import Config
from embedlib.errors import ClosedError, ConfigError, InputError
from embedlib.models.weights.token_heads import TokenHead, ignored_token_ids, load_token_head
from embedlib.session.call import Call
from embedlib.session.loading import LoadedModel
from embedlib.vectors.modules import apply_modules
from embedlib.vectors.similarity import normalize
from embedlib.vectors.tokens import Span, lexical_weights, pool_spans

OutputValue = Literal["sentence_embedding", "token_embeddings", "sparse", "multi_vector"]
OUTPUT_VALUES: Final[tuple[OutputValue, ...]] = get_args(OutputValue)

TokenVectors = NDArray[np.float32]
FinishText = Callable[[TokenVectors, list[int]], Any]
"""From float32[L, H] of a text, and its token ids, to what the caller asked for."""


class TokenOutput:
    """One call's texts on their way to something made of their tokens."""

    def __init__(self, tokenizer: Tokenizer, call: Call, finish_text: FinishText) -> None:
        self._tokenizer = tokenizer
        self._call = call
        self._finish_text = finish_text
        self._token_ids: dict[int, list[int]] = {}

    def tokenize(self, job: Job, first_row: int, texts: Sequence[str]) -> list[TokenizedText]:
        """Make the sequences of consecutive texts, and remember them."""
        sequences = self._tokenizer(job, first_row, texts, prompt=self._call.prompt)
        for sequence in sequences:
            self._token_ids[sequence.row] = sequence.token_ids
        return sequences

    def finish(self, rows: Iterable[TokenVectors]) -> Any:
        """Return a list with what was made of each text; for a single str, that itself."""
        finished = [self._finish_text(row, self._token_ids[i]) for i, row in enumerate(rows)]
        return finished[0] if self._call.is_single else finished


class TokenOutputs:
    """Everything that needs the transformer's vectors of tokens; the first call starts an engine.

    Any number of threads may call any method.
    """

    def __init__(self, model: LoadedModel, config: Config, meter: Meter) -> None:
        self._model = model
        self._config = config
        self._meter = meter
        self._pipeline: Pipeline | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def output(
        self,
        call: Call,
        tokenizer: Tokenizer,
        output_value: OutputValue,
        chunks: Sequence[Span] | None,
    ) -> TokenOutput:
        """Return what makes an output of a call's texts, after checking that the model has it.

        Args:
            call: the call.
            tokenizer: that of the call, which keeps the limit it began with.
            output_value: one of `OutputValue`.
            chunks: spans of the call's only text, to get a vector each.

        Raises:
            ConfigError: the model has no such output, or an option contradicts it.
            InputError: `chunks` are no spans of one text.
            ModelWeightsError: the weights cannot be read.
        """
        what = "chunks" if chunks is not None else f"output_value = {output_value!r}"
        if self._model.files is None:
            raise ConfigError(
                f"{what} needs vectors of tokens, and an engine of your own is asked for none; "
                "load the model by its name or folder"
            )
        if self._config.on_truncate == "chunk":
            raise ConfigError(
                f"{what} needs all tokens in one sequence; pass on_truncate='warn' to the Embedder"
            )
        if chunks is not None:
            if output_value != "sentence_embedding":
                raise ConfigError(
                    f"chunks get vectors of their own; leave output_value out, not {output_value!r}"
                )
            finish_text = self._chunks(call, tokenizer, chunks)
        elif call.precision != "float32":
            raise ConfigError(
                f"precision = {call.precision!r} is for sentence embeddings; leave it out with "
                f"{what}"
            )
        elif output_value == "sparse":
            head = load_token_head(self._model.files, output_value)
            ignored = ignored_token_ids(self._model.files, self._model.tokenizer)
            finish_text = partial(_sparse, head=head, ignored_ids=ignored)
        elif output_value == "multi_vector":
            head = load_token_head(self._model.files, output_value)
            finish_text = partial(_multi_vector, head=head)
        else:
            finish_text = _token_embeddings
        return TokenOutput(tokenizer, call, finish_text)

    def pipeline(self) -> Pipeline:
        """Return what runs the transformer alone; the first call makes it.

        Raises:
            EngineError: it cannot be made.
            ClosedError: closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("this model is closed; load it again")
            if self._pipeline is None:
                assert self._model.lower_tokens is not None, "checked before; a bug in embedlib"
                self._pipeline = Pipeline(
                    self._model.lower_tokens(),
                    self._meter,
                    max_queued_texts=self._config.max_queued_texts,
                )
            return self._pipeline

    def close(self) -> None:
        """Free the engine, if there is one."""
        if os.getpid() != self._pid:
            return  # a forked child has none of it, and the lock may have been taken meanwhile
        with self._lock:
            self._is_closed = True
            pipeline = self._pipeline
        if pipeline is not None:
            pipeline.close()

    def _chunks(self, call: Call, tokenizer: Tokenizer, chunks: Sequence[Span]) -> FinishText:
        """Return what pools the spans of a call's only text."""
        if not call.is_single:
            raise InputError("chunks are spans of one text; pass one str with them")
        spans = _check_spans(chunks)
        modes = self._model.spec.pooling.modes
        if modes != ("mean",):
            raise ConfigError(
                f"chunks need a model that takes the mean of its tokens; this one pools by "
                f"{', '.join(modes)}, so a part of its tokens has no vector of its own"
            )
        [text] = call.texts
        offsets = tokenizer.offsets(text, call.prompt)

        def finish_text(vectors: TokenVectors, token_ids: list[int]) -> NDArray[Any]:
            assert len(token_ids) == len(offsets), "one offset for each token; a bug in embedlib"
            pooled = pool_spans(vectors, offsets, spans, text)
            pooled = apply_modules(pooled, self._model.spec.modules, self._model.open_weights)
            return replace(call, is_single=False).finish(pooled)

        return finish_text


def _token_embeddings(vectors: TokenVectors, token_ids: list[int]) -> TokenVectors:
    del token_ids
    return vectors


def _sparse(
    vectors: TokenVectors, token_ids: list[int], head: TokenHead, ignored_ids: frozenset[int]
) -> dict[int, float]:
    # The reference cuts weights off at 0; `lexical_weights` keeps none of these anyway.
    return lexical_weights(head(vectors), token_ids, ignored_ids)


def _multi_vector(vectors: TokenVectors, token_ids: list[int], head: TokenHead) -> TokenVectors:
    del token_ids
    return normalize(head(vectors[1:]))


def _check_spans(chunks: Sequence[Span]) -> list[Span]:
    if not isinstance(chunks, Iterable):
        raise InputError(f"chunks = {chunks!r:.60}; it must be a list of (start, end)")
    spans = list(chunks)
    for index, span in enumerate(spans):
        is_pair = isinstance(span, Sequence) and not isinstance(span, str) and len(span) == 2
        if not is_pair or not all(isinstance(place, (int, np.integer)) for place in span):
            raise InputError(
                f"chunks[{index}] = {span!r:.60}; it must be (start, end), counted in characters"
            )
    return spans
