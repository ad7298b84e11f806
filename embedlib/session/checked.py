"""The options of all public methods: what each takes, and the decorator of all these methods.

Options that two methods share have one name and one meaning, so one table is enough. Inputs (texts,
pairs, vectors) are checked by `arguments`, which names their rows.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, get_args

from embedlib.batching.usage import Usage
from embedlib.checks import (
    COUNT,
    SWITCH,
    TEXT,
    UNICODE,
    Kind,
    choice,
    is_number,
    is_sequence,
    optional,
    whole_number,
)
from embedlib.config import Config, VectorPrecision, device_name
from embedlib.errors import ClosedError, ConfigError, nearest
from embedlib.models.prompts import ROLES
from embedlib.session.foreign_names import instead_of_argument
from embedlib.threads.closing import end_left_behind, wait_left_behind

P = ParamSpec("P")
R = TypeVar("R")

OUTPUT_VALUES: Final = ("sentence_embedding", "token_embeddings", "sparse", "multi_vector")

INPUTS = frozenset(
    {
        *("inputs", "sentences", "texts", "text", "query", "documents", "chunks"),
        *("embeddings1", "embeddings2", "candidate_labels"),
    }
)
"""Parameters that are no options."""


def _is_cpu(device: object) -> bool:
    names = device if is_sequence(device) and device else [device]
    return all(isinstance(name, str) and name == "cpu" for name in map(device_name, names))


def _only_none(instead: str) -> Kind:
    return Kind(f"None; {instead}", lambda value: value is None)


KINDS: Final[Mapping[str, Kind]] = {
    "activation_fn": optional(
        Kind(
            "a name, a function or a module of torch",
            lambda value: isinstance(value, str) or callable(value),
        )
    ),
    "apply_softmax": optional(SWITCH),
    "batch_size": COUNT,
    "chunk_size": _only_none("batches are made by token budget"),
    "convert_to_numpy": SWITCH,
    "convert_to_tensor": SWITCH,
    "device": optional(
        Kind("None or 'cpu'; pass any other to the constructor, device='cuda:0'", _is_cpu)
    ),
    "examples": optional(Kind("a list of examples", is_sequence)),
    "hypothesis_template": UNICODE,
    "instruction": optional(UNICODE),
    "max_active_dims": optional(COUNT),
    "multi_label": SWITCH,
    "normalize_embeddings": SWITCH,
    "output_value": choice(*OUTPUT_VALUES),
    "pool": _only_none(
        "one process uses all cores, and several devices are an option of the constructor: "
        "device='cuda:0,cuda:1'"
    ),
    "precision": optional(choice(*get_args(VectorPrecision))),
    "processing_kwargs": Kind(
        "None; pass max_seq_tokens= to the constructor for max_length",
        lambda value: value is None or (isinstance(value, Mapping) and not value),
    ),
    "prompt": optional(UNICODE),
    "prompt_name": optional(
        TEXT,
        "a str, the name of a prompt; several texts are one list, and a query and its "
        "documents are for rank of a Reranker",
    ),
    "raw_scores": SWITCH,
    "return_documents": SWITCH,
    "role": optional(choice(*ROLES), " or ".join(map(repr, ROLES))),
    "show_progress_bar": optional(SWITCH, "True, False or None"),
    "task": optional(UNICODE),
    "timeout": optional(
        Kind(
            "a number of seconds, or None for no limit",
            lambda value: is_number(value) and 0 <= value <= threading.TIMEOUT_MAX,
        )
    ),
    "top_k": optional(whole_number(0), "a whole number of at least 0, or None for all"),
    "truncate_dim": optional(COUNT),
    "usage": optional(Kind("an embedlib.Usage", lambda value: isinstance(value, Usage))),
}
"""What each option takes."""


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Check the options of a public method before it runs, and end daemons that are left behind.

    The method raises TypeError for an argument that it lacks, with what to do instead or the
    nearest one that it has.

    Raises:
        TypeError: `KINDS` does not say what a parameter of the method takes.
    """
    names = tuple(inspect.signature(method).parameters)[1:]
    unknown = [name for name in names if name not in KINDS and name not in INPUTS]
    if unknown:
        raise TypeError(f"{method.__qualname__}: KINDS lacks {', '.join(unknown)}")

    def check(args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        for name, value in (*zip(names, args[1:], strict=False), *options.items()):
            if name not in names:
                hint = instead_of_argument(name) or nearest(name, names)
                raise TypeError(
                    f"{method.__qualname__}() got an unexpected keyword argument {name!r}; {hint}"
                )
            elif name in KINDS:
                KINDS[name].take(name, value)

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def run_async(*args: P.args, **options: P.kwargs) -> Any:
            check(args, options)
            try:
                return await method(*args, **options)
            except (ClosedError, RuntimeError) as error:  # the latter of `asyncio.to_thread`
                await wait_left_behind(error)
                raise

        return run_async  # type: ignore[return-value]

    @wraps(method)
    def run(*args: P.args, **options: P.kwargs) -> R:
        check(args, options)
        try:
            return method(*args, **options)
        except ClosedError:
            end_left_behind()
            raise

    return run


def with_model(init: Callable[P, None]) -> Callable[P, None]:
    """Check that a constructor is given a model; Python's own error would name `Session.__init__`.

    The constructor raises ConfigError if it is not.
    """

    @wraps(init)
    def run(*args: P.args, **options: P.kwargs) -> None:
        if len(args) < 2 and "model_name_or_path" not in options:
            others = ("config", "trust_remote_code")
            # Tells what another library calls the model.
            Config.from_options({name: options[name] for name in options if name not in others})
            raise ConfigError(
                f"{type(args[0]).__name__}() lacks a model; pass a folder, a pack, a hub name or "
                "package:NAME as its first argument"
            )
        init(*args, **options)

    return run
