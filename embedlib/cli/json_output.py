"""Prints JSON that every reader takes."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from embedlib.vectors.finite import finite


def as_json(content: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, characters as they are; NaN and infinity become null.

    Args:
        content: JSON values, and floats of any value.
        indent: the blanks of a level; None: everything on one line.
    """
    try:
        return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(finite(content), indent=indent, ensure_ascii=False)


def print_json(content: Any, *, indent: int | None = None) -> None:
    """Print a value as `as_json` writes it, unless the output cannot have its characters.

    The encoding of standard output may lack one, as UTF-8 lacks half of a surrogate pair: then all
    but ASCII are escaped.
    """
    text = as_json(content, indent=indent)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(finite(content), indent=indent)
    click.echo(text)
