"""JSON that every reader takes, printed, or written to the file of `--json PATH`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import click

from embedlib.cli.paths import FilePath
from embedlib.vectors.finite import finite

Command = TypeVar("Command", bound=Callable[..., Any])

_STDOUT = "-"


def print_json(content: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON; NaN and infinity become null.

    Args:
        content: JSON values, and floats of any value.
        indent: the blanks of a level; None: everything on one line.
    """
    click.echo(_as_json(content, indent, getattr(sys.stdout, "encoding", None) or "utf-8"))


def _as_json(content: Any, indent: int | None, encoding: str) -> str:
    """Return a value as JSON, with its characters as they are if the encoding has all of them.

    UTF-8 lacks half of a surrogate pair.
    """
    content = finite(content)
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(content, indent=indent)
    return text


def json_option(command: Command) -> Command:
    """Add the option to a command."""
    return click.option(
        "--json",
        "json_path",
        type=FilePath(dir_okay=False),
        metavar="PATH",
        callback=_check_writable,
        help="Also write all measurements as JSON to this file; - writes them to standard output "
        "and the table to standard error.",
    )(command)


def _check_writable(_: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """Return a file that can be written; one that cannot fails now, not after the measuring."""
    if path is None or path == _STDOUT:
        return path
    if not Path(path).parent.is_dir():
        raise click.UsageError(f"--json {path!r}: no such folder; create it first")
    with _explaining(path):
        if Path(path).is_file():
            Path(path).open("ab").close()
        elif not Path(path).exists():  # what is there and no file is a pipe, or /dev/null
            with NamedTemporaryFile(dir=Path(path).parent):
                pass
    return path


def show(values: dict[str, Any], table: str, json_path: str | None) -> None:
    """Write the values as JSON if --json was given, and print the table.

    Where one of the two cannot be written, the other one is: they may be of hours.
    """
    try:
        if json_path == _STDOUT:
            print_json(values, indent=2)
        elif json_path is not None:
            text = _as_json(values, 2, "utf-8")
            with _explaining(json_path):
                Path(json_path).write_text(f"{text}\n", encoding="utf-8")
    finally:
        click.echo(table, err=json_path == _STDOUT)


@contextmanager
def _explaining(path: str) -> Iterator[None]:
    """Say which file cannot be written."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"cannot write {path}: {error.strerror}; give another file as --json"
        ) from error
