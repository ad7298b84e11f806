"""Click options made from `Config`: one name, type and default, kept in one place."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from embedlib.config import Config
from embedlib.engines.registry import engine_names

_F = TypeVar("_F", bound=Callable[..., Any])

MODEL_OPTIONS = ("revision", "token", "cache_folder", "local_files_only")
"""Options that decide which files are read."""
TEXT_OPTIONS = ("truncate_dim", "max_seq_tokens", "on_truncate")
"""Options that decide what a text's vector is."""
PAIR_OPTIONS = ("template", "max_seq_tokens", "on_truncate")
"""Options that decide what a pair's score is."""
ENGINE_OPTIONS = (
    "engine",
    "device",
    "precision",
    "gpu_memory_fraction",
    "threads",
    "max_batch_tokens",
    "max_inflight_batches",
    "engine_cache_dir",
)
"""Options that decide how it is computed."""

_HELP = {
    "revision": "Branch, tag or commit of a hub model.  [default: its default branch]",
    "token": "Hub token for private models; the variable HF_TOKEN keeps it out of process lists.",
    "cache_folder": "Folder for downloaded models.  [default: the hub's own cache]",
    "local_files_only": "Use downloaded files only; open no connection.",
    "truncate_dim": "Keep only this many leading numbers of each vector.  [default: the model's]",
    "max_seq_tokens": "Longest text in tokens.  [default: the model's own limit]",
    "on_truncate": "What to do with a longer text.",
    "template": "How a reranker is asked whose folder does not say; docs/rerank.md has the names.",
    "engine": "What computes; `embedlib doctor` shows what auto picks.",
    "device": "cpu, cuda:1, several with commas, or all.  [default: the engine's first]",
    "precision": "Numbers the model computes in; auto: the fastest one measured to be faithful.",
    "gpu_memory_fraction": "Share of a GPU's memory that the model may take.",
    "threads": "CPU threads.  [default: every usable core]",
    "max_batch_tokens": "Token budget of a batch.  [default: measured for the engine]",
    "max_inflight_batches": "Batches given to the engine at once.  [default: the engine's choice]",
    "engine_cache_dir": "Folder for compiled models.  [default: the platform's cache folder]",
}


def config_options(*names: str) -> Callable[[_F], _F]:
    """Decorate a command with the options of these `Config` fields."""

    def decorate(function: _F) -> _F:
        for option in reversed([_option(name) for name in names]):
            function = option(function)
        return function

    return decorate


def _option(name: str) -> Callable[[_F], _F]:
    field = next(field for field in dataclasses.fields(Config) if field.name == name)
    flag = f"--{name.replace('_', '-')}"
    # Only the registry knows the names of engines.
    kind = click.Choice(engine_names()) if name == "engine" else _kind(get_type_hints(Config)[name])
    if kind is bool:
        return click.option(flag, is_flag=True, default=field.default, help=_HELP[name])
    return click.option(
        flag,
        type=kind,
        default=field.default,
        # None means "decided later", which each help text says in words.
        show_default=field.default is not None,
        help=_HELP[name],
    )


def _kind(hint: Any) -> Any:
    """The click type of a field's type hint, told by its most special member."""
    members = _members(hint)
    for member in members:
        if get_origin(member) is Literal:
            return click.Choice([str(value) for value in get_args(member)])
    for kind, parameter in (
        (Path, click.Path(path_type=Path)),
        (str, str),
        (int, int),
        (float, float),
    ):
        if kind in members:
            return parameter
    return bool


def _members(hint: Any) -> Iterable[Any]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
