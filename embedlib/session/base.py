"""Session: a loaded model and the threads that run it; what Embedder and the others have in common.

A subclass says how its texts become sequences, and what it makes of the rows that come back.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar

import tokenizers

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Vectors
from embedlib.batching.stats import Meter, Stats
from embedlib.batching.tokenizer import WarnTruncated, describe_truncated
from embedlib.batching.tokenizer_thread import Tokenize
from embedlib.config import Config
from embedlib.engines.base import Engine, Lane
from embedlib.errors import ConfigError, TruncationWarning
from embedlib.models.known_models import KnownModel
from embedlib.models.spec import ModelSpec
from embedlib.session.caller import is_in_a_call, stacklevel_of_caller
from embedlib.session.foreign_names import FOREIGN_NAMES
from embedlib.session.loading import (
    LoadedModel,
    check_length,
    limit_length,
    load_model,
    num_positions,
)
from embedlib.session.progress import Progress

ASYNC_SLICE_TEXTS = 16
"""Queries, or documents to rank, that are tokenized on the event loop in one go: milliseconds."""

AnySession = TypeVar("AnySession", bound="Session")


class LengthLimited(Protocol):
    """What makes the sequences: `Tokenizer` or `PairTokenizer`."""

    @property
    def max_seq_tokens(self) -> int:
        """Sequences are cut at this many tokens."""

    @property
    def num_special_tokens(self) -> int:
        """Tokens added around what the caller gives."""

    def with_limit(self, max_seq_tokens: int) -> Any:
        """Return one that cuts at another length."""


class Session:
    """Base of `Embedder`, `Reranker` and `Classifier`: loading, running, the end.

    Any number of threads may call any method. Close it, or use it as a context manager, to free the
    engine early; the end of the program does so too.
    """

    _has_head: ClassVar[bool] = False
    """Whether the model ends in scores."""
    _activity: ClassVar[str] = "Encoding"
    """What a progress bar says."""

    _tokenizer: LengthLimited

    def __init__(
        self,
        model_name_or_path: str | PathLike[str],
        *by_position: NoReturn,
        config: Config | None = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model_name_or_path: a folder, a hub name, or `package:NAME` for a model that an
                installed Python package brings.
            by_position: nothing; options have names.
            config: the options as one object; not together with `options`.
            trust_remote_code: accepted for sentence-transformers' sake; embedlib never runs it.
            **options: fields of `Config`, such as `revision`, `token`, `cache_folder`, `prompts`,
                `max_seq_tokens`, `threads`.

        Raises:
            ConfigError: an option is unknown, out of range or of no use here.
            ModelNotFoundError: there is no such model.
            ModelUnsupportedError: a model file says something embedlib does not implement.
            ModelWeightsError: the weights do not fit the model's configuration.
            EngineUnavailableError: the engine's library or device is missing.
        """
        if by_position:
            raise ConfigError(
                f"{by_position!r:.60} behind the model; pass options by name, such as device='cpu'"
            )
        config = _one_config(config, options)
        if trust_remote_code:
            self._warn(
                "trust_remote_code is ignored: embedlib never runs code from a model folder",
                UserWarning,
            )
        self._check_config(config)
        model = load_model(model_name_or_path, config, with_head=self._has_head)
        self._open(str(model_name_or_path), model, config)

    @classmethod
    def from_engine(
        cls: type[AnySession],
        engine: Engine,
        spec: ModelSpec,
        tokenizer: tokenizers.Tokenizer,
        config: Config | None = None,
        *,
        fingerprint: str = "",
        known: KnownModel | None = None,
    ) -> AnySession:
        """Put one around an engine of your own, which it owns from then on and closes.

        Args:
            engine: what computes.
            spec: the model.
            tokenizer: of the model.
            config: the options; None: the default ones.
            fingerprint: what `fingerprint` returns.
            known: what is known of the model beside its folder; None: nothing.
        """
        config = config or Config()
        session = cls.__new__(cls)
        session._check_config(config)
        model = LoadedModel(
            spec=limit_length(spec, tokenizer, config),
            tokenizer=tokenizer,
            engine=engine,
            fingerprint=lambda _: fingerprint,
            known=known or KnownModel(),
        )
        session._open(spec.encoder.family, model, config)
        return session

    def _check_config(self, config: Config) -> None:
        """Refuse options that are of no use here, before a model is loaded."""

    def _prepare(self, meter: Meter) -> None:
        """Make what is needed beside the pipeline, `_tokenizer` at least; no thread runs yet."""
        raise NotImplementedError

    def _open(self, name: str, model: LoadedModel, config: Config) -> None:
        try:
            self._start(name, model, config)
        except BaseException:  # an option that does not fit this model
            model.engine.close()
            raise

    def _start(self, name: str, model: LoadedModel, config: Config) -> None:
        self.model_name = name
        self.spec = model.spec
        self.config = config
        self._fingerprint = model.fingerprint
        self._rust_tokenizer = model.tokenizer
        meter = Meter(perf_counter)
        self._resources = ExitStack()
        """What is to be closed."""
        self._prepare(meter)
        self._pipeline = Pipeline(model.engine, meter, max_queued_texts=config.max_queued_texts)
        self._resources.callback(self._pipeline.close)
        # Runs when the object is collected and at the end of the program, whichever comes first.
        self._finalizer = weakref.finalize(self, _close_collected, self._resources)

    # Running.

    def _run(
        self,
        items: Sequence[Any],
        lane: Lane,
        tokenize: Tokenize,
        show_progress_bar: bool | None,
        pipeline: Pipeline | None = None,
        *,
        can_divide: bool = False,
    ) -> Vectors:
        """Return the engine's rows for texts or pairs.

        Args:
            items: the texts or pairs.
            lane: who is waiting.
            tokenize: makes the sequences.
            show_progress_bar: None shows one on a terminal when it takes longer than 2 seconds.
            pipeline: None: that of the model.
            can_divide: whether on_truncate="chunk" is a remedy for texts that are too long.
        """
        warn_truncated = self._truncation_warning(can_divide=can_divide)
        pipeline = pipeline or self._pipeline
        pipeline.check_may_wait()
        job = pipeline.open_job(len(items), lane)
        with Progress(job, show_progress_bar, self._activity) as progress:
            pipeline.feed(job, items, tokenize, progress.update)
            vectors = progress.wait()
        warn_truncated(job.truncated, len(job.truncated))
        return vectors

    async def _arun(
        self,
        items: Sequence[Any],
        lane: Lane,
        tokenize: Tokenize,
        *,
        can_divide: bool = False,
    ) -> Vectors:
        """Return what `_run` returns without blocking the event loop."""
        warn_truncated = self._truncation_warning(can_divide=can_divide)
        job = self._pipeline.open_job(len(items), lane)
        try:
            if lane is Lane.QUERY:
                for first_row in range(0, len(items), ASYNC_SLICE_TEXTS):
                    if first_row:
                        await asyncio.sleep(0)  # the event loop's other tasks have their turn
                    part = items[first_row : first_row + ASYNC_SLICE_TEXTS]
                    self._pipeline.feed_queries(job, first_row, part, tokenize)
            else:  # may have to wait for room in the queue
                await asyncio.to_thread(self._pipeline.feed, job, items, tokenize)
            vectors = await asyncio.wrap_future(job.future)
        finally:
            job.future.cancel()  # cancelled: what is not being computed yet is dropped
        warn_truncated(job.truncated, len(job.truncated))
        return vectors

    def _truncation_warning(self, *, can_divide: bool) -> WarnTruncated:
        """Return what warns at the end of a call of texts that were cut, if that is wanted."""
        max_seq_length = self.max_seq_length  # may be another one by then
        choices = '"ignore" or "error"'
        if can_divide:
            choices = f'"chunk" (for the vector of a whole text), {choices}'

        def warn(truncated: Sequence[tuple[int, int]], num_truncated: int) -> None:
            if truncated and self.config.on_truncate == "warn":
                self._warn(
                    f"{describe_truncated(truncated, num_truncated)}, cut at {max_seq_length} "
                    f"tokens; split long texts, or pass on_truncate={choices} to the "
                    f"{type(self).__name__}",
                    TruncationWarning,
                )

        return warn

    def _warn(self, message: str, category: type[Warning]) -> None:
        """Warn where embedlib was called, however deep inside this is."""
        warnings.warn(message, category, stacklevel=stacklevel_of_caller())

    # What it is.

    @property
    def max_seq_length(self) -> int:
        """Texts are cut at this many tokens, special tokens included.

        May be set at any time; calls that have begun keep the limit they began with.
        """
        return self._tokenizer.max_seq_tokens

    @max_seq_length.setter
    def max_seq_length(self, max_seq_tokens: int) -> None:
        check_length(max_seq_tokens, self._length_limit, self._tokenizer.num_special_tokens)
        # Put in its place, not changed: calls that have begun hold the one they began with.
        self._tokenizer = self._tokenizer.with_limit(max_seq_tokens)

    def get_max_seq_length(self) -> int:
        """Return `max_seq_length`."""
        return self.max_seq_length

    @property
    def _length_limit(self) -> int:
        """The longest sequence there can be."""
        if self.spec.encoder.rope is not None:
            return self.spec.max_seq_tokens  # the engine was built for these positions
        return num_positions(self.spec)

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The model's tokenizer. It is shared with other threads: do not configure it."""
        return self._rust_tokenizer

    def stats(self) -> Stats:
        """Return what was done so far: counts, times, idle and padding shares."""
        return self._pipeline.stats()

    # Life cycle.

    def close(self) -> None:
        """Fail what waits with ClosedError, finish what is computing, free the engine.

        The handler of a signal that came in the middle of a call does not wait for that: it happens
        once the handler has returned and the call has ended.
        """
        if not self._finalizer.detach():
            return
        if is_in_a_call():
            threading.Thread(target=self._resources.close, name="embedlib-close").start()
        else:
            self._resources.close()

    def __repr__(self) -> str:
        """Name the model."""
        return f"{type(self).__name__}({self.model_name!r})"

    def __enter__(self: AnySession) -> AnySession:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    if not TYPE_CHECKING:  # or every name would be right

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to use instead of a name of another library."""
            hint = f"; {FOREIGN_NAMES[name]}" if name in FOREIGN_NAMES else ""
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{hint}")

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: threads and engines stay where they are."""
        kind = type(self).__name__
        raise TypeError(
            f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind} cannot be pickled; send the model's "
            f"name and a Config to the other process and make the {kind} there"
        )


def _close_collected(resources: ExitStack) -> None:
    """Close what belonged to a model that nobody has any more, or whose program ends.

    The garbage collector works on any thread. One of our own would wait for itself.
    """
    if threading.current_thread().name.startswith("embedlib-"):
        threading.Thread(target=resources.close, name="embedlib-close", daemon=True).start()
    else:
        with suppress(KeyboardInterrupt):  # Ctrl-C once more, while the program ends
            resources.close()


def _one_config(config: Config | None, options: dict[str, Any]) -> Config:
    if config is None:
        return Config.from_options(options)
    if not isinstance(config, Config):
        raise ConfigError(
            f"config = {config!r:.60}; it must be a Config, or pass its fields by name"
        )
    if options:
        raise ConfigError(f"pass {', '.join(options)} inside config, or leave config out")
    return config
