"""Makes click options from the fields of `Config`, with the same names, types and defaults."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from embedlib.cli.paths import FilePath
from embedlib.cli.settings import take_model, take_setting
from embedlib.config import Config

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_F = TypeVar("_F", bound=Callable[..., Any])


class Share(click.FloatRange):
    """A number from 0 to 1. Of nan, click's own type finds neither that it is below nor above."""

    def __init__(self) -> None:
        """Create the type."""
        super().__init__(0, 1)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; fails for any other value."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range 0<=x<=1.", param, ctx)
        return number


MODEL_OPTIONS = ("revision", "token", "cache_folder", "local_files_only")
"""Options that determine which files are read."""
PATIENT_SECONDS = 60.0
"""`prepare_seconds` of commands that embed for long: a minute in half the speed costs more."""
ENGINE_OPTIONS = (
    "engine",
    "device",
    "precision",
    "prepare",
    "prepare_seconds",
    "gpu_memory_fraction",
    "threads",
    "max_batch_tokens",
    "max_inflight_batches",
    "engine_cache_dir",
)
"""Options that determine how vectors and scores are computed."""

_HELP = {
    "revision": "Branch, tag or commit of a hub model.  [default: its default branch]",
    "token": "Hub token for private models; the variable HF_TOKEN hides it from process lists.",
    "cache_folder": "Folder for downloaded models.  [default: the hub's own cache]",
    "local_files_only": "Use downloaded files only; open no connection.",
    "truncate_dim": "Keep only this many first dimensions of a vector; all, if it has fewer.  "
    "[default: the model's own]",
    "max_active_dims": "Keep only this many weights of a sparse vector, the greatest; the same in "
    "every load and search of a destination.  [default: the sparse model's own]",
    "max_seq_tokens": "Maximum tokens of a text.  [default: the model's own limit]",
    "on_truncate": "What to do with a longer text. warn: truncate it and warn; ignore: truncate "
    "it; error: stop; chunk: average the vectors of its parts (embeddings only).",
    "template": "Template of a reranker whose files have none, such as qwen3-reranker; "
    "docs/rerank.md lists the names.",
    "engine": "Engine that computes; `embedlib doctor` shows which one auto picks.",
    "device": "cpu, cuda, cuda:N, several with commas, or all.  [default: the engine's first]",
    "precision": "Precision to compute in; auto: the fastest one that passed the fidelity gate.",
    "prepare": "With --precision auto: measure at the first load on a machine which faster "
    "precision passes the gate.",
    "prepare_seconds": "Seconds that the first load of a model waits at most for what --prepare "
    "measures; 0: none. What takes longer is measured beside the work.",
    "gpu_memory_fraction": "Share of a GPU's memory that the model may take.",
    "threads": "CPU threads.  [default: all usable cores]",
    "max_batch_tokens": "Maximum tokens of a batch.  [default: the engine's measured best]",
    "max_inflight_batches": "Maximum bulk batches in flight.  [default: the engine's choice]",
    "engine_cache_dir": "Folder for engine directories (compiled models).  [default: embedlib's "
    "folder in the user's cache]",
}


class EngineNameType(click.Choice[str]):
    """The name of an engine: embedlib's own or one of another package.

    The names are read when a command needs them and not when it is defined, since that reads the
    metadata of every installed package.
    """

    def __init__(self) -> None:
        """Take the names of this machine's engines."""
        self.case_sensitive = True

    @cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names, `auto` first."""
        from embedlib.engines.registry import engine_names

        return engine_names()


class TitledOption(click.Option):
    """An option with others below a title in the help of its command."""

    def __init__(self, *names: Any, title: str, **settings: Any) -> None:
        """Take the title beside what `click.Option` takes."""
        super().__init__(*names, **settings)
        self.title = title


class ConfigOption(click.Option):
    """An option that is a field of `Config`: where it is not given, its setting holds."""


class ModelArgument(click.Argument):
    """The embedding model, as an argument; where it is not given, the setting `model` holds."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Let the shell offer folders, and files, which may be the first of the inputs."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class GroupedCommand(click.Command):
    """A command whose help has the options of its own first, and those of all models below."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; settings take the places of options that are not given."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:  # a completion must not fail
            for parameter in self.params:
                if isinstance(parameter, ConfigOption):
                    take_setting(ctx, parameter)
                elif isinstance(parameter, ModelArgument):
                    take_model(ctx, parameter)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups of options that the command has."""
        parameters = self.get_params(ctx)
        own = [each.title for each in parameters if isinstance(each, TitledOption)]
        titles = ("Options", *own, "Engine", "Model files", "General")
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            # Of an argument, too, since click 8.5.1; the usage line has them.
            if record is not None and not isinstance(parameter, click.Argument):
                groups[_group(parameter)].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _group(parameter: click.Parameter) -> str:
    if isinstance(parameter, TitledOption):
        return parameter.title
    if isinstance(parameter, ConfigOption) and parameter.name in (*ENGINE_OPTIONS, *MODEL_OPTIONS):
        return "Engine" if parameter.name in ENGINE_OPTIONS else "Model files"
    # click names the option of the help otherwise from version to version.
    if parameter.name in ("quiet", "debug") or "--help" in parameter.opts:
        return "General"
    return "Options"


class Decorator(Protocol):
    """Adds one option or several to a command."""

    def __call__(self, function: _F, /) -> _F:
        """Return the command with them."""


def decorated(*options: Decorator) -> Decorator:
    """Return a decorator that adds all of these options, in their order."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def config_options(*names: str, **defaults: Any) -> Decorator:
    """Decorate a command with the options of these `Config` fields.

    Args:
        *names: the fields.
        **defaults: those whose default is another one in this command.
    """
    return decorated(*(_option(name, defaults) for name in names))


def _option(name: str, defaults: Mapping[str, Any]) -> Decorator:
    field = next(field for field in dataclasses.fields(Config) if field.name == name)
    flag = f"--{name.replace('_', '-')}"
    kind = EngineNameType() if name == "engine" else _kind(get_type_hints(Config)[name])
    if kind is bool:
        if field.default is True:
            flag = f"{flag}/--no-{flag.removeprefix('--')}"
        return click.option(
            flag, cls=ConfigOption, is_flag=True, default=field.default, help=_HELP[name]
        )
    return click.option(
        flag,
        cls=ConfigOption,
        type=kind,
        default=defaults.get(name, field.default),
        help=_HELP[name],
    )


def _kind(hint: Any) -> Any:
    """Return the click type for a field's type hint, chosen by its most specific member."""
    members = _members(hint)
    for member in members:
        if get_origin(member) is Literal:
            return click.Choice([str(value) for value in get_args(member)])
    for kind, parameter in (
        (Path, FilePath(path_type=Path)),
        (str, str),
        (int, int),
        (float, float),
    ):
        if kind in members:
            return parameter
    return bool


def _members(hint: Any) -> Iterable[Any]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
