"""Options that say how documents are cut, for all commands that cut some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from embedlib.indexing.options import IndexOptions

_DEFAULTS = {field.name: field.default for field in fields(IndexOptions)}
_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--chunk-tokens",
        type=int,
        help="Maximum tokens of a chunk.  [default: as many as the model takes, up to 512]",
    ),
    click.option(
        "--chunk-overlap",
        type=int,
        default=_DEFAULTS["chunk_overlap"],
        show_default=True,
        help="Maximum tokens that a chunk repeats from the previous one.",
    ),
    click.option(
        "--with-headings",
        is_flag=True,
        help="Embed each chunk behind the path of its Markdown headings: Guide > Install > Linux.",
    ),
    click.option(
        "--prefix",
        metavar="TEMPLATE",
        help="Embed this in front of each chunk, with fields of the metadata in braces, such as "
        "'{title}: '; it is not stored.",
    ),
    click.option(
        "--late-chunking",
        is_flag=True,
        help="Embed whole documents, or windows of them, and make each chunk's vector of its "
        "tokens in context; for models that pool by the mean. Chunks then have at most a quarter "
        "of the model's room, unless --chunk-tokens says more.",
    ),
)


def chunk_options(function: _F) -> _F:
    """Decorate a command with these options."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
