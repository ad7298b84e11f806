"""`embedlib config`: show the settings, and where each comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from embedlib.cli.table import print_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def config(context: click.Context, as_json: bool) -> None:
    """Show what is set, and where.

    Lists each setting with its value and the variable or file that it comes from; others have their
    defaults. Variables of one command's option follow; options that are given have precedence over
    all of them.
    """
    from embedlib.settings.environment import mistyped_variables
    from embedlib.settings.files import user_file
    from embedlib.settings.layers import project_file, read_settings
    from embedlib.settings.names import SECRETS, SETTINGS

    found = read_settings()
    read = {variable for *_, variable in _options_of_commands(context)}
    variables = dict(_variables_of_commands(context))
    project = project_file()
    for variable, known in mistyped_variables(others=read).items():
        click.echo(f"Warning: nothing reads {variable}; did you mean {known}?", err=True)
    values = {
        name: "(not shown)" if name in SECRETS else _shown(found[name].value)
        for name in SETTINGS
        if name in found
    }
    if as_json:
        content = {
            "settings": {
                name: {"value": value, "from": found[name].origin} for name, value in values.items()
            },
            "variables": variables,
            "project_file": None if project is None else str(project),
            "user_file": str(user_file()),
        }
        click.echo(json.dumps(content, indent=2))
        return
    if not values:
        click.echo("Nothing is set; all options have their defaults.")
    else:
        print_table((name, f"{value}  from {found[name].origin}") for name, value in values.items())
    if variables:
        click.echo()
        print_table(variables.items())
    click.echo()
    print_table(
        [
            ("project's file", str(project or "none here")),
            ("user's file", str(user_file()) + ("" if os.path.isfile(user_file()) else " (none)")),
        ]
    )


def _variables_of_commands(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the variables of one command's option that are set, with what each sets.

    Their values are not shown: a destination's URL may have a password.

    Raises:
        click.BadParameter: the option does not take the value.
        ConfigError: it is out of range.
    """
    from embedlib.cli.options import ConfigOption
    from embedlib.config import check_option

    for command, option, variable in _options_of_commands(context):
        of_command = click.Context(command, context.parent, command.name)
        if not option.resolve_envvar_value(of_command):
            continue
        name = str(option.name)
        given, source = option.consume_value(of_command, {})
        of_command.set_parameter_source(name, source)  # which a message about the value names
        value = option.type_cast_value(of_command, given)  # and no callback: one opens a file
        if isinstance(option, ConfigOption):
            check_option(name, value, variable)
        yield variable, f"sets {max(option.opts, key=len)} of embedlib {command.name}"


def _options_of_commands(
    context: click.Context,
) -> Iterator[tuple[click.Command, click.Option, str]]:
    """Yield the options of all commands that have a variable, with its name."""
    assert context.parent is not None
    commands = context.parent.command
    assert isinstance(commands, click.Group)
    for name in commands.list_commands(context.parent):
        command = commands.get_command(context.parent, name)
        assert command is not None, "a command that is listed exists"
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.envvar, str):
                yield command, option, option.envvar


def _shown(value: Any) -> Any:
    """Return a value as a command line takes it."""
    return ",".join(value) if isinstance(value, tuple) else value
