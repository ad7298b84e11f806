"""Makes click options from the fields of `Config`, with the same names, types and defaults."""

from __future__ import annotations

import dataclasses
import math
import os
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
from click.core import ParameterSource

from embedlib.cli.paths import FilePath
from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.settings.environment import variable_of
from embedlib.settings.names import TEXT_SETTINGS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from embedlib.settings.names import Setting

_SETTINGS = "embedlib.settings"
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
TEXT_OPTIONS = TEXT_SETTINGS
"""Options that determine the vector of a text."""
PATIENT_SECONDS = 60.0
"""`prepare_seconds` of commands that embed for long: a minute in half the speed costs more."""
PAIR_OPTIONS = ("template", "max_seq_tokens", "on_truncate")
"""Options that determine the score of a pair."""
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
                    _take_setting(ctx, parameter)
                elif isinstance(parameter, ModelArgument):
                    _take_model(ctx, parameter)
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
    if parameter.name in ENGINE_OPTIONS:
        return "Engine"
    if parameter.name in MODEL_OPTIONS:
        return "Model files"
    # click names the option of the help otherwise from version to version.
    if parameter.name in ("quiet", "debug") or "--help" in parameter.opts:
        return "General"
    return "Options"


def setting(ctx: click.Context, name: str) -> Setting | None:
    """Return what the environment or a file sets, read once in a command.

    Raises:
        ConfigError: a variable or a file has a wrong value.
    """
    if _SETTINGS not in ctx.meta:
        from embedlib.settings.layers import read_settings

        ctx.meta[_SETTINGS] = read_settings()
    found: Setting | None = ctx.meta[_SETTINGS].get(name)
    return found


def model_setting() -> str | None:
    """Return the model of a command for embeddings that is given none."""
    found = setting(click.get_current_context(), "model")
    return None if found is None else str(found.value)


def _take_setting(ctx: click.Context, option: ConfigOption) -> None:
    name = str(option.name)
    found = setting(ctx, name)
    if found is None or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
        return
    value = found.value
    if (name, value) == ("on_truncate", "chunk") and ctx.command.name != "encode":
        return  # scores have no mean, and `index` makes no such vectors for `search` to find
    if isinstance(value, list | tuple):  # the devices, which the option takes with commas
        value = ",".join(value)
    try:
        ctx.params[name] = option.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise ConfigError(f"{found.said}: {error.message}") from error


def _take_model(ctx: click.Context, argument: ModelArgument) -> None:
    """Put the setting in the place of a model that is missing.

    A file that is no pack is no model: with a model set, one in its place is the first input. Of a
    path that leads nowhere it cannot be told which of the two was meant.
    """
    given = ctx.params["model"]
    found = setting(ctx, "model")
    path = os.path.expanduser(given or "")
    is_input = "inputs" in ctx.params and (path == "-" or _is_no_pack(path))
    if is_input and found is None:
        raise click.UsageError(
            f"{path!r} is a file and no model; write the model in front of it, or set "
            f"{variable_of('model')}",
            ctx,
        )
    if is_input:
        ctx.params["inputs"] = (path, *ctx.params["inputs"])
        given = None
    elif found is not None and "inputs" in ctx.params and given and _leads_nowhere(path):
        raise ConfigError(
            f"{given!r} is not there, neither a file of texts nor a model folder (working "
            f"directory: {os.getcwd()!r}; {found.said} sets the model); check the spelling"
        )
    if not given:
        if found is None:
            raise missing_model(ctx, str(argument.name))
        ctx.params["model"] = found.value


def missing_model(ctx: click.Context, name: str) -> click.MissingParameter:
    """Return the error of a command that is given no model, as the argument of this name."""
    argument = next(each for each in ctx.command.params if each.name == name)
    said = f"It can also be set: {variable_of('model')}, or model in a file of settings."
    return click.MissingParameter(said, ctx, argument, "'MODEL'")


def _is_no_pack(path: str) -> bool:
    """Return whether there is a file that is no model in one file."""
    if not os.path.isfile(path):
        return False
    from embedlib.models.reading.pack_file import is_pack

    return not is_pack(Path(path))


def _leads_nowhere(path: str) -> bool:
    """Return whether this can only be the path of a file or a folder, and there is none."""
    from embedlib.indexing.sources.file_formats import FORMATS, suffix_of
    from embedlib.models.hub import may_be_on_hub
    from embedlib.models.python_packages import PACKAGE_PREFIX

    if path.startswith(PACKAGE_PREFIX) or os.path.exists(path):
        return False
    return suffix_of(path) in FORMATS or not may_be_on_hub(path)


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
