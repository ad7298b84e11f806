"""A table of the sink, opened by LangChain's PGVectorStore as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_postgres import PGEngine, PGVector, PGVectorStore

from embedlib.indexing import SourceOptions, open_sql_source
from embedlib.indexing.rows import Document as Read

NUM_ROWS = 40


class NumberEmbeddings(Embeddings):
    """The vector of the number at the end of a text."""

    def __init__(self, pg: Any) -> None:
        self.pg = pg

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self.pg.vectors([self.pg.row(int(text.split()[-1]))])[0].tolist()
        return vector

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@contextmanager
def closing_engine(store: PGVector) -> Iterator[PGVector]:
    yield store
    store._engine.dispose()


@pytest.fixture
def engine(pg: Any) -> Iterator[PGEngine]:
    dsn = pg.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = PGEngine.from_connection_string(dsn)
    yield engine
    engine._run_as_sync(engine.close())


@pytest.mark.parametrize("is_halfvec", [False, True])
def test_langchain_reads_and_changes_the_table(
    pg: Any, pg_table: str, engine: PGEngine, is_halfvec: bool
) -> None:
    sink = pg.begun(pg_table, replace(pg.target(), full_text="simple"), is_halfvec=is_halfvec)
    rows = pg.rows(0, NUM_ROWS)
    sink.write(rows, pg.vectors(rows))
    sink.finish()

    store = PGVectorStore.create_sync(
        engine,
        embedding_service=NumberEmbeddings(pg),
        table_name=pg_table,
        metadata_columns=["source_id", "chunk"],
    )
    (found,) = store.similarity_search("number 17", k=1)
    assert found.page_content == rows[17].text
    assert found.metadata == {"number": 17, "source_id": "document 5", "chunk": 2}
    (found,) = store.similarity_search("number 17", k=1, filter={"source_id": "document 3"})
    assert found.metadata["source_id"] == "document 3"
    (found,) = store.get_by_ids([str(rows[3].id)])
    assert found.page_content == rows[3].text

    theirs = str(uuid4())
    documents = [Document(page_content="added 1000", metadata={"number": 1000}, id=theirs)]
    assert store.add_documents(documents) == [theirs]
    store.delete([str(rows[0].id)])
    (found,) = store.similarity_search("number 1000", k=1)
    assert found.page_content == "added 1000"
    assert [hit.text for hit in sink.search_text("added", 3, None)] == ["added 1000"]

    # What LangChain added is not ours: it is found, but never listed, and so never deleted.
    assert {key.id for key in sink.scan()} == {row.id for row in rows[1:]}
    assert sink.digests([row.id for row in rows[:2]]) == {rows[1].id: rows[1].digest}
    state = sink.inspect()
    assert state is not None
    assert state.num_rows == NUM_ROWS - 1
    best = sink.search(pg.vectors([pg.row(1000)])[0], 1)[0]
    assert (str(best.id), best.source_id, best.chunk) == (theirs, theirs, 0)
    assert best.metadata["number"] == 1000
    sink.close()
    pg.begun(pg_table, is_halfvec=is_halfvec).write(rows[:1], pg.vectors(rows[:1]))
    assert len(store.get_by_ids([theirs, str(rows[0].id)])) == 2
    pg.fetch("UPDATE {} SET langchain_metadata = NULL WHERE content = 'added 1000'", pg_table)
    best = pg.sink(pg_table).search(pg.vectors([pg.row(1000)])[0], 1)[0]
    assert (best.text, best.metadata) == ("added 1000", {})


# --- the recipes of docs/langchain.md -------------------------------------------------------------


def read_as_told(pg: Any, query: str, **options: Any) -> list[tuple[str, str, Any]]:
    rows = open_sql_source(pg.dsn, query, SourceOptions(**options), [].append)
    return [(row.id, row.text, row.metadata) for row in rows if isinstance(row, Read)]


def test_rows_of_pgvector_s_first_class_move(pg: Any, pg_table: str, engine: PGEngine) -> None:
    pg.begun(pg_table).close()  # makes the extension
    dsn = pg.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    documents = [Document(page_content=f"number {n}", metadata={"lang": "en"}) for n in (1, 2)]
    ids = [str(uuid4()) for _ in documents]
    for collection in ("docs", "others"):
        names = {"collection_name": collection, "connection": dsn}
        with closing_engine(PGVector(NumberEmbeddings(pg), **names)) as store:
            store.add_documents(documents, ids=[f"{collection} {id_}" for id_ in ids])
    query = (
        "-- PGVector, the collection docs\n"
        "SELECT e.id, e.document, e.cmetadata->>'lang' AS lang FROM langchain_pg_embedding e "
        "JOIN langchain_pg_collection c ON c.uuid = e.collection_id WHERE c.name = 'docs';"
    )
    try:
        assert sorted(read_as_told(pg, query), key=lambda row: row[1]) == [
            (f"docs {id_}", f"number {n}", {"lang": "en"})
            for n, id_ in zip((1, 2), ids, strict=True)
        ]
    finally:
        pg.fetch("DROP TABLE langchain_pg_embedding, langchain_pg_collection")


def test_rows_of_a_pgvectorstore_move(pg: Any, pg_table: str, engine: PGEngine) -> None:
    pg.begun(f"{pg_table}_any").close()  # makes the extension
    engine.init_vectorstore_table(pg_table, len(pg.vectors([pg.row(0)])[0]))
    store = PGVectorStore.create_sync(engine, NumberEmbeddings(pg), table_name=pg_table)
    (id_,) = store.add_documents([Document(page_content="number 3", metadata={"lang": "en"})])
    query = (
        "SELECT langchain_id AS id, content, langchain_metadata->>'lang' AS lang "
        f'FROM "{pg_table}"'
    )
    assert read_as_told(pg, query) == [(id_, "number 3", {"lang": "en"})]
    pg.fetch("DROP TABLE {}", f"{pg_table}_any")
