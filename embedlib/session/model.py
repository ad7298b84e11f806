"""What a session runs: a model with its spec, tokenizer and engine; one around a given engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import tokenizers

from embedlib.config import Config, PrecisionName
from embedlib.engines.base import Engine
from embedlib.errors import EngineUnsupportedError
from embedlib.models.known_models import KnownModel
from embedlib.models.reading.files import ModelFiles
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.tensor_roles import ArraysByRole
from embedlib.session.ending import Close


class RunningModel(Protocol):
    """A model with the engine that runs it."""

    @property
    def spec(self) -> ModelSpec:
        """What the model is, with the length limit of the options."""

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """Shared by all threads."""

    @property
    def engine(self) -> Engine:
        """Computes one row for each sequence: a vector, or scores."""

    @property
    def known(self) -> KnownModel:
        """Settings of the model that its folder does not contain."""

    @property
    def precision(self) -> str:
        """The precision of the vectors and the layers excluded from it, for the fingerprint."""

    @property
    def profile(self) -> str:
        """How the engine computes, for `Stats`; empty: it has no choice."""

    @property
    def files(self) -> ModelFiles | None:
        """None for an engine without files, which then has no per-token vectors either."""

    def fingerprint(self, settings: Mapping[str, object]) -> str:
        """Return a string that changes whenever the vectors may change; reads all weights once.

        Precisions that passed the gate have the fingerprint of the one they were compared with.

        Args:
            settings: all settings, besides the model, that the vectors depend on, as JSON values.
        """

    def fingerprints(self, settings: Mapping[str, object]) -> tuple[str, ...]:
        """Return `fingerprint`, and others of stored vectors that may stand beside this model's."""

    def start_preparing(self) -> Close | None:
        """Start to measure faster precisions for later loads; return what ends it, None: nothing.

        Called once, when the model is ready. The work goes on in another process.
        """

    def fingerprint_in(
        self, precision: PrecisionName, settings: Mapping[str, object]
    ) -> str | None:
        """Return `fingerprint` with another option `precision`; None if it is unknown.

        Raises:
            ConfigError: there is no such precision.
        """

    def open_weights(self) -> ArraysByRole:
        """Map the weights; those of the modules after the pooling are float32."""

    def lower_tokens(self) -> Engine:
        """Make a second engine, which returns per-token vectors of the transformer.

        Raises:
            EngineUnsupportedError: this kind of engine has no per-token vectors.
            EngineBuildError: compiling failed.
        """

    def lower_queries(self) -> Engine:
        """Make the engine of `files.queries`, the table that sparse queries are looked up in."""


@dataclass(frozen=True, kw_only=True)
class ModelAroundEngine:
    """A `RunningModel` around an engine that the caller made, without files."""

    spec: ModelSpec
    tokenizer: tokenizers.Tokenizer
    engine: Engine
    known: KnownModel = field(default_factory=KnownModel)
    given_fingerprint: str = ""
    precision: str = "float32"
    profile: str = ""
    files: ModelFiles | None = None

    def fingerprint(self, settings: Mapping[str, object]) -> str:
        """Return the fingerprint that the caller passed."""
        del settings
        return self.given_fingerprint

    def fingerprints(self, settings: Mapping[str, object]) -> tuple[str, ...]:
        """Return the fingerprint that the caller passed."""
        return (self.fingerprint(settings),)

    def start_preparing(self) -> None:
        """Start nothing: there are no files to measure."""

    def fingerprint_in(self, precision: PrecisionName, settings: Mapping[str, object]) -> None:
        """Return None: only the caller can make an engine of another precision.

        Raises:
            ConfigError: there is no such precision.
        """
        Config(precision=precision)
        del settings

    def lower_tokens(self) -> NoReturn:
        """Raise, since there are no files to read.

        Raises:
            EngineUnsupportedError: always.
        """
        raise EngineUnsupportedError(
            "from_engine does not support per-token vectors; load the model by name or folder"
        )

    lower_queries = open_weights = lower_tokens
