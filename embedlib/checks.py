"""Kinds of values that options take, and the one message for a value of another kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any, TypeGuard

from embedlib.errors import ConfigError, shown


@dataclass(frozen=True)
class Kind:
    """What an option takes."""

    what: str
    """As messages call it: "it must be " and this."""
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] | None = None
    """Makes a value of numpy one of Python, which JSON and other libraries take."""

    def take(self, name: str, value: object) -> Any:
        """Return the value of the option `name`.

        Raises:
            ConfigError: it is of another kind.
        """
        if not self.accepts(value):
            raise ConfigError(f"{name} = {shown(value)}; it must be {self.what}")
        return value if self.convert is None else self.convert(value)


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number; True and False are not, although they are ints."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_switch(value: object) -> bool:
    """Return whether a value is True or False, of Python or of numpy; 0, 1 and "false" are not."""
    # By name: this module imports no numpy. The class is called bool_ before numpy 2.
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def is_unicode(value: object) -> TypeGuard[str]:
    """Return whether a value is a str that a tokenizer takes: one without a lone surrogate."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a sequence such as a list or a tuple; a str is not."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def whole_number(least: int) -> Kind:
    """Return the kind of whole numbers from `least` on."""
    return Kind(
        f"a whole number of at least {least}",
        lambda value: is_count(value) and value >= least,
        int,
    )


def choice(*allowed: str) -> Kind:
    """Return the kind of a few words."""
    return Kind(
        f"one of {', '.join(allowed)}",
        lambda value: isinstance(value, str) and value in allowed,
    )


def optional(kind: Kind, what: str | None = None) -> Kind:
    """Return the kind of the same values and None; `what` calls it otherwise."""
    return Kind(
        what or kind.what,
        lambda value: value is None or kind.accepts(value),
        lambda value: value if value is None or kind.convert is None else kind.convert(value),
    )


SWITCH = Kind("True or False", is_switch, bool)
COUNT = whole_number(1)
TEXT = Kind("a str", lambda value: isinstance(value, str))
UNICODE = Kind("a str without lone surrogates", is_unicode)
PATH = Kind("a path", lambda value: isinstance(value, str | PathLike))
SHARE = Kind(
    "a number above 0 and at most 1", lambda value: is_number(value) and 0 < value <= 1, float
)
SECONDS = Kind(
    "a number of seconds, 0 or more", lambda value: is_number(value) and value >= 0, float
)
ARRAY_OR_FILE = Kind(
    "an array, or the path of the .npy file that contains it",
    lambda value: (
        isinstance(value, str | PathLike) or is_sequence(value) or hasattr(value, "__array__")
    ),
)
