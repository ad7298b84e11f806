"""Embedder: what users hold. It resolves a model, starts the pipeline and shapes the results."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from os import PathLike
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job
from embedlib.batching.stats import Meter, Stats
from embedlib.batching.tokenizer import TRUNCATED_ROWS_TOLD, Tokenizer, describe_truncated
from embedlib.call import Call, Calls, check_only, import_torch, same_arguments_as
from embedlib.config import Config, Similarity
from embedlib.engines.base import Engine, Lane
from embedlib.errors import ConfigError, InputError, TruncationWarning
from embedlib.loading import LoadedModel, check_length, limit_length, load_model, num_positions
from embedlib.models.prompts import Task
from embedlib.models.spec import ModelSpec
from embedlib.progress import Progress
from embedlib.similarity import similarity

Vectors = NDArray[np.float32]

STREAM_JOB_TEXTS = 256
STREAM_JOBS = 16
"""`encode_stream` reads this many jobs of this many texts ahead: four windows of the scheduler."""


class Embedder:
    """Texts to vectors, in this process.

    Any number of threads may call any method. Queries (`encode` of one str, `encode_query`) are
    answered before bulk work. Close it, or use it as a context manager, to free the engine early;
    the end of the program does so too.
    """

    def __init__(
        self,
        model_name_or_path: str | PathLike[str],
        *,
        config: Config | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model_name_or_path: a folder, a hub name, or `package:NAME` for a model that an
                installed Python package brings.
            config: the options as one object; not together with `options`.
            trust_remote_code: accepted for sentence-transformers' sake; embedlib never runs it.
            **options: fields of `Config`, such as `revision`, `token`, `cache_folder`, `prompts`,
                `truncate_dim`, `max_seq_tokens`, `threads`.

        Raises:
            ConfigError: an option is unknown or out of range.
            ModelNotFoundError: there is no such model.
            ModelUnsupportedError: a model file says something embedlib does not implement.
            ModelWeightsError: the weights do not fit the model's configuration.
            EngineUnavailableError: the engine's library or device is missing.
        """
        config = _one_config(config, options)
        if trust_remote_code:
            warnings.warn(
                "trust_remote_code is ignored: embedlib never runs code from a model folder",
                stacklevel=2,
            )
        self._start(str(model_name_or_path), load_model(model_name_or_path, config), config)

    @classmethod
    def from_engine(
        cls,
        engine: Engine,
        spec: ModelSpec,
        tokenizer: tokenizers.Tokenizer,
        config: Config | None = None,
        *,
        fingerprint: str = "",
    ) -> Embedder:
        """Put an Embedder around an engine of your own, or `embedlib.testing.FakeEngine`.

        The Embedder owns the engine from then on and closes it.
        """
        config = config or Config()
        model = LoadedModel(
            spec=limit_length(spec, tokenizer, config),
            tokenizer=tokenizer,
            engine=engine,
            fingerprint=lambda _: fingerprint,
        )
        embedder = cls.__new__(cls)
        embedder._start(spec.encoder.family, model, config)
        return embedder

    def _start(self, name: str, model: LoadedModel, config: Config) -> None:
        self.model_name = name
        self.spec = model.spec
        self.config = config
        self._calls = Calls(model.spec, config)
        self.prompts = self._calls.prompts
        self._fingerprint = model.fingerprint
        self._rust_tokenizer = model.tokenizer
        meter = Meter(perf_counter)
        self._tokenizer = Tokenizer(
            model.tokenizer,
            model.spec.max_seq_tokens,
            on_truncate=config.on_truncate,
            excludes_prompt=not model.spec.pooling.include_prompt,
            meter=meter,
        )
        self._pipeline = Pipeline(model.engine, meter, max_queued_texts=config.max_queued_texts)
        # Runs when the Embedder is collected and at the end of the program, whichever comes first.
        self._finalizer = weakref.finalize(self, self._pipeline.close)

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
        *,
        task: Task | None = None,
        sentences: str | Iterable[str] | None = None,
    ) -> Any:
        """Return the vectors of texts, in their order.

        Args:
            inputs: a text or any iterable of texts.
            prompt_name: the prompt to put in front, by name; None: the default one.
            prompt: the prompt to put in front, as text; wins over `prompt_name`.
            batch_size: accepted as a hint; batches are made by token budget.
            show_progress_bar: None shows one on a terminal when it takes longer than 2 seconds.
            output_value: "sentence_embedding".
            precision: "float32".
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor; needs torch.
            device: None or "cpu".
            normalize_embeddings: scale to unit length, also if the model does not.
            truncate_dim: keep the first dimensions; vectors that had unit length get it again.
            task: "query" or "document"; `encode_query` and `encode_document` set it.
            sentences: the former name of `inputs`.

        Returns:
            float32[N, D] for N texts, float32[D] for a single str.

        Raises:
            InputError: a text is not a str or not valid Unicode; the message names its row.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range.
            EngineRunError: a batch failed.
            EmbedderClosedError: the Embedder was closed.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size = {batch_size}; it must be at least 1")
        check_only("output_value", output_value, "sentence_embedding")
        check_only("precision", precision, "float32")
        check_only("device", device, None, "cpu")
        if inputs is not None and sentences is not None:
            raise ConfigError("inputs and sentences are two names of one argument; pass one")
        if convert_to_tensor or not convert_to_numpy:
            import_torch()  # before the work, should it be missing
        call = self._calls.make(
            inputs if sentences is None else sentences,
            prompt_name,
            prompt,
            task,
            normalize_embeddings,
            truncate_dim,
        )
        job = self._pipeline.open_job(len(call.texts), call.lane)
        with Progress(job, show_progress_bar) as progress:
            self._feed(job, call.texts, call.prompt, progress.update)
            vectors = call.finish(progress.wait())
        self._warn_truncated(job.truncated, len(job.truncated), stacklevel=3 if task is None else 4)
        if convert_to_tensor or not convert_to_numpy:
            tensor = import_torch().from_numpy(vectors)
            return tensor if convert_to_tensor or call.is_single else list(tensor)
        return vectors

    @same_arguments_as(encode)
    def encode_query(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of queries: `encode` with the prompt "query", ahead of bulk work."""
        return self.encode(*args, task="query", **kwargs)

    @same_arguments_as(encode)
    def encode_document(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors of documents: `encode` with their prompt, on the bulk lane."""
        return self.encode(*args, task="document", **kwargs)

    async def aencode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task: Task | None = None,
    ) -> Vectors:
        """Return what `encode` returns without blocking the event loop.

        Cancelling drops the texts that are not being computed yet.
        """
        call = self._calls.make(
            inputs, prompt_name, prompt, task, normalize_embeddings, truncate_dim
        )
        job = self._pipeline.open_job(len(call.texts), call.lane)
        try:
            if call.lane is Lane.QUERY:
                self._feed(job, call.texts, call.prompt)
            else:  # may have to wait for room in the queue
                await asyncio.to_thread(self._feed, job, call.texts, call.prompt)
            vectors = call.finish(await asyncio.wrap_future(job.future))
        finally:
            job.future.cancel()
        self._warn_truncated(job.truncated, len(job.truncated), stacklevel=3 if task is None else 4)
        return vectors

    @same_arguments_as(aencode)
    async def aencode_query(self, *args: Any, **kwargs: Any) -> Vectors:
        """Return what `encode_query` returns without blocking the event loop."""
        return await self.aencode(*args, task="query", **kwargs)

    @same_arguments_as(aencode)
    async def aencode_document(self, *args: Any, **kwargs: Any) -> Vectors:
        """Return what `encode_document` returns without blocking the event loop."""
        return await self.aencode(*args, task="document", **kwargs)

    def encode_stream(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task: Task | None = None,
    ) -> Iterator[Vectors]:
        """Yield the vector of every text, float32[D], in their order and in bounded memory.

        Texts are read a few thousand ahead of the vector that is yielded, no further. Leaving the
        loop drops what was read ahead.

        Raises:
            what `encode` raises; rows in messages count from the first text of the stream.
        """
        if isinstance(inputs, str):
            raise InputError("inputs is one str; encode_stream takes an iterable of texts")
        call = self._calls.make((), prompt_name, prompt, task, normalize_embeddings, truncate_dim)
        return self._stream(iter(inputs), call)

    def _stream(self, texts: Iterator[str], call: Call) -> Iterator[Vectors]:
        jobs: deque[Job] = deque()
        truncated: list[tuple[int, int]] = []
        num_read = num_truncated = 0
        try:
            while True:
                chunk = list(islice(texts, STREAM_JOB_TEXTS))
                if chunk:
                    jobs.append(self._pipeline.open_job(len(chunk), Lane.BULK, num_read))
                    self._feed(jobs[-1], chunk, call.prompt)
                    num_read += len(chunk)
                    if len(jobs) < STREAM_JOBS and not jobs[0].is_over:
                        continue  # read on while there is nothing to yield
                if not jobs:
                    break
                yield from call.finish(jobs[0].future.result())
                done = jobs.popleft()
                num_truncated += len(done.truncated)
                truncated = (truncated + done.truncated)[:TRUNCATED_ROWS_TOLD]
        finally:
            for job in jobs:
                job.future.cancel()
        self._warn_truncated(truncated, num_truncated, stacklevel=3)

    def submit(
        self, text: str, prompt_name: str | None = None, prompt: str | None = None
    ) -> Future[Vectors]:
        """Start a query and return the future of its vector, float32[D]; never blocks.

        Raises:
            QueueFullError: `max_queued_texts` queries wait already.
            InputError: the text cannot be tokenized.
        """
        if not isinstance(text, str):
            raise InputError(f"text = {text!r:.60}; submit takes one str, submit_batch takes many")
        call = self._calls.make(text, prompt_name, prompt, None, False, None)
        return self._submit(call)

    def submit_batch(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        task: Task | None = "document",
    ) -> Future[Vectors]:
        """Start bulk work and return the future of its vectors, float32[N, D].

        Blocks only while `max_queued_texts` texts wait. Keep two or three of these going and the
        engine never waits. Cut texts show in `stats()`; there is no warning.

        Raises:
            InputError: `texts` is a single str.
        """
        if isinstance(texts, str):
            raise InputError("texts is one str; submit_batch takes many, submit takes one")
        call = self._calls.make(texts, prompt_name, prompt, task, False, None)
        return self._submit(replace(call, lane=Lane.BULK))

    def _submit(self, call: Call) -> Future[Vectors]:
        job = self._pipeline.open_job(len(call.texts), call.lane)
        future: Future[Vectors] = Future()

        def resolve(done: Future[Vectors]) -> None:
            if future.set_running_or_notify_cancel():
                error = done.exception()
                if error is None:
                    future.set_result(call.finish(done.result()))
                else:
                    future.set_exception(error)

        self._feed(job, call.texts, call.prompt)
        job.future.add_done_callback(resolve)
        future.add_done_callback(lambda done: job.future.cancel() if done.cancelled() else None)
        return future

    def _feed(
        self,
        job: Job,
        texts: list[str],
        prompt: str,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._pipeline.feed(job, texts, partial(self._tokenizer, prompt=prompt), on_progress)

    def _warn_truncated(
        self, truncated: Sequence[tuple[int, int]], num_truncated: int, stacklevel: int
    ) -> None:
        if truncated and self.config.on_truncate == "warn":
            warnings.warn(
                f"{describe_truncated(truncated, num_truncated)}, cut at "
                f'{self.max_seq_length} tokens; split long texts, or pass on_truncate="ignore" '
                'or "error" to the Embedder',
                TruncationWarning,
                stacklevel=stacklevel,
            )

    # What it is.

    @property
    def max_seq_length(self) -> int:
        """Texts are cut at this many tokens, special tokens included; may be set."""
        return self._tokenizer.max_seq_tokens

    @max_seq_length.setter
    def max_seq_length(self, max_seq_tokens: int) -> None:
        limit = num_positions(self.spec)
        if self.spec.encoder.rope is not None:
            limit = self.spec.max_seq_tokens  # the engine was built for these positions
        check_length(max_seq_tokens, limit, self._tokenizer.num_special_tokens)
        self._tokenizer.max_seq_tokens = max_seq_tokens

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The model's tokenizer. It is shared with the Embedder's threads: do not configure it."""
        return self._rust_tokenizer

    def count_room(self, task: Task | None = None) -> int:
        """Return how many tokens a text may have before it is cut: the limit less what is added."""
        prompt = self.prompts.resolve(None, None, task)
        num_prompt_tokens = len(self._rust_tokenizer.encode(prompt, add_special_tokens=False).ids)
        return self.max_seq_length - self._tokenizer.num_special_tokens - num_prompt_tokens

    def get_embedding_dimension(self) -> int:
        """Return D, after `truncate_dim`."""
        return self._calls.truncate_dim or self.spec.embedding_dim

    get_sentence_embedding_dimension = get_embedding_dimension
    """The former name."""

    @property
    def similarity_fn_name(self) -> Similarity:
        """What `similarity` computes."""
        return self.config.similarity_fn_name or self.spec.similarity

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> NDArray[np.float32]:
        """Return float32[N, M]: how alike every pair of vectors is, higher is more.

        Args:
            embeddings1: float[N, D] or float[D].
            embeddings2: float[M, D] or float[D].
        """
        kind = self.config.similarity_fn_name or self.spec.similarity
        return similarity(kind, embeddings1, embeddings2)

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors may change; store it beside them. Reads all weights once."""
        return self._fingerprint(
            {
                "precision": "float32",
                "prompts": self.prompts.by_name,
                "default_prompt_name": self.prompts.default_name,
                "max_seq_length": self.max_seq_length,
                "truncate_dim": self._calls.truncate_dim,
            }
        )

    def task_prompt_name(self, task: Task) -> str | None:
        """Return the name of the prompt that `encode_query` or `encode_document` puts in front."""
        return self.prompts.task_name(task)

    def stats(self) -> Stats:
        """Return what was done so far: counts, times, idle and padding shares."""
        return self._pipeline.stats()

    # Life cycle.

    def close(self) -> None:
        """Fail what waits with EmbedderClosedError, finish what is computing, free the engine."""
        self._finalizer()

    def __enter__(self) -> Embedder:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: threads and engines stay where they are."""
        raise TypeError(
            "an Embedder cannot be pickled; send the model's name and a Config to the other "
            "process and make the Embedder there"
        )


def _one_config(config: Config | None, options: dict[str, Any]) -> Config:
    if config is None:
        return Config.from_options(options)
    if options:
        raise ConfigError(f"pass {', '.join(options)} inside config, or leave config out")
    return config
