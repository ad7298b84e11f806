"""Drawn filters, as trees and as text, and the rows that they are tried on."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.errors import ConfigError
from embedlib.indexing import (
    AllOf,
    AnyOf,
    Exists,
    Filter,
    Not,
    OneOf,
    Order,
    Row,
    Sink,
    Vectors,
    matcher,
    parse_filter,
    row_digest,
    row_id,
)
from embedlib.testing.check_sink import DIM, TARGET

STRINGS = ("", "a", "b", "A", "ä", "1", "true", "null", "2024-05-01", "2024-05-01T10:00:00Z")
ODD_STRINGS = ("'; DROP TABLE x; --", '"', "\\", "%s {} $1 ?", "\n\t", "\ufffd", "\U0001f600")
HOSTILE = (
    *("'; DROP TABLE docs; --", '" or 1=1 --', "x = 1) or (1 = 1", "%s", "{}", "$1", "\\", "\0"),
    *("${jndi:ldap://x}", "`x`; x", "x = 1/**/", "1e999", "-", "((((", "\ud800", "\u202e", "`"),
    *("x in (select 1)", "' union select 1 '", "[].x", "__class__", "x = 'a' 'b'", "\x1b[2J"),
)
NUMBERS = (0, 1, -1, 2.5, 1e-7, -3.25e10, (1 << 53) - 1)
FIELDS = (("x",), ("y",), ("o", "x"), ("o", "p", "x"), ("x", "0"), ("odd %s {} .'", "[0]"))

SCALARS: tuple[Any, ...] = (*STRINGS, *ODD_STRINGS, *NUMBERS, True, False)
VALUES: tuple[Any, ...] = (
    *SCALARS,
    *(None, 1.0, -0.0, 1 << 53, (1 << 63) - 1, -(1 << 63), 1e300),
    *([], ["a", "b"], [1, "a", None], [True], [None], [[]], [["a"]], [[1]], {}, {"x": "a"}),
    *([{"x": "a"}], [2.5, 7], {"0": "a"}, ["b", ["a"]], [""], [False, 0]),
)
"""Values that rows have; some are beyond what a filter can name."""
NUM_HOSTILE = 200


def drawn_rows(num_rows: int = 120) -> list[Row]:
    """Rows with every value in several fields, the same in every run."""
    dice = np.random.default_rng(0)

    def value() -> Any:
        return VALUES[int(dice.integers(len(VALUES)))]

    rows = []
    for number in range(num_rows):
        metadata: dict[str, Any] = {"x": VALUES[number % len(VALUES)]}
        if dice.random() < 0.8:
            metadata["y"] = value()
        if dice.random() < 0.6:
            metadata["o"] = {"x": value(), "p": value() if number % 2 else {"x": value()}}
        if dice.random() < 0.3:
            metadata["odd %s {} .'"] = {"[0]": value()}
        rows.append(
            Row(
                id=row_id(f"d{number}", 0),
                source_id=f"d{number}",
                chunk=0,
                text=f"text {number}",
                metadata=metadata,
                digest=row_digest(f"text {number}", metadata, TARGET.fingerprint),
            )
        )
    return rows


def vectors_of(rows: list[Row]) -> Vectors:
    vectors: Vectors = np.random.default_rng(1).standard_normal((len(rows), DIM), np.float32)
    return vectors


def load(sink: Sink, rows: list[Row]) -> Sink:
    sink.begin(TARGET, lambda line: None)
    sink.write(rows, vectors_of(rows))
    sink.finish()
    return sink


def check_filters(sink: Any, rows: list[Row], num_drawn: int) -> None:
    """Check that a sink finds the rows that the reference accepts, for drawn and hostile filters.

    Args:
        sink: a loaded one.
        rows: what it was loaded with.
        num_drawn: how many are drawn, unless EMBEDLIB_TEST_FILTERS asks for more; then two hostile
            texts stand in each hostile filter as well, and 200 that are not refused are asked.
    """
    num_asked = int(os.environ.get("EMBEDLIB_TEST_FILTERS", "0"))
    vector = vectors_of(rows)[3]
    nearest = [hit.source_id for hit in sink.search(vector, len(rows))]

    @settings(max_examples=num_asked or num_drawn, database=None, derandomize=True)
    @given(FILTERS)
    def check(where: Filter) -> None:
        _check_same_rows(sink, rows, where, vector, nearest)

    check()
    hostile = read_filters([*HOSTILE, *pairs_of(HOSTILE)] if num_asked else HOSTILE)
    if num_asked:
        hostile = random.Random(0).sample(hostile, NUM_HOSTILE)
    for where in hostile:
        _check_same_rows(sink, rows, where, vector, nearest)


def pairs_of(parts: Iterable[str]) -> list[str]:
    """Every two texts, one behind the other."""
    return [f"{a} {b}" for a, b in product(parts, repeat=2)]


def read_filters(texts: Iterable[str]) -> list[Filter]:
    """Each text as a value, as the name of a field and as it is; without those that are refused."""
    found = []
    for text in texts:
        for written in (f"x = '{text}'", f"`{text}` = 1", f"x = {text}", text):
            with suppress(ConfigError):
                found.append(parse_filter(written))
    return found


def _check_same_rows(
    sink: Any, rows: list[Row], where: Filter, vector: Vectors, nearest: list[str]
) -> None:
    """Check one filter; `nearest`: the source ids of all rows as `vector` finds them."""
    accepts = matcher(where)
    expected = {row.source_id for row in rows if accepts(row.metadata)}
    found = [hit.source_id for hit in sink.search_where(vector, len(rows), where)]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert found == [source_id for source_id in nearest if source_id in expected]
    assert [hit.source_id for hit in sink.search_where(vector, 3, where)] == found[:3]


ATOMS: st.SearchStrategy[Filter] = st.one_of(
    st.builds(
        OneOf,
        st.sampled_from(FIELDS),
        st.lists(st.sampled_from(SCALARS), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(
        Order,
        st.sampled_from(FIELDS),
        st.sampled_from(("<", "<=", ">", ">=")),
        st.sampled_from((*STRINGS, *ODD_STRINGS, *NUMBERS)),
    ),
    st.builds(Exists, st.sampled_from(FIELDS)),
)


def _joined(parts: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(parts.map(Not), several.map(AllOf), several.map(AnyOf))


FILTERS: st.SearchStrategy[Filter] = st.recursive(ATOMS, _joined, max_leaves=8)


def as_text(where: Filter, spell: Callable[..., str] = lambda *ways: ways[0]) -> str:
    """Write a filter; `spell` chooses among ways to write the same."""
    inner = partial(as_text, spell=spell)
    match where:
        case OneOf(field, (value,)):
            return f"{_name(field)} {spell('=', '==')} {_literal(value, spell)}"
        case OneOf(field, values):
            listed = spell(",", " , ").join(_literal(value, spell) for value in values)
            return f"{_name(field)} {spell('in', 'IN')} ({listed})"
        case Order(field, operator, bound):
            return f"{_name(field)}{spell(' ', '')}{operator}{_literal(bound, spell)}"
        case Exists(field):
            name = _name(field)
            return spell(f"exists {name}", f"{name} is not null", f"EXISTS({name})")
        case Not(OneOf(field, (value,))):
            return f"{_name(field)} {spell('!=', '<>')} {_literal(value, spell)}"
        case Not(OneOf(field, values)):
            listed = ",".join(_literal(value, spell) for value in values)
            return f"{_name(field)} not in ({listed})"
        case Not(part):
            return f"not ({inner(part)})"
        case AllOf(parts):
            return spell(" and ", "\nAND ").join(f"({inner(part)})" for part in parts)
        case AnyOf(parts):
            return spell(" or ", "\tOr ").join(f"({inner(part)})" for part in parts)


def _name(field: tuple[str, ...]) -> str:
    return ".".join(key if key.isalpha() else f"`{key}`" for key in field)


def _literal(value: Any, spell: Callable[..., str]) -> str:
    if isinstance(value, str):
        raw = value.replace("\\", "\\\\")
        in_single, in_double = raw.replace("'", "\\'"), raw.replace('"', '\\"')
        return spell(json.dumps(value), f"'{in_single}'", f'"{in_double}"')
    return json.dumps(value)
