"""Input options of the commands that read texts, and the short form in which they print one."""

from __future__ import annotations

import click

from embedlib.cli.options import decorated
from embedlib.errors import visible

_TEXT_CHARACTERS = 72

text_input_options = decorated(
    click.option(
        "--input-format",
        type=click.Choice(("auto", "lines", "jsonl")),
        default="auto",
        show_default=True,
        help="lines: one text per line. auto: jsonl for files named .jsonl or .ndjson, else lines.",
    ),
    click.option(
        "--field", default="text", show_default=True, help="Key that holds the text in jsonl input."
    ),
)
"""Decorates a command with `--input-format` and `--field`, for `records.read_records`."""


def one_line(text: str) -> str:
    """Return the beginning of a text on one line."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 3] + "..."
