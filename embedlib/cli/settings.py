"""Settings in the place of options that a command is not given: of the environment and of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from embedlib.errors import ConfigError
from embedlib.settings.environment import variable_of
from embedlib.system.user_folders import working_directory

if TYPE_CHECKING:
    from embedlib.settings.names import Setting

_SETTINGS = "embedlib.settings"


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


def take_setting(ctx: click.Context, option: click.Option) -> None:
    """Let the setting of an option hold, if there is one and the option is not given.

    Raises:
        ConfigError: its value is none of the option's.
    """
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


def take_model(ctx: click.Context, argument: click.Argument) -> None:
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
            f"directory: {working_directory()}; {found.said} sets the model); check the spelling"
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
