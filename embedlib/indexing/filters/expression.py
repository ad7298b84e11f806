"""What a filter is: a tree of conditions on metadata, and the function that decides them.

`matcher` is the reference: every destination finds the rows that it accepts. It is two-valued: each
condition is true or false, also of a field that is missing or has another type.

- A comparison is true if the field has a value of the same type (string, number, boolean) for
  which it holds. Of a list, one element is enough; elements that are lists have no value.
- Strings are compared code point by code point, dates as the strings that they are.
- `exists` is true if the field has a value: it is there, not null and not an empty list.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Scalar: TypeAlias = str | int | float | bool
FieldPath: TypeAlias = tuple[str, ...]
"""Keys from the metadata inwards; it leads through objects, not into lists."""
Matches = Callable[[Mapping[str, Any]], bool]
"""Decides of a row's metadata."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field equals one of these values: `=` and `in`."""

    field: FieldPath
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The field is before or behind a value."""

    field: FieldPath
    operator: Literal["<", "<=", ">", ">="]
    value: str | int | float


@dataclass(frozen=True, slots=True)
class Exists:
    """The field has a value."""

    field: FieldPath


@dataclass(frozen=True, slots=True)
class Not:
    """The part is false."""

    part: Filter


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part is true."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part is true."""

    parts: tuple[Filter, ...]


Filter: TypeAlias = OneOf | Order | Exists | Not | AllOf | AnyOf

_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def matcher(where: Filter) -> Matches:
    """Return the function that decides whether metadata pass a filter."""
    match where:
        case OneOf(field, values):
            wanted = {(_kind(value), value) for value in values}
            return lambda metadata: any(
                (_kind(value), value) in wanted for value in _scalars(_find(metadata, field))
            )
        case Order(field, name, bound):
            holds, kind = _HOLDS[name], _kind(bound)
            return lambda metadata: any(
                _kind(value) is kind and holds(value, bound)
                for value in _scalars(_find(metadata, field))
            )
        case Exists(field):
            return lambda metadata: _find(metadata, field) not in (None, [])
        case Not(part):
            accepts = matcher(part)
            return lambda metadata: not accepts(metadata)
        case AllOf(parts):
            all_accept = [matcher(part) for part in parts]
            return lambda metadata: all(accepts(metadata) for accepts in all_accept)
        case AnyOf(parts):
            any_accepts = [matcher(part) for part in parts]
            return lambda metadata: any(accepts(metadata) for accepts in any_accepts)


def _find(metadata: Mapping[str, Any], field: FieldPath) -> Any:
    """Return the field's value; None: it is missing, or null."""
    found: Any = metadata
    for key in field:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _scalars(value: Any) -> list[Scalar]:
    """Return the values that are compared: the field's own, or those of its elements."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in values if isinstance(each, (str, int, float))]


def _kind(value: Scalar) -> type:
    """Return the type that decides what a value is compared with: True is no 1, but 1.0 is."""
    return type(value) if isinstance(value, (str, bool)) else float
