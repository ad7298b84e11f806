"""A filter's text to its tree.

    filter     = both { "or" both }
    both       = one { "and" one }
    one        = "not" one | "(" filter ")" | "exists" field | comparison
    comparison = field ( operator value | [ "not" ] "in" "(" value { "," value } ")"
                       | "is" [ "not" ] "null" )
    operator   = "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    field      = name { "." name }
    value      = string | number | "true" | "false"

What a filter is made of is bounded, so that none costs much to read or to search with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from embedlib.errors import ConfigError, shown
from embedlib.indexing.filters.expression import (
    AllOf,
    AnyOf,
    Exists,
    FieldPath,
    Filter,
    Not,
    OneOf,
    Order,
    Scalar,
)
from embedlib.indexing.filters.tokens import Token, complain, read_tokens

MAX_CHARACTERS = 32_768
MAX_VALUES = 1_000
"""Values and `exists` in one filter."""
MAX_DEPTH = 20
"""Parentheses and `not` inside one another."""
MAX_KEYS = 16
"""Names of a field that dots connect."""

_COMPARE = ("=", "==", "!=", "<>", "<", "<=", ">", ">=")
_OPERATORS = "= != < <= > >= in, not in, is null or is not null"


def parse_filter(text: str, option: str = "where") -> Filter:
    """Read a filter, such as `year >= 2020 and (lang = "de" or not exists lang)`.

    Args:
        text: the filter.
        option: what messages call it.

    Raises:
        ConfigError: it is not understood; the message has the place, the piece and the remedy.
    """
    if not isinstance(text, str):
        raise ConfigError(f"{option} = {shown(text)}; it must be a str, such as 'year >= 2020'")
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{option} has {len(text):,} characters, the limit is {MAX_CHARACTERS:,}; divide the "
            "values among several searches"
        )
    return _Parser(text, option).parse()


class _Parser:
    """Reads one filter from its start to its end."""

    def __init__(self, text: str, option: str) -> None:
        self._option = option
        self._tokens = read_tokens(text, option)
        self._token = next(self._tokens)
        self._depth = 0
        self._num_values = 0

    def parse(self) -> Filter:
        if self._token.kind == "end":
            raise ConfigError(f"{self._option} is empty; leave it out, or write one: year >= 2020")
        found = self._any()
        self._expect("", "and, or, or the end must be here")
        return found

    def _any(self) -> Filter:
        return self._joined("or", AnyOf, lambda: self._joined("and", AllOf, self._one))

    def _joined(
        self, word: str, join: Callable[[tuple[Filter, ...]], Filter], read: Callable[[], Filter]
    ) -> Filter:
        parts = [read()]
        while self._takes(word):
            parts.append(read())
        return parts[0] if len(parts) == 1 else join(tuple(parts))

    def _one(self) -> Filter:
        if self._takes("not"):
            self._enter()
            part = self._one()
            self._depth -= 1
            return Not(part)
        if self._takes("("):
            self._enter()
            part = self._any()
            self._expect(")", "close the parenthesis, or connect conditions with and or or")
            self._depth -= 1
            return part
        if self._takes("exists"):
            return self._exists()
        return self._comparison()

    def _exists(self) -> Filter:
        is_closed = self._takes("(")
        field = self._field()
        if is_closed:
            self._expect(")", "exists takes one field; close the parenthesis")
        self._count()
        return Exists(field)

    def _comparison(self) -> Filter:
        field = self._field()
        operator = self._token
        if operator.kind == "mark" and operator.text in _COMPARE:
            self._next()
            return self._compared(field, operator.text)
        if self._takes("is"):
            return self._is_null(field)
        is_negated = self._takes("not")
        if self._takes("in"):
            found = OneOf(field, self._values())
            return Not(found) if is_negated else found
        self._fail(f"a comparison must be here: {_OPERATORS}")

    def _compared(self, field: FieldPath, operator: str) -> Filter:
        place = self._token
        value = self._value()
        match operator:
            case "=" | "==":
                return OneOf(field, (value,))
            case "!=" | "<>":
                return Not(OneOf(field, (value,)))
            case "<" | "<=" | ">" | ">=" if not isinstance(value, bool):
                return Order(field, operator, value)
        raise complain(
            self._option, place.place, place.text, "true and false have no order; use = or !="
        )

    def _is_null(self, field: FieldPath) -> Filter:
        is_negated = self._takes("not")
        self._expect("null", "write is null or is not null; compare values with =")
        self._count()
        return Exists(field) if is_negated else Not(Exists(field))

    def _field(self) -> FieldPath:
        keys = [self._name()]
        while self._takes("."):
            keys.append(self._name())
        if len(keys) > MAX_KEYS:
            self._fail(f"the field before it has {len(keys)} names, the limit is {MAX_KEYS}")
        return tuple(keys)

    def _name(self) -> str:
        token = self._token
        if token.kind != "name":
            if token.kind in ("string", "number"):
                self._fail("a field must be here, and the value behind it: year >= 2020")
            if token.kind == "keyword":
                self._fail(f"a field must be here; one of this name is `{token.value}`")
            self._fail("a field must be here, such as year or author.name")
        self._next()
        return str(token.value)

    def _values(self) -> tuple[Scalar, ...]:
        self._expect("(", 'in takes values in parentheses: lang in ("de", "en")')
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._expect(")", "close the list, or put a comma between values")
        return tuple(values)

    def _value(self) -> Scalar:
        token = self._token
        self._count()
        if token.kind in ("string", "number"):
            self._next()
            return token.value
        if token.kind == "keyword" and token.text in ("true", "false"):
            self._next()
            return token.text == "true"
        if token.kind == "keyword" and token.text == "null":
            self._fail("nothing equals null; write is null or is not null")
        if token.kind == "name":
            self._fail(f'a value must be here; put a string in quotes: "{token.value}"')
        self._fail("a value must be here: a string in quotes, a number, true or false")

    def _count(self) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._fail(f"it is value number {self._num_values:,}, the limit is {MAX_VALUES:,}")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"it is nested {self._depth} deep, the limit is {MAX_DEPTH}")

    def _next(self) -> None:
        self._token = next(self._tokens)

    def _takes(self, text: str) -> bool:
        """Go on if this keyword or mark is here; of "" whether the end is."""
        is_here = self._token.kind in ("keyword", "mark", "end") and self._token.text == text
        if is_here and text:
            self._next()
        return is_here

    def _expect(self, text: str, remedy: str) -> None:
        if not self._takes(text):
            self._fail(remedy)

    def _fail(self, remedy: str) -> NoReturn:
        token: Token = self._token
        raise complain(self._option, token.place, token.text, remedy)
