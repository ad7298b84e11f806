"""Values of wrong and odd types, sizes and contents, as arguments of any call."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.campaign.verdict import CallersError


class Hostile:
    """An object one of whose special methods raises."""

    def __init_subclass__(cls, raises: str) -> None:
        def fail(self: object, *args: object) -> Any:
            raise CallersError(raises)

        setattr(cls, raises, fail)


class NoIter(Hostile, raises="__iter__"):
    pass


class NoLen(list[str], Hostile, raises="__len__"):
    pass


class NoRepr(Hostile, raises="__repr__"):
    pass


class NoBool(Hostile, raises="__bool__"):
    pass


class NoEq(Hostile, raises="__eq__"):
    __hash__ = object.__hash__


class NoHash(Hostile, raises="__hash__"):
    pass


class NoArray(Hostile, raises="__array__"):
    pass


class NoPath(Hostile, raises="__fspath__"):
    pass


class Text(str):
    """A str of a class of the caller's."""


class Choice(str, Enum):
    FLOAT = "float32"


def failing_texts() -> Iterator[str]:
    yield "one"
    raise CallersError("the second item")


def nested(depth: int) -> list[Any]:
    """Return lists so deep that the interpreter cannot print them."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


Make = Callable[[], Any]

ODD: Final[tuple[tuple[str, Make], ...]] = (
    ("None", lambda: None),
    ("'false'", lambda: "false"),
    ("'no'", lambda: "no"),
    ("'3'", lambda: "3"),
    ("True", lambda: True),
    ("False", lambda: False),
    ("-1", lambda: -1),
    ("0", lambda: 0),
    ("1", lambda: 1),
    ("2**63", lambda: 2**63),
    ("10**30", lambda: 10**30),
    ("10**5000", lambda: 10**5000),
    ("1.5", lambda: 1.5),
    ("1.0", lambda: 1.0),
    ("1e308", lambda: 1e308),
    ("nan", lambda: float("nan")),
    ("inf", lambda: float("inf")),
    ("-inf", lambda: float("-inf")),
    ("1j", lambda: 1j),
    ("Decimal", lambda: Decimal("NaN")),
    ("Fraction", lambda: Fraction(1, 3)),
    ("''", lambda: ""),
    ("' '", lambda: " "),
    ("'x'", lambda: "x"),
    ("lone surrogate", lambda: "\ud800"),
    ("lone surrogate in a text", lambda: ["a", "b\udfffc"]),
    ("newlines", lambda: "a\nb\r\nc\u2028d\x85e"),
    ("NUL", lambda: "a\0b"),
    ("escape", lambda: "\x1b[31mred"),
    ("braces", lambda: "{text} {task} {0} %s %(a)s"),
    ("str of 100,000", lambda: "x" * 100_000),
    ("str subclass", lambda: Text("query")),
    ("Enum", lambda: Choice.FLOAT),
    ("bytes", lambda: b"abc"),
    ("no bytes", lambda: b""),
    ("bytearray", lambda: bytearray(b"abc")),
    ("memoryview", lambda: memoryview(b"abc")),
    ("[]", list),
    ("[[]]", lambda: [[]]),
    ("[['a']]", lambda: [["a"]]),
    ("['a', None]", lambda: ["a", None]),
    ("['a', 1]", lambda: ["a", 1]),
    ("[('a', 'b')]", lambda: [("a", "b")]),
    ("['a', b'b']", lambda: ["a", b"b"]),
    ("('a', 'b')", lambda: ("a", "b")),
    ("{}", dict),
    ("{'a': 1}", lambda: {"a": 1}),
    ("{'query': None}", lambda: {"query": None}),
    ("{1: 'a'}", lambda: {1: "a"}),
    ("{'a\\nb': 'c'}", lambda: {"a\nb": "c\nd"}),
    ("set", lambda: {"a"}),
    ("frozenset", lambda: frozenset("ab")),
    ("range", lambda: range(3)),
    ("generator", lambda: (text for text in ["a", "b"])),
    ("generator that raises", failing_texts),
    ("map of ints", lambda: map(int, "12")),
    ("zip", lambda: zip("ab", "cd", strict=True)),
    ("np.int64", lambda: np.int64(3)),
    ("np.int64(-1)", lambda: np.int64(-1)),
    ("np.float32", lambda: np.float32(0.5)),
    ("np.float64 nan", lambda: np.float64("nan")),
    ("np.bool_", lambda: np.bool_(True)),
    ("np.str_", lambda: np.str_("query")),
    ("np 0-d int", lambda: np.array(3)),
    ("np 0-d str", lambda: np.array("abc")),
    ("np empty", lambda: np.array([])),
    ("np of str", lambda: np.array(["a", "b"])),
    ("np of object", lambda: np.array(["a", None], object)),
    ("np [2, 6]", lambda: np.ones((2, 6), np.float32)),
    ("np [2, 6] nan", lambda: np.full((2, 6), np.nan, np.float32)),
    ("np [1, 1, 1]", lambda: np.ones((1, 1, 1))),
    ("np of datetimes", lambda: np.array(["2020-01-01"], "datetime64[D]")),
    ("np structured", lambda: np.zeros(2, [("a", "f4")])),
    ("datetime", lambda: datetime.datetime(2026, 1, 1)),
    ("Path", lambda: Path("nowhere")),
    ("object()", object),
    ("a class", lambda: int),
    ("a function", lambda: lambda *_: None),
    ("a function that raises", lambda: failing_callback),
    ("Ellipsis", lambda: ...),
    ("an exception", lambda: ValueError("a\nb")),
    ("nested 100,000 deep", lambda: nested(100_000)),
    ("a list in itself", endless),
    ("__iter__ raises", NoIter),
    ("__len__ raises", lambda: NoLen(["a"])),
    ("__repr__ raises", NoRepr),
    ("__bool__ raises", NoBool),
    ("__eq__ raises", NoEq),
    ("__hash__ raises", NoHash),
    ("__array__ raises", NoArray),
    ("__fspath__ raises", NoPath),
)


def failing_callback(*_: object) -> Any:
    raise CallersError("a callback")


def draw_odd(rng: random.Random) -> tuple[str, Any]:
    """Return a value and what to call it, since not every value can be printed."""
    label, make = rng.choice(ODD)
    return label, make()
