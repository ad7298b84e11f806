"""Session: a running model and its threads; what Embedder, Reranker and Classifier share.

Construction has three steps: `Session.__init__` (or `from_engine`) loads the model, `_open` of the
subclass makes its own parts, and `_start` starts the threads.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

import tokenizers

from embedlib.batching.callers import Callers
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.stats import Meter, Stats
from embedlib.batching.tokenizing.pairs import PairTokenizer
from embedlib.batching.tokenizing.refusals import WarnTruncated, describe_truncated
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.checks import SWITCH
from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.errors import CloseTimeoutError, ConfigError, TruncationWarning, shown
from embedlib.models.known_models import KnownModel
from embedlib.models.opening import check_length, limit_length, longest_sequence
from embedlib.models.spec import ModelSpec
from embedlib.session.arguments import one_config
from embedlib.session.call import Call
from embedlib.session.call_stack import stacklevel_of_caller
from embedlib.session.checked import checked, with_model
from embedlib.session.ending import Ending
from embedlib.session.foreign_names import StrictAttributes
from embedlib.session.loading import load_model
from embedlib.session.model import ModelAroundEngine, RunningModel
from embedlib.session.model_card import ModelCardData
from embedlib.session.running import arun, run
from embedlib.threads.closing import CLOSE_SECONDS
from embedlib.vectors.arrays import Vectors

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.session.signatures import ConfigOptions

AnySession = TypeVar("AnySession", bound="Session")


class Session(StrictAttributes):
    """Base of `Embedder`, `Reranker` and `Classifier`: loading, running, closing.

    Any number of threads may call any method. Close it, or use it as a context manager, to free the
    engine early; the end of the program does so too.
    """

    _has_head: ClassVar[bool] = False
    """Whether the model returns scores; it needs a head then."""
    _activity: ClassVar[str] = "Encoding"
    """The label of a progress bar."""

    _close_seconds: ClassVar[float] = CLOSE_SECONDS
    """Time limit of `close` where the caller cannot pass one: in a `with` block, by the garbage
    collector and at the end of the program."""

    model_name: str
    """The name that the model was loaded by."""
    spec: ModelSpec
    """What the model is, as its files say it."""
    config: Config
    """The options it was loaded with."""

    _tokenizer: Tokenizer | PairTokenizer

    @with_model
    def __init__(
        self,
        model_name_or_path: str | PathLike[str],
        *by_position: NoReturn,
        config: Config | None = None,
        trust_remote_code: bool = False,
        **options: Unpack[ConfigOptions],
    ) -> None:
        """Load a model.

        Args:
            model_name_or_path: a folder, a pack (docs/packs.md), a hub name, or `package:NAME` for
                a model that an installed Python package brings.
            by_position: raises; pass options by name.
            config: the options as one object; not together with `options`.
            trust_remote_code: ignored with a warning; sentence-transformers has it.
            **options: fields of `Config`, such as `revision`, `token`, `cache_folder`, `prompts`,
                `max_seq_tokens`, `threads`.

        Raises:
            ConfigError: an option is unknown, out of range or has no effect here.
            ModelNotFoundError: there is no such model.
            ModelUnsupportedError: a model file holds a value that embedlib does not implement.
            ModelWeightsError: the weights do not fit the model's configuration.
            EngineUnavailableError: the engine's library or device is missing.
        """
        if by_position:
            raise ConfigError(
                f"{shown(by_position)} behind the model; pass options by name, such as device='cpu'"
            )
        config = one_config(config, options)
        SWITCH.take("trust_remote_code", trust_remote_code)
        if trust_remote_code:
            self._warn(
                "trust_remote_code is ignored: embedlib never runs code from a model folder",
                UserWarning,
            )
        self._check_config(config)
        model = load_model(model_name_or_path, config, with_head=self._has_head)
        self._hold(str(model_name_or_path), model, config)

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
        policy: BatchingPolicy = DEFAULT_POLICY,
    ) -> AnySession:
        """Return a session around an engine that the caller made; the session owns and closes it.

        Args:
            engine: computes the batches.
            spec: describes the model.
            tokenizer: the model's tokenizer.
            config: the options; None: the default ones.
            fingerprint: the value of `fingerprint`.
            known: settings of the model that its folder does not contain; None: no such settings.
            policy: how texts are divided into batches.
        """
        session = cls.__new__(cls)
        try:
            config = one_config(config, {})
            session._check_config(config)
            spec = limit_length(spec, tokenizer, config)
        except BaseException:
            engine.close()
            raise
        model = ModelAroundEngine(
            spec=spec,
            tokenizer=tokenizer,
            engine=engine,
            given_fingerprint=fingerprint,
            known=known or KnownModel(),
        )
        session._hold(spec.encoder.family, model, config, policy)
        return session

    def _check_config(self, config: Config) -> None:
        """Raise ConfigError for options without effect; called before the model is loaded."""

    def _hold(
        self,
        name: str,
        model: RunningModel,
        config: Config,
        policy: BatchingPolicy = DEFAULT_POLICY,
    ) -> None:
        """Keep a model and call `_open`; closes its engine if that raises."""
        self.model_name = name
        self.spec = model.spec
        self.config = config
        self._model = model
        self._policy = policy
        self._callers = Callers()
        self._ending = Ending(self._callers)
        self._meter = Meter(perf_counter)
        # Without a reference to this object, which the garbage collector may close.
        self._start_pipeline = partial(
            Pipeline,
            meter=self._meter,
            max_queued_texts=config.max_queued_texts,
            policy=policy,
            callers=self._callers,
        )
        try:
            self._open()
        except BaseException:
            if "_pipeline" in vars(self):  # its threads have the engine, and free it
                self._ending.close_or_log(self._close_seconds)
            else:
                model.engine.close()
            raise

    def _open(self) -> None:
        """Make the parts of this class, `_tokenizer` among them, and call `_start` last."""
        raise NotImplementedError

    def _start(self) -> None:
        """Start the threads; `close` ends them before it closes the parts that `_open` made."""
        self._pipeline = self._start_pipeline(self._model.engine)
        self._ending.add(self._pipeline.close)
        end_preparing = self._model.start_preparing()
        if end_preparing is not None:
            self._ending.add(end_preparing)
        # Runs when the object is collected or at the end of the program, whichever comes first.
        self._finalizer = weakref.finalize(self, self._ending.close_collected, self._close_seconds)

    # Running.

    def _run(
        self, call: Call, show_progress_bar: bool | None, pipeline: Pipeline | None = None
    ) -> Vectors:
        """Run a call and wait for it, as `running.run`; without a pipeline on the main one."""
        warn = self._truncation_warning(call)
        return run(pipeline or self._pipeline, call, warn, show_progress_bar, self._activity)

    async def _arun(self, call: Call, pipeline: Pipeline | None = None) -> Vectors:
        """Do what `_run` does without blocking the event loop."""
        return await arun(pipeline or self._pipeline, call, self._truncation_warning(call))

    def _truncation_warning(self, call: Call) -> WarnTruncated:
        """Return a function that warns of truncated texts if on_truncate="warn"."""
        # The user may set it before the call ends.
        max_seq_length = call.max_seq_tokens or self.max_seq_length

        def warn(truncated: Sequence[tuple[int, int]], num_truncated: int) -> None:
            if truncated and self.config.on_truncate == "warn":
                chunk = '"chunk" (for the vector of a whole text), ' if call.can_divide else ""
                self._warn(
                    f"{describe_truncated(truncated, num_truncated)}, truncated to "
                    f"{max_seq_length} tokens; split long texts, or pass on_truncate={chunk}"
                    f'"ignore" or "error" to the {type(self).__name__} (--on-truncate)',
                    TruncationWarning,
                )

        return warn

    def _warn(self, message: str, category: type[Warning]) -> None:
        """Warn at the line that called embedlib, at any depth of the call stack."""
        warnings.warn(message, category, stacklevel=stacklevel_of_caller())

    # Properties of the model.

    @property
    def max_seq_length(self) -> int:
        """Texts are truncated to this many tokens, special tokens included.

        Queries keep their own limit where it is part of the model: with late interaction, and where
        a sparse model looks them up in a table.

        May be set at any time; calls in progress keep the limit they started with.
        """
        return self._tokenizer.max_seq_tokens

    @max_seq_length.setter
    def max_seq_length(self, max_seq_tokens: int) -> None:
        limit = longest_sequence(self.spec)
        check_length("max_seq_length", max_seq_tokens, limit, self._tokenizer.num_special_tokens)
        # Replaces the tokenizer instead of changing it: calls in progress keep the old one.
        self._tokenizer = self._tokenizer.with_limit(max_seq_tokens)

    def get_max_seq_length(self) -> int:
        """Return `max_seq_length`."""
        return self.max_seq_length

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The model's tokenizer, for reading; the engine's texts go through it.

        Configure a copy, `copy.deepcopy(embedder.tokenizer)`: with padding or truncation of its own
        calls end with a ConfigError.
        """
        return self._model.tokenizer

    @property
    def precision(self) -> str:
        """The precision that vectors or scores are computed in, and the layers excluded from it."""
        return self._model.precision

    def stats(self) -> Stats:
        """Return the totals since loading: counts, times, idle and padding shares; the profile."""
        return replace(self._pipeline.stats(), profile=self._model.profile)

    def eval(self: AnySession) -> AnySession:
        """Return this object: an evaluator of sentence-transformers ends training with it."""
        return self

    @property
    def model_card_data(self) -> ModelCardData:
        """For evaluators of sentence-transformers, which end by writing to it; keeps nothing."""
        return ModelCardData(model_name=self.model_name)

    # Life cycle.

    @checked
    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Fail queued calls with ClosedError, finish the batches in flight, free the engine.

        In a signal handler that interrupted a call this returns at once, and the model is closed
        when the handler has returned and the call has ended. In the callback of a future, too, it
        may return before the engine is freed. Call it again to wait for threads that still run.

        Args:
            timeout: seconds to wait for the model's threads; None: no limit.

        Raises:
            CloseTimeoutError: a thread still runs after that time, because a batch hangs. All open
                calls fail; the engine's memory is freed only when the batch ends.
        """
        self._finalizer.detach()
        self._ending.close_on_request(timeout)

    def __repr__(self) -> str:
        """Return the class and the model's name."""
        return f"{type(self).__name__}({self.model_name!r})"

    def __enter__(self: AnySession) -> AnySession:
        """Return this object."""
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, *exc_info: object) -> None:
        """Close; if an exception leaves the block, a timeout is logged and not raised."""
        try:
            self.close(self._close_seconds)
        except CloseTimeoutError as error:
            if exc_type is None:
                raise
            logging.getLogger(__name__).error("%s", error)

    async def __aenter__(self: AnySession) -> AnySession:
        """Return this object."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None = None, *exc_info: object
    ) -> None:
        """Close without blocking the event loop."""
        await asyncio.to_thread(self.__exit__, exc_type, *exc_info)
