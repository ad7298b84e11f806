"""Reads the JSON files of a model folder, and checks the type of every key.

Every error names the file, the key and the value found, so that a user can look it up in the file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from embedlib.checks import is_unicode
from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.bounds import (
    GREATEST_COUNT,
    GREATEST_INTEGERS,
    NUMBERS,
    NUMBERS_BY_KEY,
)
from embedlib.models.reading.model_file import has_file, load_json, name_in

T = TypeVar("T")


def quote(value: object) -> str:
    """Return a value as text for a message: short, and on one line that can be printed."""
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= 80 else text[:77] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def show(name: str) -> str:
    """Return a key or name of a file for a message: quoted if it is odd, cut if it is long."""
    return name if name.isprintable() and len(name) <= 80 else quote(name)


@dataclass(frozen=True)
class JsonObject:
    """One JSON object, and its name in messages."""

    name: str
    """Path in the model folder; a nested object adds its key: `config.json: rope_scaling`."""
    values: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Canonical key to the key in the file, where `renamed` changed it."""

    @classmethod
    def load(cls, path: Path, folder: Path) -> JsonObject:
        """Read a file whose top level is an object; return an empty object if it does not exist."""
        name = name_in(path, folder)
        if not has_file(path, folder):
            return cls(name, {})
        content = load_json(path, folder)
        if not isinstance(content, dict):
            raise ModelUnsupportedError(f"{name}: holds {quote(content)}; an object is expected")
        return cls(name, content)

    def __contains__(self, key: str) -> bool:
        """Return whether the key is present and not null."""
        return self.values.get(key) is not None

    def refuse(self, key: str, accepted: str) -> ModelUnsupportedError:
        """Return the error for a key that is missing or whose value is not implemented."""
        shown = show(self.aliases.get(key, key))
        if key not in self.values:
            return ModelUnsupportedError(f"{self.name}: {shown} is missing; accepted: {accepted}")
        found = quote(self.values[key])
        return ModelUnsupportedError(
            f"{self.name}: {shown} = {found} is not supported; accepted: {accepted}"
        )

    def renamed(self, names: Mapping[str, Collection[str]]) -> JsonObject:
        """Return the object with canonical names for its keys; messages keep the file's names.

        Args:
            names: canonical key to the other names that a file may use for it.

        Raises:
            ModelUnsupportedError: if a key has several names in the file with different values.
        """
        values = dict(self.values)
        aliases: dict[str, str] = {}
        for key, others in names.items():
            found = [name for name in (key, *others) if name in values]
            aliases[key] = found[0] if found else next(iter(others))
            for other in found[1:]:
                if values[other] != values[found[0]]:
                    raise self.refuse(other, f"{quote(values[found[0]])}, the value of {found[0]}")
            if found:
                values = {name: value for name, value in values.items() if name not in found}
                values[key] = self.values[found[0]]
        return JsonObject(self.name, values, aliases)

    def check_keys(self, known: Collection[str]) -> None:
        """Reject every unknown key, since it could change the vectors."""
        unknown = [key for key in self.values if key not in known]
        if not unknown:
            return
        first, *others = unknown
        also = f" (nor are {', '.join(map(show, others[:9]))})" if others else ""
        raise ModelUnsupportedError(
            f"{self.name}: {show(first)} = {quote(self.values[first])} is not a known key{also}; "
            "it may change the vectors: if you know that it does not, load a copy of the folder "
            "without it"
        )

    def check_fixed(self, key: str, accepted: Collection[object]) -> None:
        """Reject a key that is present with a value other than the accepted ones."""
        if key in self.values and self.values[key] not in accepted:
            raise self.refuse(key, ", ".join(quote(value) for value in accepted))

    def optional_integer(self, key: str, default: int | None, minimum: int = 0) -> int | None:
        """Return an integer or None: `default` if the key is missing, None if it is null."""
        if self.values.get(key, default) is None:
            return None
        return self.integer(key, default, minimum)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """Return an integer within the bounds of `bounds.py`; null is none.

        Without a default the key must be there.
        """
        if key not in self.values and default is not None:
            return default
        value: Any = self.values.get(key)
        greatest = GREATEST_INTEGERS.get(key, GREATEST_COUNT)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not minimum <= value <= greatest:
            raise self.refuse(key, f"an integer from {minimum} to {greatest}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number within the bounds of `bounds.py`; null counts as missing.

        Without a default the key must be there.
        """
        value: Any = self.values.get(key)
        if value is None and default is not None:
            return default
        lowest, greatest = NUMBERS_BY_KEY.get(key, NUMBERS)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= greatest:
            raise self.refuse(key, f"a number from {lowest:g} to {greatest:g}")
        return float(value) if value <= sys.float_info.max else math.inf

    def optional_number(self, key: str) -> float | None:
        """Return a positive number; None if the key is missing or null."""
        return self.number(key) if key in self else None

    def boolean(self, key: str, default: bool) -> bool:
        """Return a boolean; null counts as missing."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "true, false")
        return value

    def text(self, key: str) -> str | None:
        """Return a string; None if the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refuse(key, "a string")
        if value is not None and not is_unicode(value):  # the tokenizer would not name the key
            raise self.refuse(key, "a string without lone surrogates")
        return value

    def choice(self, key: str, accepted: Mapping[str, T], default: str | None = None) -> T:
        """Return the entry of `accepted` for the string under a key; null is none of them."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in accepted:
            raise self.refuse(key, ", ".join(accepted))
        return accepted[value]

    def optional_choice(self, key: str, accepted: Mapping[str, T], default: str) -> T:
        """Return the same where null counts as missing."""
        return self.choice(key, accepted) if key in self else accepted[default]

    def child(self, key: str) -> JsonObject:
        """Return the object under a key; an empty one if the key is missing or null."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.refuse(key, "an object")
        return JsonObject(f"{self.name}: {show(self.aliases.get(key, key))}", value)
