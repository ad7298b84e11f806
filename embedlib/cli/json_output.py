"""Prints JSON that every reader takes."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from embedlib.vectors.finite import finite


def print_json(content: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON; fields of the input may have what JSON or the output has not.

    NaN and infinity become null. Characters are printed as they are, unless the encoding of
    standard output lacks one, as UTF-8 lacks half of a surrogate pair: then all but ASCII are
    escaped.

    Args:
        content: JSON values, and floats of any value.
        indent: the blanks of a level; None: everything on one line.
    """
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        content = finite(content)
        text = json.dumps(content, indent=indent, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(content, indent=indent)
    click.echo(text)
