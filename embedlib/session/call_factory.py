"""The arguments of an Embedder's methods, checked, to a call."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.usage import Usage
from embedlib.config import Config, VectorPrecision
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError
from embedlib.models.known_models import KnownModel
from embedlib.models.prompts import Prompts, Role
from embedlib.models.spec import ModelSpec
from embedlib.session.arguments import check_texts
from embedlib.session.call import EmbeddingCall, PromptArguments, VectorArguments
from embedlib.session.late_interaction import check_call
from embedlib.vectors.quantization import (
    calibrate,
    check_precision,
    load_ranges,
    may_be_of_unit_vectors,
)


class CallFactory:
    """Makes the calls of one Embedder from the arguments of its methods."""

    def __init__(
        self,
        spec: ModelSpec,
        config: Config,
        known: KnownModel,
        policy: BatchingPolicy = DEFAULT_POLICY,
    ) -> None:
        """Keep what all calls share.

        Raises:
            ConfigError: a prompt name, examples or ranges do not fit the model.
        """
        self._spec = spec
        self._max_query_texts = policy.max_query_texts
        self._adds_windows = config.on_truncate == "chunk"
        self._truncation = known.truncation
        self.prompts = Prompts(spec, config, known)
        self._is_sparse, self._is_late = spec.is_sparse, spec.late_interaction is not None
        if self._is_sparse:
            _check_sparse(config)
        self.max_active_dims = config.max_active_dims or spec.max_active_dims
        self._sets_active_dims = config.max_active_dims is not None
        self.truncate_dim = self._kept_dim(config.truncate_dim or spec.truncate_dim)
        self.ranges: NDArray[np.float32] | None = None
        """float32[2, D]: the ranges of vectors with the default `truncate_dim`."""
        self._has_unit_ranges: bool | None = None
        """Whether they are those of vectors of unit length; None: unknown."""
        if config.quantization_ranges is not None:
            dim = self.truncate_dim or spec.embedding_dim
            self.ranges = load_ranges(config.quantization_ranges, dim)
            self._has_unit_ranges = None if may_be_of_unit_vectors(self.ranges) else False

    def make(
        self,
        inputs: Any,
        tokenizer: Tokenizer,
        prompt: PromptArguments,
        vectors: VectorArguments = VectorArguments(),  # noqa: B008 - immutable
        usage: Usage | None = None,
    ) -> EmbeddingCall:
        """Check the arguments of a call and return it.

        Args:
            inputs: a text or an ordered iterable of texts.
            tokenizer: the one of the prompt's role, with its current length limit.
            prompt: chooses the prompt.
            vectors: choose the form of the vectors.
            usage: the call adds to it.

        Raises:
            InputError: as `check_texts`.
            ConfigError: an argument is out of range.
        """
        if self._is_sparse and vectors.output_value != "sparse":
            raise ConfigError(
                f"output_value = {vectors.output_value!r}; this model is sparse, it makes weights "
                "of tokens: call encode or submit_batch with output_value='sparse'"
            )
        if self._is_sparse:
            _check_sparse_call(vectors)
        texts, is_single = check_texts("inputs", inputs)
        lacks_prompt = prompt.are_empty and self.prompts.differ
        prompt = prompt.by_role()
        dim = self._kept_dim(vectors.truncate_dim or self.truncate_dim)
        normalizes = self._normalizes(vectors, dim)
        precision = vectors.precision or "float32"
        if self._is_late:
            check_call(prompt.role, vectors.truncate_dim, precision, vectors.max_active_dims)
        if precision != "float32":
            self._check_precision(precision, dim, normalizes)
        resolved = self.prompts.resolve(*prompt)
        return EmbeddingCall(
            texts=texts,
            lane=self.lane_of(len(texts), prompt.role),
            tokenize=partial(tokenizer, prompt=resolved),
            # Windows support only a prompt in front, and one vector per text.
            can_divide=not resolved.suffix and not self._is_late,
            usage=usage,
            tokenizer=tokenizer,
            prompt=resolved,
            is_single=is_single,
            lacks_prompt=lacks_prompt,
            truncate_dim=dim,
            truncation=self._truncation,
            normalizes=normalizes,
            precision=cast(VectorPrecision, precision),
            ranges=self.ranges,
            is_late=self._is_late,
            max_seq_tokens=tokenizer.max_seq_tokens,
            max_active_dims=vectors.max_active_dims or self.max_active_dims,
        )

    def calibrate(
        self, vectors: NDArray[np.float32], arguments: VectorArguments
    ) -> NDArray[np.float32]:
        """Set the ranges to those of float32[N, D], made by a call with `arguments`; return them.

        Raises:
            ConfigError: as `quantization.calibrate`.
        """
        self.ranges = calibrate(vectors)
        normalizes = self._normalizes(arguments, self.truncate_dim)
        self._has_unit_ranges = normalizes or self._spec.is_normalized
        return self.ranges

    def check_quantization(self, vectors: VectorArguments) -> None:
        """Refuse a precision of vectors that are quantized after their call, if it does not fit.

        Raises:
            ConfigError: the precision is unknown, or its ranges are missing or do not fit.
        """
        dim = self._kept_dim(vectors.truncate_dim or self.truncate_dim)
        precision = vectors.precision or "float32"
        self._check_precision(precision, dim, self._normalizes(vectors, dim))

    def settings(self) -> dict[str, object]:
        """Return all settings, besides the model, that the vectors depend on, as JSON values."""
        found = {**self.prompts.settings(), "truncate_dim": self.truncate_dim}
        # A setting without effect must not change the fingerprint.
        if self._adds_windows:
            found["on_truncate"] = "chunk"
        if self._sets_active_dims:
            found["max_active_dims"] = self.max_active_dims
        if self.truncate_dim is not None and self._truncation != "slice":
            found["truncation"] = self._truncation
        if self._spec.late_interaction is not None:
            found["late_interaction"] = asdict(self._spec.late_interaction)
        return found

    def _kept_dim(self, truncate_dim: int | None) -> int | None:
        """Return how many dimensions are kept; None where all are, and nothing is to be done.

        Source: sentence-transformers 6.2, `truncate_embeddings`, a slice, which may be too long.
        """
        if truncate_dim is not None and truncate_dim >= self._spec.embedding_dim:
            return None
        return truncate_dim

    def lane_of(self, num_texts: int, role: Role | None) -> Lane:
        """Return the lane of a call: a caller waits for one text, a backfill sends many."""
        is_query = role != "document" and num_texts == 1
        is_query |= role == "query" and num_texts <= self._max_query_texts
        return Lane.QUERY if is_query else Lane.BULK

    def _normalizes(self, vectors: VectorArguments, dim: int | None) -> bool:
        """Whether vectors of `dim` dimensions are scaled to unit length after the engine."""
        normalizes = bool(vectors.normalize_embeddings)
        if dim is not None or self._adds_windows:  # restores unit length
            normalizes |= self._spec.is_normalized
        return normalizes or (dim is not None and self._truncation == "layer_norm")

    def _check_precision(self, precision: str, dim: int | None, normalizes: bool) -> None:
        """Raise ConfigError if the precision is unknown or its ranges are missing or do not fit."""
        check_precision(precision, self.ranges)
        if precision not in ("int8", "uint8") or self.ranges is None:
            return
        num_ranges = self.ranges.shape[1]
        num_dims = dim or self._spec.embedding_dim
        # Truncating a vector and scaling it to unit length again changes all its numbers.
        if num_dims > num_ranges or (normalizes and num_dims < num_ranges):
            raise ConfigError(
                f"precision = {precision!r} with truncate_dim = {num_dims}: the ranges are those "
                f"of vectors with {num_ranges} dimensions; pass truncate_dim to the Embedder and "
                "calibrate it"
            )
        has_unit = self._has_unit_ranges
        if self._spec.is_normalized or has_unit in (None, normalizes):
            return
        # The ranges of longer vectors leave few codes to vectors of unit length.
        made = "unit length" if has_unit else "any length"
        raise ConfigError(
            f"precision = {precision!r} with normalize_embeddings = {normalizes}: the ranges are "
            f"those of vectors of {made}; calibrate with normalize_embeddings={normalizes}"
        )


def _check_sparse(config: Config) -> None:
    """Refuse options that have no meaning for a sparse model."""
    if config.on_truncate == "chunk":
        raise ConfigError(
            "on_truncate = 'chunk' makes means of vectors, and this model is sparse; divide long "
            "texts yourself, or pass 'warn', 'ignore' or 'error'"
        )
    if config.truncate_dim is not None:
        raise ConfigError(
            f"truncate_dim = {config.truncate_dim}; this model is sparse: max_active_dims keeps "
            "the greatest weights of a text"
        )


def _check_sparse_call(vectors: VectorArguments) -> None:
    """Raise ConfigError if a call of a sparse model has an argument for dense vectors."""
    given = {
        "precision": vectors.precision not in (None, "float32"),
        "truncate_dim": vectors.truncate_dim is not None,
        "normalize_embeddings": vectors.normalize_embeddings,
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{name} = {getattr(vectors, name)!r} is for dense vectors, and this model makes "
                "weights of tokens; leave it out, max_active_dims bounds their number"
            )
