"""Full-text search in Postgres, and the column that it needs in tables of every age."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from embedlib.errors import SinkError
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from embedlib_pgvector.full_text import MAX_CHARACTERS, build_words_index
from tests.indexing.text_checks import check_text_sink, weighed_ts_rank

ENGLISH = replace(TARGET, full_text="english")


def test_words(pg: Any, pg_table: str) -> None:
    check_text_sink(lambda: pg.sink(pg_table), weighed_ts_rank)


def load(pg: Any, table: str, target: Any, rows: list[Any]) -> Any:
    """Load rows and return a sink that reads them."""
    writer = pg.begun(table, target)
    writer.write(rows, make_vectors(rows))
    writer.finish()
    writer.close()
    return pg.sink(table)


def num_indexes(pg: Any, table: str) -> int:
    return pg.fetch("SELECT count(*) FROM pg_index WHERE indrelid = '{}'::regclass", table)[0]


def vectors_index(pg: Any, table: str) -> list[str]:
    """Return the name of the index of the vectors while there is none of the words."""
    names: list[str] = pg.fetch(
        "SELECT relname FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
        " WHERE indrelid = '{}'::regclass AND NOT indisprimary",
        table,
    )
    return names


def find(sink: Any, question: str) -> set[int]:
    return {hit.metadata["page"] for hit in sink.search_text(question, 50, None)}


def test_words_are_added_to_a_table_with_rows(pg: Any) -> None:
    table = 'we"ird täble; drop %s {} --'
    pg.fetch("DROP TABLE IF EXISTS {}", table)
    rows = make_rows(9, text="the copied folders")
    sink = load(pg, table, TARGET, rows)
    with pytest.raises(SinkError, match=r"holds no full-text index; load it with --full-text"):
        sink.search_text("folder", 3, None)
    assert num_indexes(pg, table) == 2  # of the ids, and of the vectors
    sink = load(pg, table, ENGLISH, rows[:1])
    assert "adding the words of 9 rows; searches wait meanwhile, and the search" in pg.lines[-2]
    assert pg.lines[-1] == "building the index of 9 rows"
    assert num_indexes(pg, table) == 3
    assert sink.inspect().full_text == "english"
    assert sink.inspect().index == "hnsw"
    assert find(sink, "copies of a folder") == set(range(9))
    assert find(sink, "the a of") == set()
    sink = load(pg, table, replace(TARGET, full_text="simple"), rows[:1])
    assert find(sink, "copy folder") == set()
    assert find(sink, "the") == set(range(9))
    before = len(pg.lines)
    sink = load(pg, table, replace(TARGET, full_text="simple"), [])
    assert len(pg.lines) == before, "nothing was to be done"
    sink = load(pg, table, replace(TARGET, recreate=True), rows[:1])
    assert sink.inspect().full_text is None
    sink.close()
    pg.fetch("DROP TABLE {}", table)


def test_an_index_of_words_that_a_killed_build_left_is_made_anew(pg: Any, table: str) -> None:
    load(pg, table, ENGLISH, make_rows(3))
    valid = "SELECT indisvalid FROM pg_index WHERE indrelid = '{}'::regclass"
    pg.fetch(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{}'::regclass",
        f"{table}_words_gin",
    )
    assert sorted(pg.fetch(valid, table)) == [False, True, True]
    load(pg, table, ENGLISH, [])
    assert pg.fetch(valid, table) == [True, True, True]
    # One that the user is building right now is none that a killed load left.
    pg.fetch("ALTER INDEX {} RENAME TO {}", f"{table}_words_gin", f"{table}_mine")
    pg.fetch(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{}'::regclass", f"{table}_mine"
    )
    # And these do not serve a search.
    pg.fetch("CREATE INDEX ON {} USING gin (embedlib_words) WHERE chunk = 0", table)
    pg.fetch("CREATE INDEX ON {} (embedlib_words)", table)
    for _ in range(2):
        load(pg, table, ENGLISH, [])
        assert sorted(pg.fetch(valid, table)) == [False, *[True] * 5]


def test_words_are_indexed_beside_writers_where_a_table_is_in_use(pg: Any, pg_table: str) -> None:
    sink, said = pg.begun(pg_table, ENGLISH), list[str]()
    with pg.connect() as connection:

        def execute(query: Any, *values: Any) -> Any:
            said.append(query if isinstance(query, str) else query.as_string(None))
            return connection.execute(query, *values)

        recorder: Any = SimpleNamespace(execute=execute)
        for is_live in (False, True):
            build_words_index(recorder, sink._begun, is_live=is_live)
            assert ("CONCURRENTLY" in said[-1]) == is_live
            pg.fetch("DROP INDEX {}", f"{pg_table}_words_gin")


def test_questions_of_all_kinds(pg: Any, pg_table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the end of a load, when the server has not counted the rows."""
    pg.fetch('CREATE TEXT SEARCH CONFIGURATION "My Words" (COPY = english)')
    try:
        sink = pg.begun(pg_table, replace(TARGET, full_text="My Words"))
        rows = make_rows(9, text="the copied folders")
        sink.write(rows, make_vectors(rows))
        assert find(sink, "\0folders\0 zebra") == set(range(9))
        assert find(sink, f"folders {' '.join(f'word{n}' for n in range(100_000))}") == set(
            range(9)
        )
        first = [hit.id for hit in sink.search_text("folder", 3, None)]
        assert first == sorted(row.id for row in rows)[:3]
        monkeypatch.setattr("embedlib_pgvector.full_text.MAX_WORDS", 1)
        assert find(sink, "zebra folders") == set()
        assert find(sink, "folders zebra") == set(range(9))
        sink.close()
    finally:
        pg.fetch("DROP TABLE IF EXISTS {}", pg_table)
        pg.fetch('DROP TEXT SEARCH CONFIGURATION "My Words"')


@pytest.mark.parametrize("owner", ["user", "embedlib"])
def test_an_index_that_the_load_does_not_build_again_stays(
    pg: Any, pg_table: str, owner: str
) -> None:
    load(pg, pg_table, TARGET, make_rows(9, text="the copied folders"))
    options = {"index": None}
    if owner == "user":
        [name] = vectors_index(pg, pg_table)
        pg.fetch("ALTER INDEX {} RENAME TO {}", name, f"mine_{pg_table}"[:63])
        options = {}
    before = vectors_index(pg, pg_table)
    pg.begun(pg_table, ENGLISH, **options).close()
    assert pg.lines[-1].endswith("adding the words of 9 rows; searches wait meanwhile")
    assert vectors_index(pg, pg_table) == before


def test_columns_of_the_user_may_have_any_name(pg: Any, pg_table: str) -> None:
    sink = load(pg, pg_table, ENGLISH, make_rows(9, text="the copied folders"))
    expected = [(hit.id, hit.score) for hit in sink.search_text("folders copied", 5, None)]
    assert len(expected) == 5
    for name in ("place", "score", "query", "weight", "word", "found", "rank", "asked"):
        pg.fetch(f"ALTER TABLE {{}} ADD COLUMN {name} text DEFAULT 'folder'", pg_table)
    found = sink.search_text("folders copied", 5, None)
    assert [(hit.id, hit.score) for hit in found] == expected
    sink.close()


def test_an_unknown_language_changes_nothing(pg: Any, pg_table: str) -> None:
    bad = "english'; DROP TABLE docs; --"
    for language, num_rows in ((bad, None), ("ENGLISH", 2)):
        sink = pg.sink(pg_table)
        with pytest.raises(SinkError, match=r"no text search configuration of this .*, simple,"):
            sink.begin(replace(TARGET, full_text=language, recreate=True), pg.lines.append)
        sink.close()
        state = pg.sink(pg_table).inspect()
        assert (state and state.num_rows) == num_rows
        load(pg, pg_table, TARGET, make_rows(2))


def test_texts_that_postgres_would_refuse_to_index(pg: Any, pg_table: str) -> None:
    """Its limit is 1 MB for the words of a text; more characters than that are stored here."""
    words = " ".join(f"{chr(0x4E00 + n % 20000)}{n:x}" for n in range(120_000))
    long = [*("x" * 1_100_000, words, "é-è " * 200_000), "y" * MAX_CHARACTERS + " behind"]
    rows = [replace(row, text=text) for row, text in zip(make_rows(len(long)), long, strict=True)]
    sink = load(pg, pg_table, replace(TARGET, full_text="simple"), rows)
    assert sink.inspect().num_rows == len(long)
    assert find(sink, words[:6]) == {1}
    assert find(sink, "behind") == set()
    assert pg.lines == [f"building the index of {len(long)} rows"]
