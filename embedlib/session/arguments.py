"""Arguments of the public methods: checks before the work, conversion to tensors after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeGuard, TypeVar

import numpy as np

from embedlib.batching.pairs import Pair
from embedlib.config import Config, is_count
from embedlib.errors import ConfigError, InputError
from embedlib.models.prompts import ROLES

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MISSING_PROMPT = (
    "this model has different prompts for queries and documents, and encode adds neither; use "
    'encode_query and encode_document (--query and --document), or pass prompt="" for texts as '
    "they are"
)
"""The message of a `PromptWarning`."""


def one_config(config: Config | None, options: dict[str, Any]) -> Config:
    """Return the options, which the caller passed as one object or by name.

    Raises:
        ConfigError: an option is unknown or out of range, or `config` and `options` are both given.
    """
    if config is None:
        return Config.from_options(options)
    if not isinstance(config, Config):
        raise ConfigError(
            f"config = {config!r:.60}; it must be a Config, or pass its fields by name"
        )
    if options:
        raise ConfigError(f"pass {', '.join(options)} inside config, or leave config out")
    return config


def check_inputs(inputs: object) -> None:
    """Check that the inputs are a text or an ordered iterable of texts.

    Raises:
        InputError: it is neither.
    """
    if isinstance(inputs, bytes | bytearray):  # or its numbers would pass for texts
        raise InputError(f"inputs = {inputs!r:.60}, bytes; pass a str: inputs.decode('utf-8')")
    if not isinstance(inputs, str) and not is_list(inputs):
        raise InputError(f"inputs = {inputs!r:.60}; pass a text or a list of texts")


def one_of(inputs: T | None, sentences: T | None) -> T | None:
    """Return the argument that has two names, from whichever of them was used.

    Raises:
        ConfigError: both were used.
    """
    if inputs is not None and sentences is not None:
        raise ConfigError("inputs and sentences are two names of one argument; pass one")
    return inputs if sentences is None else sentences


def check_inert(batch_size: object, device: object, pool: object, chunk_size: object) -> None:
    """Check those arguments of sentence-transformers that have no effect here.

    Raises:
        ConfigError: a value asks for something that embedlib does not do.
    """
    if not is_count(batch_size) or batch_size < 1:
        raise ConfigError(f"batch_size = {batch_size!r:.60}; it must be at least 1")
    check_only("device", device, None, "cpu")
    check_only("pool", pool, None)
    check_only("chunk_size", chunk_size, None)


def check_role(role: object) -> None:
    """Raise ConfigError unless `role` is None, "query" or "document"."""
    if role is not None and role not in ROLES:
        raise ConfigError(f"role = {role!r}; it must be {' or '.join(map(repr, ROLES))}")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ConfigError unless the value is in `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{name} = {value!r}; it must be one of {', '.join(allowed)}")


def as_tensors(vectors: Any, *, is_one: bool) -> Any:
    """Convert an array to a tensor, or with `is_one` false to a list of tensors; keep dicts.

    Raises:
        ConfigError: torch is not installed.
    """
    if isinstance(vectors, dict):
        return vectors
    if is_one and isinstance(vectors, np.ndarray):
        return import_torch().from_numpy(vectors)
    return [as_tensors(item, is_one=True) for item in vectors]


def check_only(name: str, value: object, *allowed: object) -> None:
    """Raise ConfigError unless an argument of sentence-transformers has a value supported here."""
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
    """Give a method that passes on all its arguments the signature of the method it calls."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return function

    return decorate


def is_list(texts: object) -> TypeGuard[Iterable[Any]]:
    """Whether this is an ordered iterable other than a single text."""
    # Iterating over a mapping gives its keys; a set has no order.
    no_list = (str, bytes, bytearray, Mapping, set, frozenset)
    return isinstance(texts, Iterable) and not isinstance(texts, no_list)


def check_documents(query: object, documents: Iterable[str]) -> list[str]:
    """Return the documents as a list.

    Raises:
        InputError: `query` is not a str, or `documents` is not an ordered iterable.
    """
    if not isinstance(query, str):
        raise InputError(f"query = {query!r:.60}; it must be a str")
    if not is_list(documents):
        raise InputError(f"documents = {documents!r:.60}; pass a list of texts")
    return list(documents)


def check_pairs(inputs: object) -> tuple[list[Pair], bool]:
    """Return the pairs, and whether the input was a single pair.

    Raises:
        InputError: an item is not a pair.
    """
    if isinstance(inputs, np.ndarray):
        inputs = inputs.tolist()
    if not is_list(inputs):
        raise InputError(f"inputs = {inputs!r:.60}; pass a pair of texts or a list of pairs")
    items = list(inputs)
    # As CrossEncoder: a list or tuple is a single pair if its first item is neither.
    is_single = isinstance(inputs, (list, tuple)) and bool(items)
    is_single &= bool(items) and not isinstance(items[0], (list, tuple))
    pairs = [items] if is_single else items
    for row, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise InputError(f"pair {row} is {pair!r:.60}; a pair is a list or tuple of two texts")
    return [(pair[0], pair[1]) for pair in pairs], is_single


def check_texts(texts: object) -> tuple[list[str], bool]:
    """Return the texts, and whether the input was a single text.

    Raises:
        InputError: it is neither a str nor an ordered iterable.
    """
    if isinstance(texts, str):
        return [texts], True
    if not is_list(texts):
        raise InputError(f"texts = {texts!r:.60}; pass a text or a list of texts")
    return list(texts), False
