"""Arguments of the public methods: checks before the work, conversion to tensors after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np

from embedlib.batching.tokenizing.pair_forms import Pair
from embedlib.batching.tokenizing.refusals import check_text
from embedlib.checks import Kind
from embedlib.config import Config
from embedlib.errors import ConfigError, InputError, a_type, shown
from embedlib.models.prompts import Role
from embedlib.session.checked import KINDS
from embedlib.session.running import FIRST_ROW
from embedlib.settings.environment import environment_options

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MISSING_PROMPT = (
    "this model has different prompts for queries and documents, and encode adds neither; use "
    'encode_query and encode_document (--query and --document), or pass prompt="" (--prompt "") '
    "for texts as they are"
)
"""The message of a `PromptWarning`."""
ELEMENTS: Final = 1024
"""Of an array that become objects of Python at a time."""

_SHARED = (
    *("prepare", "prepare_seconds", "gpu_memory_fraction", "threads", "engine_cache_dir"),
    *("token", "cache_folder", "local_files_only"),
)
"""Options that are meant for the models beside an embedder as well. A precision is not, nor are
engine and device: sparse and late-interaction models may not have them."""


def one_config(config: Config | None, options: Mapping[str, object]) -> Config:
    """Return the options, which the caller passed as one object or by name.

    The environment sets options of the machine that are not among them; a Config is taken as it is.

    Raises:
        ConfigError: an option is unknown or out of range, or `config` and `options` are both given.
    """
    if config is None:
        return Config.from_options({**environment_options(options), **options})
    if not isinstance(config, Config):
        raise ConfigError(
            f"config = {shown(config)}; it must be a Config, or pass its fields by name"
        )
    if options:
        raise ConfigError(f"pass {', '.join(options)} inside config, or leave config out")
    return config


def config_beside(config: Config | None, *others: str) -> Config:
    """Return the options of a model that is loaded beside an embedder.

    Args:
        config: of the embedder: what it says of the machine and the hub is meant for both. None:
            the environment sets what it sets for a model of its own.
        others: options that this model has as well.

    Raises:
        ConfigError: the environment has an option that is out of range.
    """
    if config is None:
        return one_config(None, {})
    return Config(**{name: getattr(config, name) for name in (*_SHARED, *others)})


def check_texts(name: str, texts: object) -> tuple[list[str], bool]:
    """Return the texts, and whether the input was a single text.

    Raises:
        InputError: it is neither a str nor an ordered iterable, or it holds pairs.
    """
    if not isinstance(texts, str):
        texts = as_python(texts)  # of an array without a dimension its str
    if isinstance(texts, str):
        return [texts], True
    if isinstance(texts, Mapping) and "text_pair" in texts:
        _check_no_pairs([texts])
    _check_list(name, texts, "a text or a list of texts")
    rows = list(cast(Iterable[Any], texts))
    _check_no_pairs(rows)
    return rows, False


def check_each(name: str, texts: Sequence[object]) -> None:
    """Check all texts of a call before the first is computed: the last of a million may be NaN.

    Raises:
        InputError: one is not a str, or not valid Unicode.
    """
    for row, text in enumerate(texts, FIRST_ROW.get()):
        if type(text) is not str or not text.isascii():  # the call takes longer than this line
            check_text(f"{name} {row}", text)


def check_many(name: str, texts: object, hint: str) -> None:
    """Check that the texts are an ordered iterable of texts and not a single one.

    Raises:
        InputError: they are not; for a single text with the hint.
    """
    if isinstance(texts, str):
        raise InputError(f"{name} is one str; {hint}")
    _check_list(name, texts, "a list of texts")


def _check_no_pairs(texts: Sequence[object]) -> None:
    """Check the first text: sentence-transformers' `encode` takes pairs and dicts of texts, too.

    Raises:
        InputError: it is a list, a tuple, or a dict as sentence-transformers or the pipelines of
            transformers take it.
    """
    first = texts[0] if texts else None
    if isinstance(first, tuple | list):
        is_pair = len(first) == 2
    elif isinstance(first, Mapping) and "text" in first:
        is_pair = "text_pair" in first
    else:
        return
    how = ""
    if is_pair:
        how = (
            ": score pairs with Reranker.predict, join the two texts yourself, or pass an "
            "instruction as prompt="
        )
    elif isinstance(first, Mapping):
        how = ": pass each['text'] of the dicts"
    raise InputError(f"text 0 is {shown(first)}, {a_type(first)}; it must be a str{how}")


def _check_list(name: str, inputs: object, wanted: str) -> None:
    """Raise InputError unless the inputs are an ordered iterable, and no table."""
    if type(inputs) is list:  # as nearly always, and the checks below take microseconds
        return
    if is_table(inputs):
        how = f"for one column {name}['text']"
        if "pair" in wanted:
            how = f"for pairs of two columns list(zip({name}['a'], {name}['b']))"
        raise InputError(
            f"{name} is a {type(inputs).__name__}, a table, and iterating over it gives no texts; "
            f"pass {wanted}: {how}"
        )
    if not is_list(inputs):
        hint = f", such as list({name}.values())" if isinstance(inputs, Mapping) else ""
        if isinstance(inputs, bytes | bytearray):
            hint = f"; {name}.decode('utf-8') makes a text of bytes"
        raise InputError(f"{name} = {shown(inputs)}; pass {wanted}{hint}")


def one_of(inputs: T | None, sentences: T | None) -> T | None:
    """Return the argument that has two names, from whichever of them was used.

    Raises:
        ConfigError: both were used.
    """
    if inputs is not None and sentences is not None:
        raise ConfigError("inputs and sentences are two names of one argument; pass one")
    return inputs if sentences is None else sentences


def with_role(options: Mapping[str, Any], role: Role) -> dict[str, Any]:
    """Return the options of a method that sets the role.

    Raises:
        ConfigError: they name another role.
    """
    kind = Kind(f"{role!r} here, or left out; call encode for another", lambda each: each == role)
    if options.get("role") is not None:
        KINDS["role"].take("role", options["role"])
        kind.take("role", options["role"])
    return {**options, "role": role}


def as_tensors(vectors: Any, *, is_one: bool) -> Any:
    """Convert an array to a tensor, or with `is_one` false to a list of tensors.

    Raises:
        ConfigError: torch is not installed.
    """
    if is_one and isinstance(vectors, np.ndarray):
        return import_torch().from_numpy(vectors)
    return [as_tensors(item, is_one=True) for item in vectors]


def check_tensors(output_value: str) -> None:
    """Check, before the work, that an output can be tensors.

    Raises:
        ConfigError: it is weights by token id, or torch is not installed.
    """
    if output_value == "sparse":
        raise ConfigError(
            "convert_to_tensor=True and convert_to_numpy=False are for vectors, and "
            "output_value='sparse' returns a dict of token id to weight for each text; leave them "
            "out"
        )
    import_torch()


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
    if not isinstance(texts, Iterable) or isinstance(texts, no_list):
        return False
    # An array of one value without a dimension, np.array("text"), has __iter__, which raises.
    return not isinstance(texts, np.ndarray) or texts.ndim > 0


def is_table(inputs: object) -> bool:
    """Whether this is a DataFrame of any library, a table of pyarrow or a dataset.

    Iterating over a DataFrame of pandas gives the names of its columns, which are texts.
    """
    # Of the class: a Series of pandas has attributes named after its rows.
    return any(hasattr(type(inputs), name) for name in ("columns", "column_names"))


def as_python(inputs: T) -> T | list[Any]:
    """Return an array of numpy or Arrow as a list: iterating over it gives no str."""
    if isinstance(inputs, np.ndarray):
        return cast("list[Any]", inputs.tolist())  # a str if it has no dimension
    return list(elements(inputs)) if _is_of_arrow(inputs) else inputs


def elements(inputs: Any) -> Iterator[Any]:
    """Yield the texts of an iterable; those of an array as str."""
    if isinstance(inputs, np.ndarray):
        for start in range(0, len(inputs), ELEMENTS):
            yield from inputs[start : start + ELEMENTS].tolist()
    elif _is_of_arrow(inputs):
        yield from (item.as_py() for item in inputs)
    else:
        yield from inputs


def _is_of_arrow(inputs: object) -> bool:
    """Whether this is an array of pyarrow."""
    return hasattr(type(inputs), "to_pylist") and not is_table(inputs)


def check_documents(query: object, documents: Iterable[str]) -> list[str]:
    """Return the documents as a list.

    Raises:
        InputError: `query` is not a str, or `documents` is not an ordered iterable of texts.
    """
    if not isinstance(query, str):
        raise InputError(f"query = {shown(query)}; it must be a str")
    _check_list("documents", documents, "a list of texts")
    rows = list(elements(documents))
    check_each("document", rows)
    return rows


def check_pairs(inputs: object) -> tuple[list[Pair], bool]:
    """Return the pairs, and whether the input was a single pair.

    Raises:
        InputError: an item is not a pair of texts.
    """
    inputs = as_python(inputs)
    wanted = "a pair of texts or a list of pairs, or a query and its documents to rank"
    _check_list("inputs", inputs, wanted)
    items = list(cast(Iterable[Any], inputs))
    # As CrossEncoder: a list or tuple is a single pair if its first item is neither.
    is_single = (
        isinstance(inputs, (list, tuple))
        and bool(items)
        and not isinstance(items[0], (list, tuple))
    )
    pairs = [items] if is_single else items
    for row, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise InputError(f"pair {row} is {shown(pair)}; a pair is a list or tuple of two texts")
        for name, text in zip(("first", "second"), pair, strict=True):
            check_text(f"the {name} text of pair {row}", text)
    return [(pair[0], pair[1]) for pair in pairs], is_single
