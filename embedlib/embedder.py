"""Embedder: what users hold. It resolves a model, starts the pipeline and shapes the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.stats import Meter
from embedlib.batching.tokenizer import Tokenizer
from embedlib.batching.tokenizer_thread import Tokenize
from embedlib.config import Config
from embedlib.embedding import EmbeddingSession
from embedlib.engines.base import Lane
from embedlib.errors import InputError, PromptWarning
from embedlib.models.prompts import Examples, Role
from embedlib.session.call import (
    Call,
    as_tensors,
    check_choice,
    check_inert,
    check_inputs,
    check_role,
    import_torch,
    one_of,
    same_arguments_as,
)
from embedlib.session.loading import LoadedModel
from embedlib.session.streaming import stream, submit
from embedlib.session.token_outputs import OUTPUT_VALUES, OutputValue, TokenOutputs
from embedlib.vectors.quantization import calibrate
from embedlib.vectors.tokens import Span

Vectors = NDArray[Any]
"""float32, unless `precision` says otherwise."""


class Embedder(EmbeddingSession):
    """Texts to vectors, in this process.

    Any number of threads may call any method. Queries (`encode` of one text, `encode_query`) are
    answered before bulk work. Close it, or use it as a context manager, to free the engine early;
    the end of the program does so too.
    """

    _tokenizer: Tokenizer

    def _start(self, name: str, model: LoadedModel, config: Config) -> None:
        self._has_warned = False
        self._model = model
        super()._start(name, model, config)

    def _prepare(self, meter: Meter) -> None:
        self._tokenizer = Tokenizer(
            self._rust_tokenizer,
            self.spec.max_seq_tokens,
            on_truncate=self.config.on_truncate,
            excludes_prompt=not self.spec.pooling.include_prompt,
            meter=meter,
            num_positions=self._length_limit,
        )
        self._token_outputs = TokenOutputs(self._model, self.config, meter)
        self._resources.callback(self._token_outputs.close)

    # Encoding: the names and the order of arguments are sentence-transformers'.

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        chunks: Sequence[Span] | None = None,
        sentences: str | Iterable[str] | None = None,
    ) -> Any:
        """Return the vectors of texts, in their order.

        Args:
            inputs: a text or any iterable of texts.
            prompt_name: the prompt to put in front, by name; None: the default one.
            prompt: the prompt to put in front, as text; wins over `prompt_name`.
            batch_size: accepted as a hint; batches are made by token budget.
            show_progress_bar: None shows one on a terminal when it takes longer than 2 seconds.
            output_value: "sentence_embedding", "token_embeddings", "sparse" or "multi_vector";
                docs/outputs.md says what each is. The last three are as the model gives them,
                whatever `normalize_embeddings` and `truncate_dim` say.
            precision: "float32", "float16", "int8", "uint8", "binary" or "ubinary".
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor; needs torch.
            device: None or "cpu".
            normalize_embeddings: scale to unit length, also if the model does not.
            truncate_dim: keep the first dimensions; vectors that had unit length get it again.
            pool: None; several devices are an option of the Embedder.
            chunk_size: None.
            role: "query" or "document"; `encode_query` and `encode_document` set it.
            task: what the vectors are for: one of the model's tasks by name, or, for models that
                take an instruction, the task in words; `embedlib inspect` says which there are.
                "query" and "document" mean the role.
            examples: few-shot examples for queries, instead of those of the Embedder.
            chunks: late chunking: spans of characters, (start, end), of a single text, to get a
                vector each after one pass over the whole text.
            sentences: the former name of `inputs`.

        Returns:
            float32[N, D] for N texts, float32[D] for a single str, float32[C, D] for C chunks; or
            of another type as `precision` says. Other outputs are a list, and for a single str its
            only item: float32[L, H] for L tokens, dict of token id to weight, or float32[L - 1, D].

        Raises:
            InputError: a text is not a str or not valid Unicode; the message names its row.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range.
            EngineUnsupportedError: the engine has no vectors of tokens.
            EngineRunError: a batch failed.
            QueueFullError: `max_queued_texts` queries wait already.
            ClosedError: the Embedder was closed.
        """
        check_inert(batch_size, device, pool, chunk_size)
        check_choice("output_value", output_value, OUTPUT_VALUES)
        if convert_to_tensor or not convert_to_numpy:
            import_torch()  # before the work, should it be missing
        call = self._calls.make(
            one_of(inputs, sentences),
            prompt_name=prompt_name,
            prompt=prompt,
            role=role,
            task=task,
            examples=examples,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            precision=precision,
        )
        self._warn_of_missing_prompt(call)
        if output_value == "sentence_embedding" and chunks is None:
            tokenize = self._tokenize(call)
            rows = self._run(
                call.texts,
                call.lane,
                tokenize,
                show_progress_bar,
                can_divide=call.can_divide,
            )
            vectors = call.finish(rows)
        else:
            output = self._token_outputs.output(
                call, self._tokenizer, cast(OutputValue, output_value), chunks
            )
            self._pipeline.check_open()
            pipeline = self._token_outputs.pipeline()
            rows = self._run(call.texts, call.lane, output.tokenize, show_progress_bar, pipeline)
            vectors = output.finish(rows)
        if convert_to_tensor or not convert_to_numpy:
            return as_tensors(vectors, is_one=convert_to_tensor or call.is_single)
        return vectors

    @same_arguments_as(encode)
    def encode_query(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of queries: `encode` with their prompt, ahead of bulk work."""
        return self.encode(*args, **{**kwargs, "role": "query"})

    @same_arguments_as(encode)
    def encode_document(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of documents: `encode` with their prompt, on the bulk lane."""
        return self.encode(*args, **{**kwargs, "role": "document"})

    async def aencode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
    ) -> Vectors:
        """Return what `encode` returns without blocking the event loop.

        Cancelling drops the texts that are not being computed yet.
        """
        call = self._calls.make(
            inputs,
            prompt_name=prompt_name,
            prompt=prompt,
            role=role,
            task=task,
            examples=examples,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            precision=precision,
        )
        self._warn_of_missing_prompt(call)
        tokenize = self._tokenize(call)
        rows = await self._arun(call.texts, call.lane, tokenize, can_divide=call.can_divide)
        return call.finish(rows)

    @same_arguments_as(aencode)
    async def aencode_query(self, *args: Any, **kwargs: Any) -> Vectors:
        """Return what `encode_query` returns without blocking the event loop."""
        return await self.aencode(*args, **{**kwargs, "role": "query"})

    @same_arguments_as(aencode)
    async def aencode_document(self, *args: Any, **kwargs: Any) -> Vectors:
        """Return what `encode_document` returns without blocking the event loop."""
        return await self.aencode(*args, **{**kwargs, "role": "document"})

    def encode_stream(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
    ) -> Iterator[Vectors]:
        """Yield the vector of every text, float32[D], in their order and in bounded memory.

        Texts are read a few thousand ahead of the vector that is yielded, no further. Leaving the
        loop drops what was read ahead.

        Raises:
            what `encode` raises; rows in messages count from the first text of the stream.
        """
        if isinstance(inputs, str):
            raise InputError("inputs is one str; encode_stream takes an iterable of texts")
        check_inputs(inputs)
        call = self._calls.make(
            (),
            prompt_name=prompt_name,
            prompt=prompt,
            role=role,
            task=task,
            examples=examples,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            precision=precision,
        )
        self._warn_of_missing_prompt(call)
        warn_truncated = self._truncation_warning(can_divide=call.can_divide)
        return stream(self._pipeline, self._tokenize(call), call, iter(inputs), warn_truncated)

    def submit(
        self,
        text: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        role: Role | None = "query",
        task: str | None = None,
        examples: Examples | None = None,
    ) -> Future[Vectors]:
        """Start a query and return the future of its vector, float32[D]; never blocks.

        Raises:
            QueueFullError: `max_queued_texts` queries wait already.
            InputError: the text cannot be tokenized.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range.
            ClosedError: the Embedder was closed.
        """
        if not isinstance(text, str):
            raise InputError(f"text = {text!r:.60}; submit takes one str, submit_batch takes many")
        call = self._calls.make(
            text, prompt_name=prompt_name, prompt=prompt, role=role, task=task, examples=examples
        )
        call = replace(call, lane=Lane.QUERY)
        return submit(self._pipeline, self._tokenize(call), call)

    def submit_batch(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        role: Role | None = "document",
        task: str | None = None,
        examples: Examples | None = None,
    ) -> Future[Vectors]:
        """Start bulk work and return the future of its vectors, float32[N, D].

        Blocks only while `max_queued_texts` texts wait. Keep two or three of these going and the
        engine never waits. Cut texts show in `stats()`; there is no warning.

        Raises:
            InputError: `texts` is a single str.
        """
        if isinstance(texts, str):
            raise InputError("texts is one str; submit_batch takes many, submit takes one")
        call = self._calls.make(
            texts, prompt_name=prompt_name, prompt=prompt, role=role, task=task, examples=examples
        )
        call = replace(call, lane=Lane.BULK)
        return submit(self._pipeline, self._tokenize(call), call)

    def calibrate(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Set the ranges for vectors in int8 and uint8, and return them: float32[2, D].

        They are the least and the greatest value of every dimension in the vectors that
        `encode_document(texts)` gives. Save them beside your vectors with `numpy.save`, and pass
        them as `quantization_ranges` from then on: other ranges are other codes.

        Args:
            texts: some hundreds or thousands that are like your own.

        Raises:
            ConfigError: a dimension has only one value; there are too few texts.
            InputError: `texts` is a single str.
        """
        if isinstance(texts, str):
            raise InputError("texts is one str; calibrate takes some hundreds")
        check_inputs(texts)
        self._calls.ranges = calibrate(self.encode_document(list(texts)))
        return self._calls.ranges

    def count_room(self, role: Role | None = None, task: str | None = None) -> int:
        """Return how many tokens a text may have before it is cut: the limit less what is added."""
        check_role(role)
        return self._tokenizer.count_room(self._calls.prompts.resolve(role=role, task=task))

    def _tokenize(self, call: Call) -> Tokenize:
        return partial(self._tokenizer, prompt=call.prompt)

    def _warn_of_missing_prompt(self, call: Call) -> None:
        if call.lacks_prompt and not self._has_warned:
            self._has_warned = True
            self._warn(
                "this model has different prompts for queries and documents, and encode adds "
                "neither; use encode_query and encode_document (--query and --document), or pass "
                'prompt="" for texts as they are',
                PromptWarning,
            )
