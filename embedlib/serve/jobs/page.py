"""Pages of lists: some rows behind a given one, and whether there are more."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from embedlib.serve.errors import HTTPError

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows of a list."""

    rows: Sequence[T]
    has_more: bool


def select_page(
    connection: sqlite3.Connection,
    query: str,
    values: Sequence[Any],
    *,
    table: str,
    after: str | None,
    limit: int,
    is_descending: bool = True,
) -> tuple[list[sqlite3.Row], bool]:
    """Return rows of a query that ends in a condition, and whether there are more behind them.

    Args:
        connection: of the database.
        query: without order and limit.
        values: of the query.
        table: that `after` is an id in.
        after: the id behind which the page begins; None: the first page.
        limit: rows at most.
        is_descending: the newest first.

    Raises:
        HTTPError: there is no row `after`.
    """
    order, sign = ("DESC", "<") if is_descending else ("ASC", ">")
    values = [*values]
    if after is not None:
        found = connection.execute(f"SELECT seq FROM {table} WHERE id = ?", [after]).fetchone()
        if found is None:
            raise HTTPError(
                400, f"after = {after!r:.80}; it must be an id of the list", param="after"
            )
        query = f"{query} AND seq {sign} ?"
        values.append(found["seq"])
    rows = connection.execute(
        f"{query} ORDER BY seq {order} LIMIT ?", [*values, limit + 1]
    ).fetchall()
    return rows[:limit], len(rows) > limit
