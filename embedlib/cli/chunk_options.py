"""Options that say how documents are cut, for all commands that cut some."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import click

from embedlib.cli.options import decorated
from embedlib.cli.text_input import TEXT
from embedlib.indexing.options import IndexOptions

INDEX_DEFAULTS: Final = {field.name: field.default for field in fields(IndexOptions)}
"""The default of each option of a load."""

chunk_options = decorated(
    click.option(
        "--chunk-tokens",
        type=int,
        help="Maximum tokens of a chunk.  [default: as many as the model takes, up to 512]",
    ),
    click.option(
        "--chunk-overlap",
        type=int,
        default=INDEX_DEFAULTS["chunk_overlap"],
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
        type=TEXT,
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
"""Decorates a command with these options."""
