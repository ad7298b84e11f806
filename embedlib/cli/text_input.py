"""Texts as arguments and in files, and the short form in which commands print one."""

from __future__ import annotations

import sys
from typing import Any

import click

from embedlib.cli.options import decorated
from embedlib.errors import visible

_TEXT_CHARACTERS = 72


class TextType(click.types.StringParamType):
    """A text for a model. Unlike the name of a file it must be Unicode."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; fails for bytes that Python has no characters for."""
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Source: PEP 383, which adds 0xDC00 to each such byte.
            byte, encoding = ord(text[error.start]) & 0xFF, sys.getfilesystemencoding()
            self.fail(
                f"its byte 0x{byte:02x}, behind {text[: error.start][-20:]!r}, is not {encoding}; "
                f"convert the text first, for example with iconv -t {encoding}",
                param,
                ctx,
            )
        return text


TEXT = TextType()

text_input_options = decorated(
    click.option(
        "--input-format",
        type=click.Choice(("auto", "lines", "jsonl")),
        default="auto",
        help="lines: one text per line. auto: jsonl for files named .jsonl or .ndjson, else lines; "
        "tables, HTML, PDF and DOCX are refused.",
    ),
    click.option("--field", default="text", help="Key that holds the text in jsonl input."),
)
"""Decorates a command with `--input-format` and `--field`, for `records.read_records`."""


def one_line(text: str) -> str:
    """Return the beginning of a text on one line."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 3] + "..."
