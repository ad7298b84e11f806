"""Options that say how sources are read, and how documents are cut."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import click

from embedlib.cli.options import decorated
from embedlib.cli.paths import FilePath
from embedlib.cli.text_input import TEXT
from embedlib.cli.usage_errors import refuse
from embedlib.indexing.options import IndexOptions

if TYPE_CHECKING:
    from embedlib.indexing.sources.protocol import SourceOptions

INDEX_DEFAULTS: Final = {field.name: field.default for field in fields(IndexOptions)}
"""The default of each option of a load."""

file_options = decorated(
    click.option(
        "--input-format",
        type=click.Choice(
            [
                *("auto", "text", "markdown", "html", "pdf", "docx"),
                *("lines", "csv", "tsv", "jsonl", "parquet"),
            ]
        ),
        default="auto",
        help="Format of SOURCES. auto: by the file's name; standard input requires another value.",
    ),
    click.option(
        "--glob",
        multiple=True,
        metavar="PATTERN",
        help="Files to read in a folder, such as '*.md'; may be repeated.  [default: text, "
        "Markdown]",
    ),
    click.option(
        "--text-field",
        "text_fields",
        multiple=True,
        help="Field to embed; several are joined, with a blank line between them.  [default: "
        "guessed and printed]",
    ),
)
"""Decorates a command with these options."""

source_options = decorated(
    file_options,
    click.option("--id-field", help="Field with the id of a row.  [default: guessed and printed]"),
    click.option(
        "--id-prefix",
        type=click.Choice(("file",)),
        help="file: put the name of its file in front of the id of a row, for files with the "
        "same ids.",
    ),
    click.option(
        "--id-root",
        type=FilePath(),
        metavar="FOLDER",
        help="Folder from which the paths in ids are counted.  [default: the current folder]",
    ),
    click.option(
        "--metadata-field",
        "metadata_fields",
        multiple=True,
        help="Field to store beside the vector; may be repeated.  [default: all others]",
    ),
    click.option(
        "--sql",
        type=TEXT,
        metavar="QUERY",
        help="Read the rows of this SQL query; SOURCES is a database URL.",
    ),
    click.option(
        "--since-field",
        metavar="COLUMN",
        help="With --sql: read only rows that are new or changed since the last load; COLUMN is a "
        "number that grows, or the time of the last change.",
    ),
    click.option(
        "--since-overlap",
        default=3600.0,
        metavar="N",
        help="Read N seconds, or numbers, before the last value of --since-field again, for "
        "transactions that commit late.",
    ),
)
"""Decorates a command with these options."""

chunk_options = decorated(
    click.option(
        "--chunk-tokens",
        type=int,
        help="Maximum tokens of a chunk.  [default: as many as the model takes, up to 512]",
    ),
    click.option(
        "--chunk-overlap",
        default=INDEX_DEFAULTS["chunk_overlap"],
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


def check_glob(sources: Sequence[str]) -> None:
    """Refuse --glob where all sources are files, or standard input.

    Raises:
        click.UsageError: it is given, and would be ignored.
    """
    if all(source == "-" or os.path.isfile(source) for source in sources):
        refuse("is for the files of a folder, and SOURCES has none; leave it out", "glob")


_NAMES = (
    *("input_format", "glob", "id_field", "id_prefix", "id_root"),
    *("since_field", "since_overlap"),
)


def take_source_options(options: dict[str, Any]) -> SourceOptions:
    """Take these options of a command out of all of its options; `sql` stays."""
    from embedlib.indexing.sources.protocol import SourceOptions

    return SourceOptions(
        text_field=options.pop("text_fields") or None,
        metadata_fields=options.pop("metadata_fields") or None,
        **{name: options.pop(name) for name in _NAMES},
    )
