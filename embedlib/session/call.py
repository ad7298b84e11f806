"""One call: its texts or pairs, its lane, and how the vectors of an embedding call look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.sequence import Job
from embedlib.batching.tokenizer import Tokenizer
from embedlib.batching.tokenizer_thread import Tokenize
from embedlib.batching.usage import Usage
from embedlib.config import Config, VectorPrecision, is_count
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError
from embedlib.models.known_models import KnownModel, Truncation
from embedlib.models.prompts import ROLES, Examples, Prompt, Prompts, Role
from embedlib.models.spec import ModelSpec
from embedlib.session.arguments import check_inputs, check_role
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.modules import layer_norm
from embedlib.vectors.quantization import check_precision, load_ranges, quantize
from embedlib.vectors.similarity import normalize


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a session computes: texts or pairs, and how they become sequences."""

    texts: Sequence[Any]
    """Or pairs of texts."""
    lane: Lane
    tokenize: Tokenize
    """Of the tokenizer at the start of the call, whose length limit the call keeps."""
    can_divide: bool = False
    """Whether on_truncate="chunk" would divide its texts."""
    usage: Usage | None = None
    """The caller's, to be filled before the result is returned."""

    def count(self, job: Job) -> None:
        """Add what a finished job of this call used to the caller's `Usage`, if there is one."""
        if self.usage is not None:
            job.add_to(self.usage)


@dataclass(frozen=True, kw_only=True)
class EmbeddingCall(Call):
    """A call of an Embedder, and how its vectors look."""

    tokenizer: Tokenizer
    prompt: Prompt
    is_single: bool
    lacks_prompt: bool
    """No argument chooses a prompt, and the model has different ones for queries and documents."""
    truncate_dim: int | None
    truncation: Truncation
    normalizes: bool
    precision: VectorPrecision
    ranges: NDArray[np.float32] | None
    """float32[2, D], for vectors in bytes."""

    def finish(self, vectors: Vectors) -> NDArray[Any]:
        """Turn float32[N, D] of the model into what the caller asked for."""
        if self.truncate_dim is not None:
            if self.truncation == "layer_norm":
                vectors = layer_norm(vectors)
            vectors = np.ascontiguousarray(vectors[:, : self.truncate_dim])
        if self.normalizes:
            vectors = normalize(vectors)
        finished = quantize(vectors, self.precision, self.ranges)
        return finished[0] if self.is_single else finished


class PromptArguments(NamedTuple):
    """The arguments of a call that choose its prompt, as `Embedder.encode` has them."""

    prompt_name: str | None = None
    prompt: str | None = None
    role: Role | None = None
    task: str | None = None
    examples: Examples | None = None

    @property
    def are_empty(self) -> bool:
        """Whether none of them chooses a prompt."""
        return self[:4] == (None,) * 4


class VectorArguments(NamedTuple):
    """The arguments of a call that say how its vectors look, as `Embedder.encode` has them."""

    normalize_embeddings: bool = False
    truncate_dim: int | None = None
    precision: str = "float32"


class CallFactory:
    """Makes the calls of one model from the arguments of its users."""

    def __init__(
        self,
        spec: ModelSpec,
        config: Config,
        known: KnownModel,
        policy: BatchingPolicy = DEFAULT_POLICY,
    ) -> None:
        """Take what holds for every call.

        Raises:
            ConfigError: a prompt name, examples, `truncate_dim` or ranges that do not fit the
                model.
        """
        self._spec = spec
        self._max_query_texts = policy.max_query_texts
        self._adds_windows = config.on_truncate == "chunk"
        self._truncation = known.truncation
        self.prompts = Prompts(spec, config, known)
        self.truncate_dim = config.truncate_dim or spec.truncate_dim
        self.check_dim(self.truncate_dim)
        self.ranges: NDArray[np.float32] | None = None
        """float32[2, D], of the vectors that a call without arguments gives."""
        if config.quantization_ranges is not None:
            dim = self.truncate_dim or spec.embedding_dim
            self.ranges = load_ranges(config.quantization_ranges, dim)

    def make(
        self,
        inputs: Any,
        tokenizer: Tokenizer,
        prompt: PromptArguments,
        vectors: VectorArguments = VectorArguments(),  # noqa: B008 - immutable
        usage: Usage | None = None,
    ) -> EmbeddingCall:
        """Check the arguments that all ways of encoding share.

        Args:
            inputs: a text or an ordered iterable of texts.
            tokenizer: that of the model, with the length limit of now.
            prompt: what chooses the prompt.
            vectors: how the vectors look.
            usage: to be filled by the call.

        Raises:
            InputError: `inputs` is neither a str nor an ordered iterable.
            ConfigError: an argument is out of range.
        """
        if isinstance(inputs, np.ndarray):
            inputs = inputs.tolist()
        check_inputs(inputs)
        check_role(prompt.role)
        lacks_prompt = prompt.are_empty and self.prompts.differ
        if prompt.role is None and prompt.task in ROLES:  # as sentence-transformers calls it
            prompt = prompt._replace(role=prompt.task, task=None)
        is_single = isinstance(inputs, str)
        texts = [inputs] if is_single else list(inputs)
        self.check_dim(vectors.truncate_dim)
        dim = vectors.truncate_dim or self.truncate_dim
        normalizes = self._normalizes(vectors, dim)
        self._check_precision(vectors.precision, dim, normalizes)
        resolved = self.prompts.resolve(*prompt)
        return EmbeddingCall(
            texts=texts,
            lane=self._lane(len(texts), prompt.role),
            tokenize=partial(tokenizer, prompt=resolved),
            can_divide=not resolved.suffix,  # windows have no place for a prompt on both sides
            usage=usage,
            tokenizer=tokenizer,
            prompt=resolved,
            is_single=is_single,
            lacks_prompt=lacks_prompt,
            truncate_dim=dim,
            truncation=self._truncation,
            normalizes=normalizes,
            precision=cast(VectorPrecision, vectors.precision),
            ranges=self.ranges,
        )

    def settings(self) -> dict[str, object]:
        """Return all that decides the vectors beside the model, as JSON values."""
        found = {**self.prompts.settings(), "truncate_dim": self.truncate_dim}
        # Left out where they have no effect: fingerprints of most models are older than these.
        if self._adds_windows:
            found["on_truncate"] = "chunk"
        if self.truncate_dim is not None and self._truncation != "slice":
            found["truncation"] = self._truncation
        return found

    def check_dim(self, truncate_dim: int | None) -> None:
        """Refuse a number of dimensions that the model does not have."""
        dim = self._spec.embedding_dim
        if truncate_dim is not None and not (is_count(truncate_dim) and 1 <= truncate_dim <= dim):
            raise ConfigError(f"truncate_dim = {truncate_dim!r:.60}; this model allows 1 to {dim}")

    def _lane(self, num_texts: int, role: Role | None) -> Lane:
        """Return the lane of a call: a caller with one text waits for it, a backfill sends many."""
        is_query = role != "document" and num_texts == 1
        is_query |= role == "query" and num_texts <= self._max_query_texts
        return Lane.QUERY if is_query else Lane.BULK

    def _normalizes(self, vectors: VectorArguments, dim: int | None) -> bool:
        """Whether vectors of `dim` dimensions are scaled to unit length after the model."""
        normalizes = bool(vectors.normalize_embeddings)
        if dim is not None or self._adds_windows:  # restores the unit length of the model's vectors
            normalizes |= self._spec.is_normalized
        return normalizes or (dim is not None and self._truncation == "layer_norm")

    def _check_precision(self, precision: str, dim: int | None, normalizes: bool) -> None:
        """Refuse a precision that is unknown, or whose ranges are missing, before the work."""
        check_precision(precision, self.ranges)
        if precision not in ("int8", "uint8") or self.ranges is None:
            return
        num_ranges = self.ranges.shape[1]
        num_dims = dim or self._spec.embedding_dim
        # Cutting a vector and scaling it to unit length again changes all its numbers.
        if num_dims > num_ranges or (normalizes and num_dims < num_ranges):
            raise ConfigError(
                f"precision = {precision!r} with truncate_dim = {num_dims}: the ranges are those "
                f"of vectors with {num_ranges} dimensions; pass truncate_dim to the Embedder and "
                "calibrate it"
            )
