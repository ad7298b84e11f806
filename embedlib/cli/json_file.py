"""`--json PATH` of commands that measure: the figures as a table, and as JSON in a file."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import click

from embedlib.cli.json_output import as_json, print_json
from embedlib.cli.paths import FilePath

Command = TypeVar("Command", bound=Callable[..., Any])

_STDOUT = "-"


def json_option(command: Command) -> Command:
    """Add the option to a command."""
    return click.option(
        "--json",
        "json_path",
        type=FilePath(),
        metavar="PATH",
        help="Also write all measurements as JSON to this file; - writes them to standard output "
        "and the table to standard error.",
    )(command)


def check_json_path(path: str | None) -> None:
    """Reject a file that cannot be written now, not after minutes of measuring.

    Raises:
        UsageError: it is a folder, or in a folder that does not exist.
        ClickException: it cannot be written.
    """
    if path is not None and not Path(path).parent.is_dir():
        raise click.UsageError(f"--json {path!r}: no such folder; create it first")
    if path is not None and os.path.isdir(path):
        raise click.UsageError(f"--json {path!r} is a folder; give a file")
    if path is None or path == _STDOUT:
        return
    with _explaining(path):
        if Path(path).is_file():
            Path(path).open("ab").close()
        elif not Path(path).exists():  # what is there and no file is a pipe, or /dev/null
            with NamedTemporaryFile(dir=Path(path).parent):
                pass


def show(values: dict[str, Any], table: str, json_path: str | None) -> None:
    """Print the table, and write the values as JSON if --json was given."""
    click.echo(table, err=json_path == _STDOUT)
    if json_path == _STDOUT:
        print_json(values, indent=2)
    elif json_path is not None:
        with _explaining(json_path):
            Path(json_path).write_text(as_json(values, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _explaining(path: str) -> Iterator[None]:
    """Say which file cannot be written."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"cannot write {path}: {error.strerror}; give another file as --json"
        ) from error
