"""Embedder: texts to vectors.

This file is long because one class is one file, and half of it is signatures and docstrings that
editors show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embedlib.batching.stats import Meter
from embedlib.batching.tokenizer import Tokenizer
from embedlib.batching.usage import Usage
from embedlib.config import PrecisionName, Similarity
from embedlib.engines.base import Lane
from embedlib.errors import InputError, PromptWarning
from embedlib.models.opening import longest_sequence
from embedlib.models.prompts import Examples, Role
from embedlib.session import arguments
from embedlib.session.base import Session
from embedlib.session.call import CallFactory, EmbeddingCall, PromptArguments, VectorArguments
from embedlib.session.streaming import stream, submit
from embedlib.session.token_outputs import OUTPUT_VALUES, TokenPipeline, make_token_call
from embedlib.vectors.arrays import AnyVectors
from embedlib.vectors.quantization import calibrate
from embedlib.vectors.similarity import similarity, similarity_pairwise
from embedlib.vectors.tokens import Span

"""float32, unless `precision` says otherwise."""


class Embedder(Session):
    """Texts to vectors, in this process.

    Any number of threads may call any method. Queries (`encode` of one text, `encode_query`) are
    answered before bulk work. Close it, or use it as a context manager, to free the engine early;
    the end of the program does so too.
    """

    _tokenizer: Tokenizer

    def _open(self, meter: Meter) -> None:
        self._has_warned = False
        self._calls = CallFactory(self.spec, self.config, self._model.known, self._policy)
        self._tokenizer = Tokenizer(
            self.tokenizer,
            self.spec.max_seq_tokens,
            on_truncate=self.config.on_truncate,
            excludes_prompt=not self.spec.pooling.include_prompt,
            meter=meter,
            num_positions=longest_sequence(self.spec),
        )
        self._token_pipeline = TokenPipeline(
            self._model, self.config, meter, self._callers, self._policy
        )
        self._ending.add(self._token_pipeline.close)
        self._start(meter)

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
        usage: Usage | None = None,
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
            output_value: "sentence_embedding", "token_embeddings", "sparse" or "multi_vector", see
                docs/outputs.md; `normalize_embeddings` and `truncate_dim` do not change the others.
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
            usage: an `embedlib.Usage()`, to which the call adds its tokens, cut texts and seconds.
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
        arguments.check_inert(batch_size, device, pool, chunk_size)
        arguments.check_choice("output_value", output_value, OUTPUT_VALUES)
        if convert_to_tensor or not convert_to_numpy:
            arguments.import_torch()  # before the work: it may be missing
        call = self._make_call(
            arguments.one_of(inputs, sentences),
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(normalize_embeddings, truncate_dim, precision),
            usage,
        )
        if output_value == "sentence_embedding" and chunks is None:
            vectors = call.finish(self._run(call, show_progress_bar))
        else:
            of_tokens = make_token_call(self._model, self.config, call, output_value, chunks)
            self._pipeline.check_open()
            pipeline = self._token_pipeline.get()
            vectors = of_tokens.finish(self._run(of_tokens.call, show_progress_bar, pipeline))
        if convert_to_tensor or not convert_to_numpy:
            return arguments.as_tensors(vectors, is_one=convert_to_tensor or call.is_single)
        return vectors

    @arguments.same_arguments_as(encode)
    def encode_query(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of queries: `encode` with their prompt, ahead of bulk work."""
        return self.encode(*args, **{**kwargs, "role": "query"})

    @arguments.same_arguments_as(encode)
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
        usage: Usage | None = None,
    ) -> AnyVectors:
        """Return what `encode` returns without blocking the event loop.

        Cancelling drops the texts that are not being computed yet.
        """
        call = self._make_call(
            inputs,
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(normalize_embeddings, truncate_dim, precision),
            usage,
        )
        return call.finish(await self._arun(call))

    @arguments.same_arguments_as(aencode)
    async def aencode_query(self, *args: Any, **kwargs: Any) -> AnyVectors:
        """Return what `encode_query` returns without blocking the event loop."""
        return await self.aencode(*args, **{**kwargs, "role": "query"})

    @arguments.same_arguments_as(aencode)
    async def aencode_document(self, *args: Any, **kwargs: Any) -> AnyVectors:
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
        usage: Usage | None = None,
    ) -> Iterator[AnyVectors]:
        """Yield the vector of every text, float32[D], in their order and in bounded memory.

        Texts are read a few thousand ahead of the vector that is yielded, no further. Leaving the
        loop drops what was read ahead.

        Raises:
            what `encode` raises; rows in messages count from the first text of the stream.
        """
        if isinstance(inputs, str):
            raise InputError("inputs is one str; encode_stream takes an iterable of texts")
        arguments.check_inputs(inputs)
        call = self._make_call(
            (),
            PromptArguments(prompt_name, prompt, role, task, examples),
            VectorArguments(normalize_embeddings, truncate_dim, precision),
            usage,
        )
        return stream(self._pipeline, call, iter(inputs), self._truncation_warning(call))

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

        Raises:
            QueueFullError: `max_queued_texts` queries wait already.
            InputError: the text cannot be tokenized.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range.
            ClosedError: the Embedder was closed.
        """
        if not isinstance(text, str):
            raise InputError(f"text = {text!r:.60}; submit takes one str, submit_batch takes many")
        wanted = PromptArguments(prompt_name, prompt, role, task, examples)
        call = self._calls.make(text, self._tokenizer, wanted, usage=usage)
        return submit(self._pipeline, replace(call, lane=Lane.QUERY))

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
    ) -> Future[AnyVectors]:
        """Start bulk work and return the future of its vectors, float32[N, D].

        Blocks only while `max_queued_texts` texts wait. Keep two or three of these going and the
        engine never waits. Cut texts show in `stats()`; there is no warning.

        Raises:
            InputError: `texts` is a single str.
        """
        if isinstance(texts, str):
            raise InputError("texts is one str; submit_batch takes many, submit takes one")
        wanted = PromptArguments(prompt_name, prompt, role, task, examples)
        call = self._calls.make(texts, self._tokenizer, wanted, usage=usage)
        return submit(self._pipeline, replace(call, lane=Lane.BULK))

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
        arguments.check_inputs(texts)
        self._calls.ranges = calibrate(self.encode_document(list(texts)))
        return self._calls.ranges

    def count_room(self, role: Role | None = None, task: str | None = None) -> int:
        """Return how many tokens a text may have before it is cut: the limit less what is added."""
        arguments.check_role(role)
        return self._tokenizer.count_room(self._calls.prompts.resolve(role=role, task=task))

    def _make_call(
        self,
        inputs: Any,
        prompt: PromptArguments,
        vectors: VectorArguments,
        usage: Usage | None,
    ) -> EmbeddingCall:
        """Check the arguments of a call; warns once where no argument chooses a prompt."""
        call = self._calls.make(inputs, self._tokenizer, prompt, vectors, usage)
        if call.lacks_prompt and not self._has_warned:
            self._has_warned = True
            self._warn(arguments.MISSING_PROMPT, PromptWarning)
        return call

    # What the vectors are.

    @property
    def prompts(self) -> Mapping[str, str]:
        """The model's prompts by name: the folder's, the caller's and those known of it."""
        return MappingProxyType(self._calls.prompts.by_name)

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt that `encode` puts in front when none is named."""
        return self._calls.prompts.default_name

    def task_prompt_name(self, role: Role) -> str | None:
        """Return the name of the prompt that `encode_query` or `encode_document` puts in front."""
        arguments.check_role(role)
        return self._calls.prompts.role_name(role)

    @property
    def truncate_dim(self) -> int | None:
        """The first dimensions that are kept, unless a call says otherwise; None: all."""
        return self._calls.truncate_dim

    def get_embedding_dimension(self) -> int:
        """Return D, after `truncate_dim`."""
        return self.truncate_dim or self.spec.embedding_dim

    get_sentence_embedding_dimension = get_embedding_dimension
    """The former name."""

    @property
    def precision(self) -> str:
        """What the vectors are computed in, and which layers are not."""
        return self._model.precision

    @property
    def similarity_fn_name(self) -> Similarity:
        """What `similarity` computes."""
        return self.config.similarity_fn_name or self.spec.similarity

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> NDArray[np.float32]:
        """Return float32[N, M]: how alike every pair of vectors is, higher is more.

        Args:
            embeddings1: float[N, D] or float[D].
            embeddings2: float[M, D] or float[D].

        Raises:
            InputError: these are not vectors of one length.
        """
        return similarity(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(
        self, embeddings1: ArrayLike, embeddings2: ArrayLike
    ) -> NDArray[np.float32]:
        """Return float32[N]: how alike each vector is to the one in the same place.

        Args:
            embeddings1: float[N, D] or float[D].
            embeddings2: the same shape.

        Raises:
            InputError: these are not as many vectors, or not of one length.
        """
        return similarity_pairwise(self.similarity_fn_name, embeddings1, embeddings2)

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors may change; store it beside them. Reads all weights once."""
        return self._model.fingerprint({"precision": self.precision, **self._settings()})

    def fingerprint_in(self, precision: PrecisionName) -> str | None:
        """Return the fingerprint with another option `precision`; None: it cannot be known."""
        return self._model.fingerprint_in(precision, self._settings())

    def _settings(self) -> dict[str, object]:
        return {**self._calls.settings(), "max_seq_length": self.max_seq_length}
