"""Pages of lists: some rows behind a given one, and whether there are more."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.database import seen_by

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows of a list."""

    rows: Sequence[T]
    has_more: bool


def select_page(
    connection: sqlite3.Connection,
    table: str,
    columns: str,
    *,
    owner: str,
    after: str | None,
    limit: int,
    is_descending: bool = True,
    **equal: str | None,
) -> tuple[list[sqlite3.Row], bool]:
    """Return rows of a table that an owner sees, and whether there are more behind them.

    Args:
        connection: of the database.
        table: its name.
        columns: their names.
        owner: as in `seen_by`.
        after: the id behind which the page begins; None: the first page.
        limit: rows at most.
        is_descending: the newest first.
        **equal: values that columns must have; None or empty: any.

    Raises:
        HTTPError: there is no row `after`.
    """
    order, sign = ("DESC", "<") if is_descending else ("ASC", ">")
    condition, values = seen_by(owner)
    conditions: list[str] = [condition]
    bound: list[object] = [*values]
    for name, value in equal.items():
        if value:
            conditions.append(f"{name} = ?")
            bound.append(value)
    if after is not None:
        found = connection.execute(
            f"SELECT seq FROM {table} WHERE id = ? AND {condition}", [after, *values]
        ).fetchone()
        if found is None:
            raise HTTPError(
                400, f"after = {after!r:.80}; it must be an id of the list", param="after"
            )
        conditions.append(f"seq {sign} ?")
        bound.append(found["seq"])
    # The inner query reads no more of a row than it must: bodies and results may be large.
    chosen = (
        f"SELECT seq FROM {table} WHERE {' AND '.join(conditions)} ORDER BY seq {order} LIMIT ?"
    )
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE seq IN ({chosen}) ORDER BY seq {order}",
        [*bound, limit + 1],
    ).fetchall()
    return rows[:limit], len(rows) > limit
