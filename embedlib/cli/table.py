"""Prints two columns of text, the output format for people."""

from __future__ import annotations

from collections.abc import Iterable

import click

from embedlib.errors import visible

_MIN_NAME_WIDTH = 14


def print_table(rows: Iterable[tuple[str, str]]) -> None:
    """Print name and value of each row; further lines of a value are indented below it.

    Values may be of a model's files: what a terminal would obey is printed as an escape.
    """
    rows = list(rows)
    width = max(_MIN_NAME_WIDTH, *(len(name) for name, _ in rows))
    for name, value in rows:
        lines = visible(value).splitlines() or [""]
        click.echo(f"{name:<{width}} {lines[0]}".rstrip())
        for line in lines[1:]:
            click.echo(" " * (width + 1) + line)
