"""A filter's text to its tokens, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from embedlib.errors import ConfigError

KEYWORDS = ("and", "or", "not", "in", "is", "null", "exists", "true", "false")

MAX_NUMBER = (1 << 53) - 1
"""Beyond it, destinations that compare as 64-bit floats take different integers for equal."""

Kind = Literal["string", "number", "name", "keyword", "mark", "end"]

# A number takes all that sticks to it, so that an unquoted date is one token to complain about.
_TOKEN = re.compile(
    r"""
      (?P<blank>\s+)
    | (?P<string>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
    | (?P<number>[+-]?\.?[0-9](?:[eE][+-][0-9]|[\w.:-])*)
    | (?P<name>[^\W\d]\w*)
    | (?P<quoted>`[^`]*`)
    | (?P<mark><=|>=|!=|<>|==|[=<>(),.])
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = dict(zip("\"'\\/bfnrt", "\"'\\/\b\f\n\r\t", strict=True))
_NO_NAME = re.compile(r"[\"\\\x00-\x1f\x7f\ud800-\udfff]")
"""Qdrant's paths cannot quote the first two; no UTF-8 has a lone half of a character."""

_REMEDIES = {
    '"': 'the string has no end; close it, and write \\" for a quote inside',
    "'": "the string has no end; close it, and write \\' for a quote inside",
    "`": "the name has no end; close it with a backtick",
    "&": "write and",
    "|": "write or",
    "!": "write not, or != between a field and a value",
    "~": "there are no patterns; compare with = or in",
    "*": "there are no patterns; compare with = or in",
    "%": "there are no patterns and no arithmetic; compare a field with a value",
    "-": "put a name with a hyphen in backticks: `content-type`",
    "“": 'write straight quotes: "de"',
    "”": 'write straight quotes: "de"',
    "‘": "write straight quotes: 'de'",  # noqa: RUF001
    "’": "write straight quotes: 'de'",  # noqa: RUF001
    "[": 'write a list in parentheses: lang in ("de", "en")',
}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a filter.

    Attributes:
        kind: what it is.
        place: its first character, from 1.
        text: as written; of a keyword in lower case.
        value: what it stands for: the string, number or name itself.
    """

    kind: Kind
    place: int
    text: str
    value: str | int | float = ""


def complain(option: str, place: int, text: str, remedy: str) -> ConfigError:
    """Return the error for a piece of a filter."""
    shown = repr(text if len(text) <= 40 else f"{text[:37]}...") if text else "the end"
    return ConfigError(f"{option}: character {place}, {shown}: {remedy}")


def read_tokens(text: str, option: str) -> Iterator[Token]:
    """Yield the tokens of a filter, the last of kind "end".

    Raises:
        ConfigError: a character begins no token, or a string, number or name is not one.
    """
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            rest = text[place:].split()[0]
            remedy = _REMEDIES.get(rest[0], "it is not understood; put a string in quotes")
            raise complain(option, place + 1, rest, remedy)
        if found.lastgroup != "blank":
            yield _token(found, option)
        place = found.end()
    yield Token("end", len(text) + 1, "")


def _token(found: re.Match[str], option: str) -> Token:
    text, place = found.group(), found.start() + 1
    match found.lastgroup:
        case "string":
            return Token("string", place, text, _string(text, place, option))
        case "number":
            return Token("number", place, text, _number(text, place, option))
        case "quoted":
            if not text[1:-1] or _NO_NAME.search(text):
                remedy = 'a name is not empty, is UTF-8, and has no ", \\ and control characters'
                raise complain(option, place, text, remedy)
            return Token("name", place, text, text[1:-1])
        case "name" if text.lower() in KEYWORDS:
            return Token("keyword", place, text.lower(), text)
        case "name":
            return Token("name", place, text, text)
    return Token("mark", place, text)


def _string(text: str, place: int, option: str) -> str:
    """Return the string that a literal stands for."""
    try:
        value = _ESCAPE.sub(_unescaped, text[1:-1])
        # Two escapes may be the halves of one character, as in JSON; a lone half is none.
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except (KeyError, UnicodeDecodeError):
        remedy = (
            r"a string has the escapes of JSON and \': \" \n \t \u00e4; write \\ for a backslash"
        )
        raise complain(option, place, text, remedy) from None
    if "\0" in value:
        raise complain(option, place, text, "no metadata has NUL (U+0000); leave it out")
    return value


def _unescaped(found: re.Match[str]) -> str:
    escape = found.group(1)
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED[escape]


def _number(text: str, place: int, option: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        remedy = 'it is not a number; put dates and other strings in quotes: "2024-05-01"'
        raise complain(option, place, text, remedy)
    is_whole = text.lstrip("+-").isdigit() and len(text) <= 20
    value = int(text) if is_whole else float(text)
    if abs(value) > MAX_NUMBER:
        remedy = f"numbers go to {MAX_NUMBER}; longer ids are to be stored as strings"
        raise complain(option, place, text, remedy)
    return value
