from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pgvector.psycopg import register_vector
from pgvector.psycopg.halfvec import HalfVector
from psycopg.types.json import Jsonb

from embedlib.errors import SinkError
from embedlib_pgvector.copy_rows import COLUMNS, encode_rows

TYPES = {
    "langchain_id": "uuid",
    "chunk": "int4",
    "content": "text",
    "langchain_metadata": "jsonb",
    "source_id": "text",
    "embedlib_digest": "bytea",
}


@pytest.mark.parametrize("type_name", ["vector", "halfvec"])
def test_the_bytes_are_those_of_psycopg_pgvector_and_the_server(pg: Any, type_name: str) -> None:
    """Rows written by the two packages come out of the server as the bytes that we send."""
    rows = [pg.row(number, text) for number, text in enumerate(["a", "é漢🙂", "x" * 70_000, "\\N"])]
    vectors = pg.vectors(rows, 5)
    ours = encode_rows(rows, vectors, is_halfvec=type_name == "halfvec")
    pg.fetch("CREATE EXTENSION IF NOT EXISTS vector")
    names = ", ".join(COLUMNS)
    with pg.connect() as connection:
        register_vector(connection)
        columns = ", ".join(f"{name} {TYPES.get(name, type_name)}" for name in COLUMNS)
        connection.execute(f"CREATE TEMP TABLE t ({columns})")
        cursor = connection.cursor()
        with cursor.copy(f"COPY t ({names}) FROM STDIN (FORMAT binary)") as copy:
            copy.set_types([TYPES.get(column, type_name) for column in COLUMNS])
            for row, vector in zip(rows, vectors, strict=True):
                values = {
                    "langchain_id": row.id,
                    "chunk": row.chunk,
                    "embedding": HalfVector(vector) if type_name == "halfvec" else vector,
                    "content": row.text,
                    "langchain_metadata": Jsonb(row.metadata),
                    "source_id": row.source_id,
                    "embedlib_digest": row.digest,
                }
                copy.write_row([values[column] for column in COLUMNS])
        with cursor.copy(f"COPY t ({names}) TO STDOUT (FORMAT binary)") as copy:
            theirs = b"".join(bytes(block) for block in copy)
    assert ours == theirs


def test_a_number_too_large_for_halfvec_is_named(pg: Any) -> None:
    rows = pg.rows(0, 3)
    vectors = pg.vectors(rows)
    vectors[1, 2] = 7e4
    encode_rows(rows, vectors, is_halfvec=False)
    with pytest.raises(SinkError, match=r"^the vector of chunk 1 of 'document 0' holds a number"):
        encode_rows(rows, vectors, is_halfvec=True)


@pytest.mark.parametrize("value", [np.nan, object(), "\ud800"])
def test_metadata_that_is_not_json_is_named(pg: Any, value: object) -> None:
    rows = [pg.row(0), pg.row(1)]
    rows[1].metadata["bad"] = value  # type: ignore[index]
    with pytest.raises(SinkError, match=r"^chunk 1 of 'document 0' cannot be written: "):
        encode_rows(rows, pg.vectors(rows), is_halfvec=False)
