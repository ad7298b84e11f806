"""A filter as a condition of SQL on the metadata; every name and value is a parameter.

SQL's third truth value, NULL, comes of fields that are missing; WHERE takes it for false, and so
does `IS NOT TRUE`, which stands for `not`. That makes the condition two-valued, as filters are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from embedlib.indexing import AllOf, AnyOf, Exists, Filter, Not, OneOf, Order

METADATA = "langchain_metadata"


def where_clause(where: Filter | None) -> tuple[sql.Composable, list[Any]]:
    """Return the condition, and the values of its parameters in their order; None: all pass."""
    match where:
        case None:
            return sql.SQL("true"), []
        case OneOf(field, values):
            # An index on the column of the kind GIN finds these rows.
            forms = [form for value in values for form in (value, [value])]
            documents = [json.dumps(_nested(field, form)) for form in forms]
            return sql.SQL(f"{METADATA} @> ANY (%s::jsonb[])"), [documents]
        case Order(field, operator, bound):
            # In strict mode a path looks into no list by itself, so one element is one step. It has
            # the operators of a filter.
            value, keys = _value(field)
            compared = sql.SQL(" OR ").join(
                sql.SQL("jsonb_path_exists({}, {}, %s::jsonb, true)").format(
                    value, sql.Literal(f"strict {place} ? (@ {operator} $bound)")
                )
                for place in ("$", "$[*]")
            )
            bounds = json.dumps({"bound": bound})
            return sql.SQL("({})").format(compared), [*keys, bounds, *keys, bounds]
        case Exists(field):
            value, keys = _value(field)
            return sql.SQL("{} NOT IN ('null'::jsonb, '[]'::jsonb)").format(value), keys
        case Not(part):
            clause, parameters = where_clause(part)
            return sql.SQL("({}) IS NOT TRUE").format(clause), parameters
        case AllOf(parts):
            return _joined(" AND ", parts)
        case AnyOf(parts):
            return _joined(" OR ", parts)


def _joined(word: str, parts: Sequence[Filter]) -> tuple[sql.Composable, list[Any]]:
    clauses, parameters = zip(*map(where_clause, parts), strict=True)
    joined = sql.SQL("({})").format(sql.SQL(word).join(clauses))
    return joined, [value for each in parameters for value in each]


def _value(field: Sequence[str]) -> tuple[sql.Composable, list[Any]]:
    """Return the expression for a field's value as jsonb, and its keys."""
    # Text keys find members of objects only; those of #> would find elements of lists, too.
    return sql.SQL(METADATA + " -> %s::text" * len(field)), list(field)


def _nested(field: Sequence[str], value: Any) -> Any:
    for key in reversed(field):
        value = {key: value}
    return value
