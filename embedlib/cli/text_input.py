"""Input options of the commands that read texts, and the short form in which they print one."""

from __future__ import annotations

from typing import Final

import click

from embedlib.cli.options import decorated

_TEXT_CHARACTERS = 72
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
"""Source: the Unicode standard, 23.1, C0 and C1 controls."""
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in _CONTROLS if chr(code) not in "\n\t"}


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


def visible(text: str) -> str:
    """Return a text with escapes for control characters, which a terminal would obey."""
    return text.translate(_ESCAPES)
