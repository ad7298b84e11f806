"""A filter as Qdrant's conditions on the payload, and searches with it.

Qdrant compares numbers by order, strings only for equality. Where a filter compares strings by
order, Qdrant gets a wider one, and the rows that it finds are decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from embedlib.errors import SinkError
from embedlib.indexing import (
    AllOf,
    AnyOf,
    Exists,
    Filter,
    Hit,
    Not,
    OneOf,
    Order,
    import_extra,
    matcher,
)
from embedlib_qdrant.points import METADATA_KEY

MAX_CANDIDATES = 16_384
"""Rows that are fetched at most to compare their strings here."""
_FIRST_CANDIDATES = 64

_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}

ALL = AllOf(())
"""Every row passes."""
NONE = AnyOf(())
"""No row passes."""


class Conditions(Protocol):
    """Makes the conditions of one of Qdrant's packages."""

    def equals(self, key: str, values: list[str] | list[bool]) -> Any:
        """The field has one of these values."""

    def lies_in(self, key: str, bounds: dict[str, float]) -> Any:
        """The field has a number within these bounds."""

    def is_empty(self, key: str) -> Any:
        """The field is missing, null or an empty list."""

    def group(self, **parts: list[Any]) -> Any:
        """A filter: `must`, `should` or `must_not`."""


@dataclass(frozen=True, slots=True)
class ClientConditions:
    """Those of qdrant-client; `models` is its module of that name."""

    models: Any

    def equals(self, key: str, values: list[str] | list[bool]) -> Any:
        """See `Conditions`."""
        if isinstance(values[0], bool):
            return self.models.FieldCondition(
                key=key, match=self.models.MatchValue(value=values[0])
            )
        return self.models.FieldCondition(key=key, match=self.models.MatchAny(any=values))

    def lies_in(self, key: str, bounds: dict[str, float]) -> Any:
        """See `Conditions`."""
        return self.models.FieldCondition(key=key, range=self.models.Range(**bounds))

    def is_empty(self, key: str) -> Any:
        """See `Conditions`."""
        return self.models.IsEmptyCondition(is_empty=self.models.PayloadField(key=key))

    def group(self, **parts: list[Any]) -> Any:
        """See `Conditions`."""
        return self.models.Filter(**parts)


class EdgeConditions:
    """Those of qdrant-edge-py."""

    def __init__(self) -> None:
        self._edge = import_extra("qdrant_edge", "qdrant")

    def equals(self, key: str, values: list[str] | list[bool]) -> Any:
        """See `Conditions`."""
        if isinstance(values[0], bool):
            # The package takes Python's True for the number 1, and numpy's for what it is.
            match = self._edge.MatchValue(np.bool_(values[0]))
        else:
            match = self._edge.MatchAny(values)
        return self._edge.FieldCondition(key, match=match)

    def lies_in(self, key: str, bounds: dict[str, float]) -> Any:
        """See `Conditions`."""
        return self._edge.FieldCondition(key, range=self._edge.RangeFloat(**bounds))

    def is_empty(self, key: str) -> Any:
        """See `Conditions`."""
        return self._edge.IsEmptyCondition(key)

    def group(self, **parts: list[Any]) -> Any:
        """See `Conditions`."""
        return self._edge.Filter(**parts)


def make_filter(where: Filter, make: Conditions) -> Any:
    """Return the filter for rows that pass; the tree has no string order and no constant in it."""
    match where:
        case Not(part):
            return make.group(must_not=[_condition(part, make)])
        case AllOf(parts):
            return make.group(must=[_condition(part, make) for part in parts])
        case AnyOf(parts):
            return make.group(should=[_condition(part, make) for part in parts])
        case _:
            return make.group(must=[_condition(where, make)])


def _condition(where: Filter, make: Conditions) -> Any:
    match where:
        case OneOf(field, values):
            key = _key(field)
            conditions = [
                # Range and not match: to match, 5 is no 5.0.
                make.lies_in(key, {"gte": value, "lte": value})
                for value in values
                if not isinstance(value, (str, bool))
            ]
            conditions += [make.equals(key, [v]) for v in values if isinstance(v, bool)]
            texts = [value for value in values if isinstance(value, str)]
            conditions += [make.equals(key, texts)] if texts else []
            return conditions[0] if len(conditions) == 1 else make.group(should=conditions)
        case Order(field, operator, bound):
            assert not isinstance(bound, str), "widened before"
            return make.lies_in(_key(field), {_BOUNDS[operator]: bound})
        case Exists(field):
            return make.group(must_not=[make.is_empty(_key(field))])
        case _:
            return make_filter(where, make)


def _key(field: tuple[str, ...]) -> str:
    """Return the path of a field; a name has no quotes and no backslash in it."""
    return METADATA_KEY + "".join(f'."{name}"' for name in field)


def widened(where: Filter, *, is_wide: bool = True) -> Filter:
    """Return a filter without string order that lets at least the same rows pass.

    Args:
        where: the filter.
        is_wide: False: at most the same rows, which is what `not` needs of its part.
    """
    match where:
        case Order(field, _, str()):
            return Exists(field) if is_wide else NONE
        case Not(part):
            found = widened(part, is_wide=not is_wide)
            return ALL if found == NONE else NONE if found == ALL else Not(found)
        case AllOf(parts):
            rest = [each for part in parts if (each := widened(part, is_wide=is_wide)) != ALL]
            return NONE if NONE in rest else AllOf(tuple(rest))
        case AnyOf(parts):
            rest = [each for part in parts if (each := widened(part, is_wide=is_wide)) != NONE]
            return ALL if ALL in rest else AnyOf(tuple(rest))
        case _:
            return where


def search_filtered(
    query: Callable[[int, Filter | None], list[Hit]], k: int, where: Filter | None, name: str
) -> list[Hit]:
    """Return the first `k` hits that pass a filter; None: all do.

    Args:
        query: returns the nearest rows that pass a filter without string order, at most so many.
        k: how many to return.
        where: what they must pass.
        name: of the destination.

    Raises:
        SinkError: strings must be compared, and of the rows fetched for that too few pass.
    """
    if where is None:
        return query(k, None)
    wide = widened(where)
    if wide == NONE:
        return []
    if wide == where:
        return query(k, where)
    return search_candidates(lambda limit: query(limit, wide), k, where, name, MAX_CANDIDATES)


def search_candidates(
    query: Callable[[int], list[Hit]], k: int, where: Filter, name: str, most: int | None
) -> list[Hit]:
    """Return the first `k` hits that pass a filter, of as many as it takes.

    Args:
        query: returns the nearest rows, at most so many.
        k: how many to return.
        where: what they must pass.
        name: of the destination.
        most: ask for no more than that; None: for all there are.

    Raises:
        SinkError: so many rows have fewer that pass.
    """
    accepts = matcher(where)
    limit = max(2 * k, _FIRST_CANDIDATES)
    while True:
        found = query(limit)
        passed = [hit for hit in found if accepts(hit.metadata)]
        if len(passed) >= k or len(found) < limit:
            return passed[:k]
        if most is not None and limit >= most:
            raise SinkError(
                f"{name}: only {len(passed)} of the {limit:,} nearest rows pass the filter, which "
                "compares strings by order; Qdrant cannot do that, so the rows are read for it: "
                "add a condition with = or in, or store what is compared as a number"
            )
        limit *= 4
        limit = limit if most is None else min(limit, max(most, k))
