"""What a call asks for: its texts, its lane, and how its vectors are to look."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.sequence import Vectors
from embedlib.config import Config, VectorPrecision, is_count
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError, InputError
from embedlib.models.known_models import KnownModel, Truncation
from embedlib.models.prompts import ROLES, Examples, Prompt, Prompts, Role
from embedlib.models.spec import ModelSpec
from embedlib.vectors.modules import layer_norm
from embedlib.vectors.quantization import check_precision, load_ranges, quantize
from embedlib.vectors.similarity import normalize

MAX_QUERY_TEXTS = 16
"""`encode_query` with more texts than this is a backfill and goes to the bulk lane."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call's texts and how its vectors are to look."""

    texts: list[str]
    prompt: Prompt
    lane: Lane
    is_single: bool
    lacks_prompt: bool
    """Nothing says which prompt, and the model has one for queries and another for documents."""
    truncate_dim: int | None
    truncation: Truncation
    normalizes: bool
    precision: VectorPrecision
    ranges: NDArray[np.float32] | None
    """float32[2, D], for vectors in bytes."""

    @property
    def can_divide(self) -> bool:
        """Whether on_truncate="chunk" would divide its texts: not with a prompt on both sides."""
        return not self.prompt.suffix

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


class Calls:
    """Makes calls for one model."""

    def __init__(self, spec: ModelSpec, config: Config, known: KnownModel) -> None:
        """Take what holds for every call.

        Raises:
            ConfigError: a prompt name, examples, `truncate_dim` or ranges that do not fit the
                model.
        """
        self._spec = spec
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
        *,
        prompt_name: str | None,
        prompt: str | None,
        role: Role | None,
        task: str | None,
        examples: Examples | None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: str = "float32",
    ) -> Call:
        """Check the arguments that all ways of encoding share.

        Raises:
            InputError: `inputs` is neither a str nor several in an order.
            ConfigError: an argument is out of range.
        """
        if isinstance(inputs, np.ndarray):
            inputs = inputs.tolist()
        check_inputs(inputs)
        check_role(role)
        if role is None and task in ROLES:  # as sentence-transformers calls it
            role, task = task, None
        is_single = isinstance(inputs, str)
        texts = [inputs] if is_single else list(inputs)
        self.check_dim(truncate_dim)
        dim = truncate_dim or self.truncate_dim
        # One text at a time is how somebody asks who waits; a backfill sends many.
        is_query = role != "document" and len(texts) == 1
        is_query |= role == "query" and len(texts) <= MAX_QUERY_TEXTS
        normalizes = bool(normalize_embeddings)
        if dim is not None or self._adds_windows:  # what had unit length gets it again
            normalizes |= self._spec.is_normalized
        normalizes |= dim is not None and self._truncation == "layer_norm"
        self._check_precision(precision, dim, normalizes)
        names_nothing = prompt_name is None and prompt is None and role is None and task is None
        return Call(
            texts=texts,
            prompt=self.prompts.resolve(prompt_name, prompt, role, task, examples),
            lane=Lane.QUERY if is_query else Lane.BULK,
            is_single=is_single,
            lacks_prompt=names_nothing and self.prompts.differ,
            truncate_dim=dim,
            truncation=self._truncation,
            normalizes=normalizes,
            precision=cast(VectorPrecision, precision),
            ranges=self.ranges,
        )

    def settings(self) -> dict[str, object]:
        """Return all that decides the vectors beside the model, as JSON values."""
        found = {**self.prompts.settings(), "truncate_dim": self.truncate_dim}
        # Most models have none of these, and their fingerprints are older than these.
        if self._adds_windows:
            found["on_truncate"] = "chunk"
        if self.truncate_dim is not None and self._truncation != "slice":
            found["truncation"] = self._truncation
        return found

    def check_dim(self, truncate_dim: int | None) -> None:
        """Refuse dimensions the model does not have."""
        dim = self._spec.embedding_dim
        if truncate_dim is not None and not (is_count(truncate_dim) and 1 <= truncate_dim <= dim):
            raise ConfigError(f"truncate_dim = {truncate_dim!r:.60}; this model allows 1 to {dim}")

    def _check_precision(self, precision: str, dim: int | None, normalizes: bool) -> None:
        """Refuse a precision before the work, should it be unknown or its ranges missing."""
        check_precision(precision, self.ranges)
        if precision not in ("int8", "uint8") or self.ranges is None:
            return
        num_ranges = self.ranges.shape[1]
        num_dims = dim or self._spec.embedding_dim
        # Of vectors that are cut and get unit length again, all numbers are others.
        if num_dims > num_ranges or (normalizes and num_dims < num_ranges):
            raise ConfigError(
                f"precision = {precision!r} with truncate_dim = {num_dims}: the ranges are those "
                f"of vectors with {num_ranges} dimensions; pass truncate_dim to the Embedder and "
                "calibrate it"
            )


def check_inputs(inputs: object) -> None:
    """Refuse what is neither a text nor several in an order.

    Raises:
        InputError: it is not.
    """
    if isinstance(inputs, bytes | bytearray):  # else its numbers would be taken for texts
        raise InputError(f"inputs = {inputs!r:.60}, bytes; pass a str: inputs.decode('utf-8')")
    # A mapping would give its keys, a set no order.
    if not isinstance(inputs, Iterable) or isinstance(inputs, Mapping | set | frozenset):
        raise InputError(f"inputs = {inputs!r:.60}; pass a text or a list of texts")


def one_of(inputs: T | None, sentences: T | None) -> T | None:
    """Return the texts under the name that they came by.

    Raises:
        ConfigError: they came by both.
    """
    if inputs is not None and sentences is not None:
        raise ConfigError("inputs and sentences are two names of one argument; pass one")
    return inputs if sentences is None else sentences


def check_inert(batch_size: object, device: object, pool: object, chunk_size: object) -> None:
    """Refuse values of sentence-transformers' arguments that mean nothing here.

    Raises:
        ConfigError: one of them is another than there is here.
    """
    if not is_count(batch_size) or batch_size < 1:
        raise ConfigError(f"batch_size = {batch_size!r:.60}; it must be at least 1")
    check_only("device", device, None, "cpu")
    check_only("pool", pool, None)
    check_only("chunk_size", chunk_size, None)


def check_role(role: object) -> None:
    """Refuse a role that there is not."""
    if role is not None and role not in ROLES:
        raise ConfigError(f"role = {role!r}; it must be {' or '.join(map(repr, ROLES))}")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse an argument that has other values only."""
    if value not in allowed:
        raise ConfigError(f"{name} = {value!r}; it must be one of {', '.join(allowed)}")


def as_tensors(vectors: Any, *, is_one: bool) -> Any:
    """Return a tensor of an array, or with `is_one` false a list of them; dicts stay as they are.

    Raises:
        ConfigError: torch is not installed.
    """
    if isinstance(vectors, dict):
        return vectors
    if is_one and isinstance(vectors, np.ndarray):
        return import_torch().from_numpy(vectors)
    return [as_tensors(item, is_one=True) for item in vectors]


def check_only(name: str, value: object, *allowed: object) -> None:
    """Refuse an argument of sentence-transformers that has no other value here."""
    if value not in allowed:
        choices = " or ".join(map(repr, allowed))
        raise ConfigError(f"{name} = {value!r} is not supported; it must be {choices}")


def import_torch() -> Any:
    """Return the module torch.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            "convert_to_tensor=True and convert_to_numpy=False need torch, which is not "
            "installed; pip install torch, or leave them out"
        ) from error
    return torch


def same_arguments_as(
    method: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a method that passes everything on the signature of the one it passes it to."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return function

    return decorate
