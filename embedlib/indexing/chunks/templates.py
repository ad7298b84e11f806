"""Templates of prefixes: text with the names of fields in braces, such as "{title}: "."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias

from embedlib.errors import ConfigError, shown
from embedlib.indexing.rows import Chunk, Document

Prefix: TypeAlias = str | Callable[[Document, Chunk], str]
"""A template, or a function that returns the prefix of a chunk."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template that was read.

    Attributes:
        parts: pairs of text and the name of the field after it; None: the text is the end.
    """

    parts: tuple[tuple[str, str | None], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields."""
        return tuple(name for _, name in self.parts if name is not None)

    def missing(self, values: Mapping[str, Any]) -> list[str]:
        """Return the fields without a value."""
        return [name for name in self.fields if not _as_text(values.get(name))]

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the text with the values of its fields, of which none is missing."""
        return "".join(
            text if name is None else text + _as_text(values[name]) for text, name in self.parts
        )


def parse_template(text: str) -> Template:
    """Read a template. A name is a plain key: nothing in it is evaluated.

    Raises:
        ConfigError: it is none, or names no field.
    """
    wanted = "it must name a field of the metadata in braces, such as '{title}: '"
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"prefix = {shown(text)}: {error}; {wanted}") from None
    for _, name, form, conversion in pieces:
        if name is not None and (not name or form or conversion):
            raise ConfigError(f"prefix = {shown(text)}; {wanted}, and nothing but its name")
    template = Template(tuple((before, name) for before, name, _, _ in pieces))
    if not template.fields:
        raise ConfigError(f"prefix = {shown(text)}; {wanted}")
    return template


def _as_text(value: Any) -> str:
    """Return a JSON value as a reader would write it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
