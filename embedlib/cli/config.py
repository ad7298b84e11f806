"""`embedlib config`: show the settings, and where each comes from."""

from __future__ import annotations

import json
from typing import Any

import click

from embedlib.cli.table import print_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def config(as_json: bool) -> None:
    """Show what is set, and where.

    Lists each setting with its value and the variable or file that it comes from; others have their
    defaults. Options of a command have precedence over all of them.
    """
    from embedlib.settings.environment import mistyped_variables
    from embedlib.settings.files import user_file
    from embedlib.settings.layers import project_file, read_settings
    from embedlib.settings.names import SECRETS, SETTINGS

    found = read_settings()
    project = project_file()
    for variable, known in mistyped_variables().items():
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
            "project_file": None if project is None else str(project),
            "user_file": str(user_file()),
        }
        click.echo(
            json.dumps(
                content,
                indent=2,
            )
        )
        return
    if not values:
        click.echo("Nothing is set; all options have their defaults.")
    else:
        print_table((name, f"{value}  from {found[name].origin}") for name, value in values.items())
    click.echo()
    print_table(
        [
            ("project's file", str(project or "none here")),
            ("user's file", str(user_file()) + ("" if user_file().is_file() else " (none)")),
        ]
    )


def _shown(value: Any) -> Any:
    """Return a value as a command line takes it."""
    return ",".join(value) if isinstance(value, tuple) else value
