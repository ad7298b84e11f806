"""Embedder: texts to vectors.

It is long because a class has one file; half of it is signatures and docstrings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.usage import Usage
from embedlib.engines.base import Lane
from embedlib.errors import InputError, PromptWarning, shown
from embedlib.models.prompts import Examples, Role
from embedlib.session import arguments
from embedlib.session.async_types import as_async_encode, as_submit_batch
from embedlib.session.call import Call, EmbeddingCall, PromptArguments, VectorArguments
from embedlib.session.call_factory import CallFactory
from embedlib.session.checked import checked
from embedlib.session.embedding import EmbeddingSession
from embedlib.session.late_interaction import check_can_calibrate, check_output
from embedlib.session.result_types import as_encode
from embedlib.session.running import aconvert
from embedlib.session.sparse_outputs import QueryTable, splade_call, table_call
from embedlib.session.streaming import astream, stream, submit
from embedlib.session.token_outputs import Chunks, TokenPipeline, make_token_call
from embedlib.session.tokenizers import make_tokenizers
from embedlib.vectors.arrays import AnyVectors
from embedlib.vectors.tokens import Span


class Embedder(EmbeddingSession):
    """Texts to vectors, in this process.

    Any number of threads may call any method. Queries (`encode` of one text, `encode_query`) are
    answered before bulk work. Close it, or use it as a context manager, to free the engine early;
    the end of the program does so too.
    """

    _tokenizer: Tokenizer

    def _open(self) -> None:
        self._has_warned = False
        self._calls = CallFactory(self.spec, self.config, self._model.known, self._policy)
        given = (self.spec, self.tokenizer, self.config, self._meter)
        self._tokenizer, self._query_tokenizer = make_tokenizers(*given)
        parts = (self._start_pipeline, self._callers)
        self._token_pipeline = TokenPipeline(self._model.lower_tokens, *parts)
        self._ending.add(self._token_pipeline.close)
        files = self._model.files
        self._query_table: QueryTable | None = None
        if files is not None and files.queries is not None:
            pipeline = TokenPipeline(self._model.lower_queries, *parts)
            self._query_table = QueryTable(files, pipeline, self.config, self._meter)
            self._ending.add(pipeline.close)
        self._start()

    # Encoding: names and order of the arguments are those of sentence-transformers.

    @as_encode
    @checked
    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
        chunks: Sequence[Span] | None = None,
        max_active_dims: int | None = None,
        processing_kwargs: Mapping[str, NoReturn] | None = None,
        sentences: str | Iterable[str] | None = None,
    ) -> Any:
        """Return the vectors of texts, in their order.

        Args:
            inputs: a text or any iterable of texts.
            prompt_name: name of the prompt to put in front of each text; None: the default one.
            prompt: the prompt as text; overrides `prompt_name`.
            batch_size: accepted as a hint; batches are made by token budget.
            show_progress_bar: None shows one on a terminal if the call takes longer than 2 seconds.
            output_value: "sentence_embedding", "token_embeddings", "sparse" or "multi_vector", see
                docs/outputs.md; `normalize_embeddings` and `truncate_dim` change only the first.
            precision: "float32" or None, "float16", "int8", "uint8", "binary" or "ubinary".
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor; needs torch. Neither with "sparse".
            device: None or "cpu", or a list of it.
            normalize_embeddings: scale to unit length even if the model does not.
            truncate_dim: keep this many dimensions; vectors of unit length are scaled to it again.
            pool: None; several devices are an option of the Embedder.
            chunk_size: None.
            role: "query" or "document"; `encode_query` and `encode_document` set it.
            task: what the vectors are for: one of the model's tasks by name, or for models that
                take an instruction the task in words; `embedlib inspect` lists the tasks. "query"
                and "document" set the role.
            examples: few-shot examples for queries, instead of those of the Embedder.
            usage: an `embedlib.Usage()`; the call adds its tokens, truncated texts and seconds.
            chunks: late chunking: character spans, (start, end), of a single text; each gets a
                vector after one pass over the whole text.
            max_active_dims: keep only this many weights of a sparse vector, the greatest.
            processing_kwargs: None.
            sentences: the former name of `inputs`.

        Returns:
            float32[N, D] for N texts, float32[D] for a single str, float32[C, D] for C chunks; with
            another `precision` another dtype. Other outputs are a list with one item per text, or
            for a single str the item: float32[L, H] for L tokens, a dict of token id to weight, or
            float32[L - 1, D]. Late-interaction models return such a list, of float32[L, D].

        Raises:
            InputError: a text is not a str or not valid Unicode; the message names its row.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range.
            EngineUnsupportedError: the engine has no per-token vectors.
            EngineRunError: a batch failed.
            QueueFullError: `max_queued_texts` queries are queued already.
            ClosedError: the Embedder was closed.
        """
        if convert_to_tensor or not convert_to_numpy:
            arguments.check_tensors(output_value)
        call = self._make_call(
            arguments.one_of(inputs, sentences),
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(
                normalize_embeddings, truncate_dim, precision, output_value, max_active_dims
            ),
            usage,
        )
        run, finish, pipeline = self._outputs(call, output_value, chunks)
        vectors = finish(self._run(run, show_progress_bar, pipeline))
        if convert_to_tensor or not convert_to_numpy:
            return arguments.as_tensors(vectors, is_one=convert_to_tensor or call.is_single)
        return vectors

    @as_encode
    @arguments.same_arguments_as(encode)
    def encode_query(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of queries: `encode` with the query prompt, ahead of bulk work."""
        return self.encode(*args, **arguments.with_role(kwargs, "query"))

    @as_encode
    @arguments.same_arguments_as(encode)
    def encode_document(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of documents: `encode` with the document prompt, on the bulk lane."""
        return self.encode(*args, **arguments.with_role(kwargs, "document"))

    @as_async_encode
    @checked
    async def aencode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str | None = "float32",
        output_value: str = "sentence_embedding",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
        chunks: Sequence[Span] | None = None,
        max_active_dims: int | None = None,
    ) -> Any:
        """Return what `encode` returns without blocking the event loop.

        Cancelling the task drops the texts that are not being computed yet.
        """
        call = self._make_call(
            inputs,
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(
                normalize_embeddings, truncate_dim, precision, output_value, max_active_dims
            ),
            usage,
        )
        if output_value == "sentence_embedding" and chunks is None:
            return await aconvert(call.finish, await self._arun(call))
        # The first call of some outputs makes an engine.
        run, finish, pipeline = await asyncio.to_thread(self._outputs, call, output_value, chunks)
        return await aconvert(finish, await self._arun(run, pipeline))

    @as_async_encode
    @arguments.same_arguments_as(aencode)
    async def aencode_query(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `encode_query` returns without blocking the event loop."""
        return await self.aencode(*args, **arguments.with_role(kwargs, "query"))

    @as_async_encode
    @arguments.same_arguments_as(aencode)
    async def aencode_document(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `encode_document` returns without blocking the event loop."""
        return await self.aencode(*args, **arguments.with_role(kwargs, "document"))

    @checked
    def encode_stream(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
    ) -> Iterator[AnyVectors]:
        """Yield the vector of every text, float32[D], in their order and in bounded memory.

        Reads at most a few thousand texts ahead of the vector that is yielded. Leaving the loop
        drops the texts that were read ahead.

        Raises:
            what `encode` raises; messages count rows from the first text of the stream.
        """
        arguments.check_many("inputs", inputs, "encode_stream takes an iterable of texts")
        call = self._make_call(
            (),
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(normalize_embeddings, truncate_dim, precision),
            usage,
        )
        return stream(
            self._pipeline, call, arguments.elements(inputs), self._truncation_warning(call)
        )

    @checked
    def aencode_stream(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
    ) -> AsyncIterator[AnyVectors]:
        """Yield what `encode_stream` yields without blocking the event loop, to `async for`.

        The loop's thread reads `inputs`, which should not wait. Leaving the loop, or cancelling its
        task, drops the texts that were read ahead.
        """
        arguments.check_many("inputs", inputs, "aencode_stream takes an iterable of texts")
        call = self._make_call(
            (),
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(normalize_embeddings, truncate_dim, precision),
            usage,
        )
        return astream(
            self._pipeline, call, arguments.elements(inputs), self._truncation_warning(call)
        )

    @checked
    def submit(
        self,
        text: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        role: Role | None = "query",
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
    ) -> Future[AnyVectors]:
        """Start a query and return the future of its vector, float32[D]; never blocks.

        Keep the Embedder until it is done: garbage collection closes one that nobody refers to.

        Raises:
            QueueFullError: `max_queued_texts` queries are queued already.
            InputError: the text cannot be tokenized.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range.
            ClosedError: the Embedder was closed.
        """
        if not isinstance(text, str):
            raise InputError(f"text = {shown(text)}; submit takes one str, submit_batch takes many")
        wanted = PromptArguments(prompt_name, prompt, role, task, examples)
        call = self._calls.make(text, self._tokenizer_of(wanted), wanted, usage=usage)
        return submit(self._pipeline, replace(call, lane=Lane.QUERY), call.finish)

    @as_submit_batch
    @checked
    def submit_batch(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        role: Role | None = "document",
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
        output_value: str = "sentence_embedding",
        max_active_dims: int | None = None,
        chunks: Sequence[Sequence[Span]] | None = None,
    ) -> Future[AnyVectors]:
        """Start bulk work and return the future of its vectors, float32[N, D].

        With another `output_value`, or `chunks` (spans of each text), the future is that of a list.

        Blocks only while `max_queued_texts` texts are queued. Keep two or three of these calls open
        and the engine is never idle. Keep the Embedder until they are done, as with `submit`.
        `stats()` counts truncated texts; there is no warning.

        Raises:
            InputError: `texts` is a single str.
        """
        arguments.check_many("texts", texts, "submit_batch takes many, submit takes one")
        wanted = PromptArguments(prompt_name, prompt, role, task, examples)
        vectors = VectorArguments(output_value=output_value, max_active_dims=max_active_dims)
        call = self._calls.make(texts, self._tokenizer_of(wanted), wanted, vectors, usage)
        run, finish, pipeline = self._outputs(replace(call, lane=Lane.BULK), output_value, chunks)
        return submit(pipeline, run, finish)

    @checked
    def calibrate(
        self, texts: Iterable[str], *, normalize_embeddings: bool = False
    ) -> NDArray[np.float32]:
        """Set the ranges for vectors in int8 and uint8, and return them: float32[2, D].

        They are the minimum and the maximum of every dimension in `encode_document(texts)`. Save
        them beside your vectors with `numpy.save`, and pass them as `quantization_ranges` from then
        on: other ranges give other codes.

        Args:
            texts: some hundreds or thousands of texts like your own.
            normalize_embeddings: as in the calls that are to use the ranges.

        Raises:
            ConfigError: a dimension has only one value; there are too few texts; the model has a
                vector per token, or is sparse.
            InputError: `texts` is a single str.
        """
        check_can_calibrate(self.spec)
        arguments.check_many("texts", texts, "calibrate takes some hundreds")
        form = VectorArguments(normalize_embeddings)
        vectors = self.encode_document(texts, normalize_embeddings=normalize_embeddings)
        return self._calls.calibrate(vectors, form)

    @checked
    def count_room(self, role: Role | None = None, task: str | None = None) -> int:
        """Return how many tokens a text may have: the limit minus prompt and special tokens."""
        wanted = PromptArguments(role=role, task=task).by_role()
        return self._tokenizer_of(wanted).count_room(self._calls.prompts.resolve(*wanted))

    def _make_call(
        self, inputs: Any, prompt: PromptArguments, vectors: VectorArguments, usage: Usage | None
    ) -> EmbeddingCall:
        """Check the arguments of a call and return it; warns once if it lacks a prompt.

        Who puts a prompt in front of the first text, as cards of models do, knows of them.
        """
        call = self._calls.make(inputs, self._tokenizer_of(prompt), prompt, vectors, usage)
        arguments.check_each("text", call.texts)
        if call.lacks_prompt and not self._has_warned:
            self._has_warned = True
            if not self._calls.prompts.begin(call.texts):
                self._warn(arguments.MISSING_PROMPT, PromptWarning)
        return call

    def _tokenizer_of(self, prompt: PromptArguments) -> Tokenizer:
        role = prompt.by_role().role
        if self._query_table is not None and self._query_table.computes(role):
            return self._query_table.tokenizer
        own = self._query_tokenizer if role == "query" else None
        return own or self._tokenizer

    def _outputs(
        self, call: EmbeddingCall, output_value: str, chunks: Chunks | None = None
    ) -> tuple[Call, Callable[[Any], Any], Pipeline]:
        """Return the call to run, what makes the outputs of its rows, and where to run it."""
        if call.is_late:
            check_output(output_value, chunks)
        if call.is_late or (output_value == "sentence_embedding" and chunks is None):
            return call, call.finish, self._pipeline
        if not self.spec.is_sparse or chunks is not None:
            of_tokens = make_token_call(self._model, self.config, call, output_value, chunks)
            self._pipeline.check_open()
            return *of_tokens, self._token_pipeline.get()
        if self._query_table is not None and call.tokenizer is self._query_table.tokenizer:
            self._pipeline.check_open()
            return *table_call(call), self._query_table.pipeline.get()
        make = table_call if self.spec.encoder.is_table else splade_call
        return *make(call), self._pipeline
