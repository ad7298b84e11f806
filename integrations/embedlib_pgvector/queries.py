"""Read-only queries: what a table holds, and which rows are nearest to a vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import Filter, Hit, SinkState, SparseVector
from embedlib_pgvector.connection import Connection
from embedlib_pgvector.copy_rows import SPARSE_COLUMN
from embedlib_pgvector.destination import Destination
from embedlib_pgvector.filters import where_clause
from embedlib_pgvector.hnsw import OPERATORS, find_index
from embedlib_pgvector.table import Table, count_rows, find_table

HIT_COLUMNS = "langchain_id, source_id, chunk, content, langchain_metadata"
NAMED_NOW = "%s::regclass::oid"
"""The table that has this name while the statement runs; a row's own may be a partition of it."""
MAX_EF_SEARCH = 1_000
"""Source: HNSW_MAX_EF_SEARCH in pgvector's src/hnsw.h."""
FILTERED_EF_SEARCH = 200
EXTRA_ROWS = 4
"""With a filter: how many rows the index examines at a time at least, and how many times those that
are wanted it returns. Measured with 24,000 clustered rows of 128 dimensions, of which 23 to 12,000
passed: of the true ten nearest, these two and the relaxed order found 99 to 100 %, pgvector's own
settings in strict order 54 to 100 %, least where the rows that pass were close to one another."""


class TableMovedError(Exception):
    """Another table has taken the name of the one that was asked."""


def describe(connection: Connection, destination: Destination) -> SinkState | None:
    """Return the state of a table, or None; rows that LangChain added are not counted."""
    table = find_table(connection, destination)
    if table is None:
        return None
    index = find_index(connection, table)
    state = "none, exact scan"
    if index is not None:
        state = index.method if index.is_valid else f"{index.method}, not finished, exact scan"
    return table.to_state(count_rows(connection, table)[1], state)


def search(
    connection: Connection,
    table: Table,
    vector: NDArray[np.float32],
    k: int,
    name: str,
    where: Filter | None,
) -> list[Hit]:
    """Return the nearest rows, best first; a row that LangChain added has its id as source id.

    A scan of the index ends after `hnsw.max_scan_tuples` rows, or without pgvector 0.8 after
    `hnsw.ef_search`, deleted ones included. If it found too few, all rows are compared.

    Raises:
        SinkError: the vector has another dimension than those in the table.
    """
    if vector.shape != (table.dim,):
        raise SinkError(
            f"{name} holds vectors of {table.dim} dimensions, the query has shape {vector.shape}; "
            f"search with the model that made them, {table.model!r}"
        )
    text = "[" + ",".join(map(repr, vector.tolist())) + "]"
    clause, values = where_clause(where)
    distance = sql.SQL("embedding {} %s::{}").format(
        sql.SQL(OPERATORS[table.similarity][0]), sql.SQL(table.type_name)
    )
    query = sql.SQL(
        f"SELECT {HIT_COLUMNS}, {NAMED_NOW}, {{}} AS distance FROM {{}} WHERE {{}} ORDER BY "
    ).format(distance, table.escaped, clause)
    limit = k if where is None else EXTRA_ROWS * k
    with connection.transaction():
        _widen(connection, k, is_filtered=where is not None)
        rows = connection.execute(
            query + sql.SQL("distance LIMIT %s"), (table.regclass, text, *values, limit)
        ).fetchall()
        if len(rows) < k and find_index(connection, table) is not None:
            # No index has this order, so every row is compared.
            exact = query + sql.SQL("({}) + 0 LIMIT %s").format(distance)
            rows = connection.execute(exact, (table.regclass, text, *values, text, k)).fetchall()
    check_table(rows, table)
    hits = [read_hit(row, _score(row[-1], table)) for row in rows]
    return sorted(hits, key=lambda hit: -hit.score)[:k]


def search_sparse(
    connection: Connection, table: Table, weights: SparseVector, k: int, where: Filter | None
) -> list[Hit]:
    """Return the rows with the greatest sums of products, best first; every row is compared.

    pgvector's index of sparse vectors takes up to 1,000 weights of a row, and is not exact.
    """
    assert table.sparse is not None, "the caller has checked it"
    dim = table.sparse.dim
    text = ",".join(f"{id_ + 1}:{float(each)!r}" for id_, each in weights.items() if id_ < dim)
    vector = f"{{{text}}}/{dim}"
    clause, values = where_clause(where)
    query = sql.SQL(
        f"SELECT {HIT_COLUMNS}, place, distance FROM"
        f" (SELECT {HIT_COLUMNS}, {NAMED_NOW} AS place, {{}} <#> %s::sparsevec AS distance"
        " FROM {} WHERE {}) AS found"
        " WHERE distance < 0 ORDER BY distance, langchain_id LIMIT %s"
    ).format(sql.Identifier(SPARSE_COLUMN), table.escaped, clause)
    rows = connection.execute(query, (table.regclass, vector, *values, k)).fetchall()
    check_table(rows, table)
    return [read_hit(row, -row[-1]) for row in rows]


def check_table(rows: Sequence[tuple[Any, ...]], table: Table) -> None:
    """Refuse rows of a table that has taken the name of the one that was meant.

    Args:
        rows: the last value but one of each is the number of the table that was read.
        table: that was meant.

    Raises:
        TableMovedError: they are such.
    """
    if any(row[-2] != table.oid for row in rows):
        raise TableMovedError


def read_hit(row: Sequence[Any], score: float) -> Hit:
    """Return a row that begins with `HIT_COLUMNS` as a hit."""
    id_, source_id, chunk, content, metadata, *_ = row
    return Hit(
        score=score,
        id=id_,
        source_id=str(id_) if source_id is None else source_id,
        chunk=chunk or 0,
        text=content,
        metadata=metadata or {},
    )


def _score(distance: float, table: Table) -> float:
    if table.similarity != "cosine":
        return -distance
    return 0.0 if math.isnan(distance) else 1 - distance  # a vector of zeros has no direction


def _widen(connection: Connection, k: int, *, is_filtered: bool) -> None:
    """Make the index examine enough rows for `k` results, in this transaction.

    Iterative scans, since pgvector 0.8, continue if deleted rows, or such that do not pass a
    filter, were among the first results. In strict order they leave out rows that are nearer than
    those they have returned, and with a filter that may be most of the right ones.
    """
    least = min(max(k, FILTERED_EF_SEARCH) if is_filtered else k, MAX_EF_SEARCH)
    # The settings exist only after pgvector is loaded, which a value of its type does.
    connection.execute("SELECT '[0]'::vector")
    connection.execute(
        "SELECT set_config(name, CASE name WHEN 'hnsw.iterative_scan' THEN %s"
        " ELSE greatest(setting::integer, %s)::text END, true)"
        " FROM pg_settings WHERE name IN ('hnsw.iterative_scan', 'hnsw.ef_search')",
        ("relaxed_order" if is_filtered else "strict_order", least),
    )
