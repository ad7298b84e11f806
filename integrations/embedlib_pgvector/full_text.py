"""Full-text search: a column with the words of each row, its index, and the ranking.

The words are a generated column, so that rows of other programs have them too. An index on an
expression would need no column, but a ranking would then have to parse every text that it ranks.
"""

from __future__ import annotations

from psycopg import sql

from embedlib.errors import SinkError
from embedlib.indexing import Filter, Hit, Tell
from embedlib_pgvector.connection import Connection
from embedlib_pgvector.destination import Destination
from embedlib_pgvector.filters import where_clause
from embedlib_pgvector.hnsw import concurrently, drop_index, find_index, is_own
from embedlib_pgvector.index_names import WORDS_INDEX, new_index_name, own_ending
from embedlib_pgvector.queries import HIT_COLUMNS, NAMED_NOW, check_table, read_hit
from embedlib_pgvector.table import Table, count_rows, read_mark, write_mark

WORDS_COLUMN = "embedlib_words"
MAX_CHARACTERS = 200_000
"""Of a text, that are indexed: the words of more may take over 1 MB, which Postgres refuses.

Source: https://www.postgresql.org/docs/current/textsearch-limitations.html"""
MAX_WORDS = 64
"""Different words of a question that count, the first ones; the index is asked for each."""

_WORDS = sql.Identifier(WORDS_COLUMN)


def check_configuration(connection: Connection, language: str | None, name: str) -> None:
    """Refuse a language that the server does not know; None: there is none to check.

    Raises:
        SinkError: names those that it knows.
    """
    if language is None:
        return
    found = connection.execute(
        "SELECT cfgname FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) ORDER BY 1"
    ).fetchall()
    if (language,) not in found:
        raise SinkError(
            f"{name}: full_text = {language!r:.60} is no text search configuration of this "
            f"server; it has {', '.join(known for (known,) in found)}"
        )


def index_words(
    connection: Connection, table: Table, language: str, destination: Destination, tell: Tell
) -> None:
    """Add the column of words, or replace that of another language.

    The server writes the table anew with all of its indexes, and nobody reads it meanwhile. So
    embedlib's own index of the vectors is dropped first, and built again at the end of the load.

    Args:
        connection: outside of a transaction.
        table: its columns.
        language: that `check_configuration` knows.
        destination: whether the vectors have an index.
        tell: hears of it if there are rows.
    """
    num_rows, _ = count_rows(connection, table)
    if num_rows:
        told = f"{destination.name}: adding the words of {num_rows:,} rows; searches wait meanwhile"
        index = find_index(connection, table)
        if destination.index is not None and index is not None and is_own(table, index):
            tell(f"{told}, and the search index is built again at the end")
            drop_index(connection, table, index.name)
        else:
            tell(told)
    alter = sql.SQL(
        "ALTER TABLE {} {drop} ADD COLUMN {words} tsvector GENERATED ALWAYS"
        " AS (to_tsvector({}::regconfig, left(content, {}))) STORED"
    ).format(
        table.identifier,
        sql.Literal(sql.Identifier(language).as_string(connection)),
        sql.Literal(MAX_CHARACTERS),
        drop=sql.SQL("" if table.full_text is None else "DROP COLUMN IF EXISTS {},").format(_WORDS),
        words=_WORDS,
    )
    with connection.transaction():
        connection.execute(alter)
        mark = read_mark(connection, table.oid)
        write_mark(connection, table.identifier, {**mark, "full_text": language})


def build_words_index(connection: Connection, table: Table, *, is_live: bool) -> None:
    """Build the index of the words if it is missing.

    Args:
        connection: outside of a transaction.
        table: has the column.
        is_live: whether the table may be in use; then the build does not block writers.
    """
    found = connection.execute(
        "SELECT c.relname, i.indisvalid FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
        " WHERE i.indrelid = %s AND a.attname = %s AND m.amname = 'gin' AND i.indpred IS NULL"
        " ORDER BY i.indisvalid DESC LIMIT 1",
        (table.oid, WORDS_COLUMN),
    ).fetchone()
    if found is not None and found[1]:
        return
    if found is not None and own_ending(table, found[0]) == WORDS_INDEX:
        drop_index(connection, table, found[0])
    connection.execute(
        sql.SQL("CREATE INDEX {} {} ON {} USING gin ({})").format(
            concurrently(connection, table) if is_live else sql.SQL(""),
            sql.Identifier(new_index_name(connection, table, WORDS_INDEX)),
            table.identifier,
            _WORDS,
        )
    )


def search_text(
    connection: Connection, table: Table, question: str, k: int, where: Filter | None
) -> list[Hit]:
    """Return the rows that fit the words of a question best, best first.

    The score is the sum over the words of `ts_rank`, which grows with the number of times that a
    word is there and falls with the length of the text, times ln(1 + rows / rows with the word). A
    rank of Postgres alone does not know which word is rare.
    """
    # The table may have columns of any names, of which none may meet a name given here.
    assert table.full_text is not None, "the caller has checked it"
    queries = _words_of(connection, table.full_text, question)
    if not queries:
        return []
    clause, values = where_clause(where)
    statement = sql.SQL(
        "WITH word AS MATERIALIZED (SELECT asked.query,"
        " ln(1 + (SELECT greatest(reltuples, 1) FROM pg_class WHERE oid = %s)"
        " / greatest((SELECT count(*) FROM {table} WHERE {words} @@ asked.query), 1)) AS weight"
        " FROM unnest(%s::text[]::tsquery[]) AS asked (query))"
        f" SELECT {{columns}}, place, score FROM (SELECT {{columns}}, {NAMED_NOW} AS place,"
        " (SELECT sum(weight * ts_rank({words}, query, 1)) FROM word) AS score"
        " FROM {table} WHERE {words} @@ %s::tsquery AND {clause}) AS found"
        " ORDER BY score DESC, langchain_id LIMIT %s"
    ).format(table=table.escaped, words=_WORDS, columns=sql.SQL(HIT_COLUMNS), clause=clause)
    rows = connection.execute(
        statement, (table.oid, queries, table.regclass, " | ".join(queries), *values, k)
    ).fetchall()
    check_table(rows, table)
    return [read_hit(row, row[-1]) for row in rows]


def _words_of(connection: Connection, language: str, question: str) -> list[str]:
    """Return a query for each word of a question; none if all are stop words."""
    text = question[:MAX_CHARACTERS].replace("\0", " ")  # which Postgres refuses
    rows = connection.execute(
        "SELECT lexeme FROM unnest(to_tsvector(quote_ident(%s)::regconfig, %s))"
        " ORDER BY positions[1] LIMIT %s",
        (language, text, MAX_WORDS),
    )
    return ["'" + word.replace("\\", "\\\\").replace("'", "''") + "'" for (word,) in rows]
