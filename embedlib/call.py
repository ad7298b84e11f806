"""What a call asks for: its texts, its lane, and how its vectors are to look."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from embedlib.batching.sequence import Vectors
from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError, InputError
from embedlib.models.known_prompts import KnownPrompts
from embedlib.models.prompts import ROLES, Examples, Prompt, Prompts, Role
from embedlib.models.spec import ModelSpec
from embedlib.similarity import normalize

MAX_QUERY_TEXTS = 16
"""`encode_query` with more texts than this is a backfill and goes to the bulk lane."""

P = ParamSpec("P")
R = TypeVar("R")


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
    normalizes: bool

    def finish(self, vectors: Vectors) -> Vectors:
        """Turn float32[N, D] of the model into what the caller asked for."""
        if self.truncate_dim is not None:
            vectors = np.ascontiguousarray(vectors[:, : self.truncate_dim])
        if self.normalizes:
            vectors = normalize(vectors)
        return vectors[0] if self.is_single else vectors


class Calls:
    """Makes calls for one model."""

    def __init__(self, spec: ModelSpec, config: Config, known: KnownPrompts) -> None:
        """Take what holds for every call.

        Raises:
            ConfigError: a prompt name, examples or `truncate_dim` that the model does not have.
        """
        self._spec = spec
        self.prompts = Prompts(spec, config, known)
        self.truncate_dim = config.truncate_dim or spec.truncate_dim
        self.check_dim(self.truncate_dim)

    def make(
        self,
        inputs: str | Iterable[str] | None,
        *,
        prompt_name: str | None,
        prompt: str | None,
        role: Role | None,
        task: str | None,
        examples: Examples | None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Call:
        """Check the arguments that all ways of encoding share.

        Raises:
            InputError: `inputs` is neither a str nor iterable.
            ConfigError: an argument is out of range.
        """
        if not isinstance(inputs, Iterable):
            raise InputError(f"inputs = {inputs!r:.60}; pass a text or a list of texts")
        if role is not None and role not in ROLES:
            raise ConfigError(f"role = {role!r}; it must be {' or '.join(map(repr, ROLES))}")
        if role is None and task in ROLES:  # as sentence-transformers calls it
            role, task = task, None
        is_single = isinstance(inputs, str)
        texts = [cast(str, inputs)] if is_single else list(inputs)
        self.check_dim(truncate_dim)
        dim = truncate_dim or self.truncate_dim
        is_query = role != "document" and is_single
        is_query |= role == "query" and len(texts) <= MAX_QUERY_TEXTS
        names_nothing = prompt_name is None and prompt is None and role is None and task is None
        return Call(
            texts=texts,
            prompt=self.prompts.resolve(prompt_name, prompt, role, task, examples),
            lane=Lane.QUERY if is_query else Lane.BULK,
            is_single=is_single,
            lacks_prompt=names_nothing and self.prompts.differ,
            truncate_dim=dim,
            normalizes=normalize_embeddings or (dim is not None and self._spec.is_normalized),
        )

    def check_dim(self, truncate_dim: int | None) -> None:
        """Refuse dimensions the model does not have."""
        dim = self._spec.embedding_dim
        if truncate_dim is not None and not 1 <= truncate_dim <= dim:
            raise ConfigError(f"truncate_dim = {truncate_dim}; this model allows 1 to {dim}")


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
