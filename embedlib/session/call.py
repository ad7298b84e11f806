"""One call: its texts or pairs, its lane, and the form of its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.sequence import Job
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.tokenizing.tokenizer_thread import Tokenize
from embedlib.batching.usage import Usage
from embedlib.config import VectorPrecision
from embedlib.engines.base import Lane
from embedlib.models.known_models import Truncation
from embedlib.models.prompts import ROLES, Examples, Prompt, Role
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.modules import layer_norm
from embedlib.vectors.quantization import quantize
from embedlib.vectors.similarity import normalize


@dataclass(frozen=True, kw_only=True)
class Call:
    """The input of a call: texts or pairs, and how they become sequences."""

    texts: Sequence[Any]
    """Texts, or pairs of texts."""
    lane: Lane
    tokenize: Tokenize
    """Uses the tokenizer at the start of the call, and so the length limit of that time."""
    can_divide: bool = False
    """Whether on_truncate="chunk" would divide long texts of this call."""
    usage: Usage | None = None
    """Passed by the caller; the call adds to it before it returns."""
    max_seq_tokens: int | None = None
    """The length limit of its texts, for messages; None: that of the session."""
    rows_per_text: int = 1
    """Consecutive pairs of one text of the caller, which `usage` counts as one."""
    waits_if_full: bool = False
    """Whether it becomes bulk work, which waits, where the queue of queries has no room for it."""

    def count(self, job: Job) -> None:
        """Add the counts and times of a finished job to `usage`, if there is one."""
        if self.usage is not None:
            job.add_to(self.usage)


@dataclass(frozen=True, kw_only=True)
class EmbeddingCall(Call):
    """A call of an Embedder, with the form of its vectors."""

    tokenizer: Tokenizer
    prompt: Prompt
    is_single: bool
    lacks_prompt: bool
    """No argument chooses a prompt, but the model has different ones for queries and documents."""
    truncate_dim: int | None
    truncation: Truncation
    normalizes: bool
    precision: VectorPrecision
    ranges: NDArray[np.float32] | None
    """float32[2, D]: for the precisions int8 and uint8."""
    max_active_dims: int | None = None
    """How many weights of a sparse vector are kept; None: all."""
    is_late: bool = False
    """Whether a row is float32[T, D], the vectors of T tokens."""

    def finish(self, vectors: Vectors) -> NDArray[Any]:
        """Convert float32[N, D] of the engine to the vectors that `encode` returns.

        Of a late-interaction model: the arrays of N texts to a list of them.
        """
        if self.is_late:
            rows = [normalize(row) if self.normalizes else row for row in vectors]
            # The types say what all other models return.
            return rows[0] if self.is_single else cast(NDArray[Any], rows)
        if self.truncate_dim is not None:
            if self.truncation == "layer_norm":
                vectors = layer_norm(vectors)
            vectors = np.ascontiguousarray(vectors[:, : self.truncate_dim])
        if self.normalizes:
            vectors = normalize(vectors)
        if self.precision != "float32":
            vectors = quantize(vectors, self.precision, self.ranges)
        return vectors[0] if self.is_single else vectors


class PromptArguments(NamedTuple):
    """The arguments of a call that choose its prompt, as in `Embedder.encode`."""

    prompt_name: str | None = None
    prompt: str | None = None
    role: Role | None = None
    task: str | None = None
    examples: Examples | None = None

    @property
    def are_empty(self) -> bool:
        """Whether none of them chooses a prompt; examples do not."""
        return self[:4] == (None,) * 4

    def by_role(self) -> PromptArguments:
        """Return them with the role as such, which sentence-transformers calls a task."""
        if self.role is None and self.task in ROLES:
            return self._replace(role=self.task, task=None)
        return self


class VectorArguments(NamedTuple):
    """The arguments of a call that choose the form of its vectors, as in `Embedder.encode`."""

    normalize_embeddings: bool = False
    truncate_dim: int | None = None
    precision: str | None = "float32"
    """None means float32, as in sentence-transformers."""
    output_value: str = "sentence_embedding"
    max_active_dims: int | None = None
