"""A change of model in Postgres: names, locks, rights, and what is refused."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import psycopg
import pytest

from embedlib import Search, drop_old, index
from embedlib.errors import SinkError
from embedlib.testing import check_replaceable
from embedlib_pgvector import generations
from embedlib_pgvector.destination import HnswOptions
from tests.indexing.two_models import Model, documents, is_of

NUM = 8


def load(
    pg: Any, table: str, model: str, *, hnsw: HnswOptions | None = None, **options: Any
) -> list[str]:
    told: list[str] = []
    given = {"chunk": False, "tell": told.append, **options}
    index(documents(NUM), pg.sink(table, index=hnsw), embedder=Model(model), **given)
    return told


def names(pg: Any, table: str) -> list[str]:
    """The table and those beside it, and their indexes."""
    query = "SELECT relname FROM pg_class WHERE relname LIKE '{}%' AND relkind IN ('r', 'i')"
    return sorted(name.removeprefix(table) for name in pg.fetch(query.replace("{}", table)))


def test_it_keeps_what_a_replaceable_sink_promises(pg: Any, table: str) -> None:
    check_replaceable(lambda: pg.sink(table, index=None))


def test_a_name_without_room_for_old_rows_keeps_none(pg: Any, pg_table: str) -> None:
    """Postgres cuts names to 63 bytes: that of the old rows would be the table's own."""
    name = f"{pg_table}{'x' * 63}"[:63]
    load(pg, name, "old")
    assert pg.sink(name).old() is None
    pg.sink(name).drop_old()
    assert pg.sink(name).inspect().num_rows == NUM
    with pytest.raises(SinkError, match="names have at most 63 bytes; rename the table first"):
        load(pg, name, "new", replace=True)
    pg.fetch("DROP TABLE {}", name)


def test_the_words_are_indexed_again(pg: Any, table: str) -> None:
    load(pg, table, "old", hnsw=HnswOptions(), full_text="simple")
    told = load(pg, table, "new", hnsw=HnswOptions(), replace=True)
    assert not any("indexes that you made" in line for line in told)
    own = ["", "_embedding_hnsw", "_pkey", "_words_gin"]
    assert names(pg, table) == sorted([*own, *(f"__embedlib_old{name}" for name in own)])
    sink = pg.sink(table)
    assert sink.inspect().full_text == "simple"
    assert len(sink.search_text(documents(NUM)[3].text, 50, None)) > 0


def test_names_and_rights_change_hands(pg: Any, table: str) -> None:
    """Those of table, primary key and index; and what other roles may do."""
    hnsw, role = HnswOptions(), f"reader_{table[:20]}"
    load(pg, table, "old", hnsw=hnsw)
    pg.fetch("CREATE ROLE {}", role)
    try:
        pg.fetch("GRANT SELECT, INSERT ON {} TO {}", table, role)
        pg.fetch("GRANT DELETE ON {} TO {} WITH GRANT OPTION", table, role)
        pg.fetch("GRANT SELECT ON {} TO PUBLIC", table)
        load(pg, table, "new", hnsw=hnsw, replace=True)
        query = "SELECT relacl::text[] FROM pg_class WHERE relname = '{}'".replace("{}", table)
        [rights] = pg.fetch(query)
        assert sorted(each.partition("/")[0] for each in rights[1:]) == ["=r", f"{role}=ard*"]
    finally:
        pg.fetch("DROP OWNED BY {}", role)
        pg.fetch("DROP ROLE {}", role)
    both = ["", "__embedlib_old", "__embedlib_old_embedding_hnsw", "__embedlib_old_pkey"]
    assert names(pg, table) == [*both, "_embedding_hnsw", "_pkey"]
    assert drop_old(pg.sink(table)) == NUM
    assert names(pg, table) == ["", "_embedding_hnsw", "_pkey"]
    told = load(pg, table, "new", hnsw=hnsw)
    assert not any("index" in line for line in told)  # it is found by its name


def test_a_search_of_old_rows_is_not_answered_by_an_empty_table_of_their_name(
    pg: Any, table: str
) -> None:
    load(pg, table, "old")
    with Search(pg.sink(table), Model("old")) as search:
        assert is_of("old", "text 3", search.search("text 3"))
        load(pg, table, "new", replace=True)
        pg.fetch("DELETE FROM {}", table)
        assert is_of("old", "text 3", search.search("text 3"))


def test_names_that_a_renamed_table_has_kept_do_not_stop_a_switch(pg: Any, table: str) -> None:
    kept, hnsw = f"{table}__kept", HnswOptions()
    load(pg, table, "old", hnsw=hnsw)
    pg.fetch("ALTER TABLE {} RENAME TO {}", table, kept)
    try:
        load(pg, table, "old", hnsw=hnsw)
        told = load(pg, table, "new", hnsw=hnsw, replace=True)
        assert not any("indexes that you made" in line for line in told)
        with Search(pg.sink(table), Model("new")) as search:
            assert is_of("new", "text 3", search.search("text 3"))
        assert f"{table}_embedding_hnsw" in pg.fetch(
            f"SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = '{kept}'::regclass"
        )
        assert "hnsw" in pg.sink(table).inspect().index
    finally:
        pg.fetch("DROP TABLE {}", kept)


def test_a_switch_whose_answer_is_lost_is_done(
    pg: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(pg, table, "old")
    switch_once, attempts = generations._switch_once, list[Any]()

    def lose_the_answer(connection: Any, *arguments: Any) -> None:
        switch_once(connection, *arguments)
        attempts.append(connection)
        if len(attempts) == 1:
            connection.execute("COMMIT")
            raise psycopg.errors.AdminShutdown("terminating connection")

    monkeypatch.setattr(generations, "_switch_once", lose_the_answer)
    told = load(pg, table, "new", replace=True)
    assert len(attempts) == 2
    assert any("terminating connection; trying again" in line for line in told)
    with Search(pg.sink(table), Model("new")) as search:
        assert is_of("new", "text 3", search.search("text 3"))
    assert drop_old(pg.sink(table)) == NUM


def test_the_lock_is_given_up_and_tried_again(
    pg: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction reads the table until the load has waited twice; searches go on meanwhile."""
    monkeypatch.setattr("embedlib_pgvector.generations.LOCK_TIMEOUTS_MS", (1, 1, 1))
    load(pg, table, "old")
    reader = pg.connect()
    reader.execute("BEGIN")
    reader.execute(f"SELECT count(*) FROM {table}")
    with closing(reader), Search(pg.sink(table), Model("old")) as search:

        def while_waiting() -> None:
            assert is_of("old", "text 3", search.search("text 3"))
            if len(pg.waits) == 5:
                reader.execute("COMMIT")

        pg.on_wait = while_waiting
        with pytest.raises(SinkError, match=r"in use all the time.*goes on from here"):
            load(pg, table, "new", replace=True)
        told = load(pg, table, "new", replace=True)
        assert is_of("old", "text 3", search.search("text 3"))
    assert pg.waits == [2.0] * 5
    assert sum("is in use; trying again in 2 s" in line for line in told) == 2


def test_a_search_that_waits_for_the_switch_finds_the_rows_of_its_own_model(
    pg: Any, table: str
) -> None:
    """The statement waits for the lock of the switch, and then meets another table."""
    load(pg, table, "old")
    load(pg, table, "new", replace=True)
    with Search(pg.sink(table), Model("new")) as search, closing(pg.connect()) as renaming:
        assert is_of("new", "text 3", search.search("text 3"))
        found: list[bool] = []

        def ask() -> None:
            found.append(is_of("new", "text 3", search.search("text 3")))

        with renaming.transaction():
            renaming.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            asking = threading.Thread(target=ask)
            asking.start()
            while not renaming.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)", (table,)
            ).fetchone():
                pass
            # Back to the old rows, as the next change of model would do it.
            renaming.execute(f"ALTER TABLE {table} RENAME TO swapped")
            renaming.execute(f"ALTER TABLE {table}__embedlib_old RENAME TO {table}")
            renaming.execute(f"ALTER TABLE swapped RENAME TO {table}__embedlib_old")
        asking.join()
    assert found == [True]


def test_what_the_new_table_would_not_have_is_refused(pg: Any, table: str) -> None:
    load(pg, table, "old")
    pg.fetch(
        "INSERT INTO {} (langchain_id, content, embedding) SELECT gen_random_uuid(), 'x', "
        "embedding FROM {} LIMIT 1",
        table,
        table,
    )
    with pytest.raises(SinkError, match="has 1 rows that other programs wrote"):
        load(pg, table, "new", replace=True)
    pg.fetch("DELETE FROM {} WHERE embedlib_digest IS NULL", table)
    pg.fetch("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", table)
    with pytest.raises(SinkError, match="has row security"):
        load(pg, table, "new", replace=True)
    pg.fetch("ALTER TABLE {} DISABLE ROW LEVEL SECURITY", table)
    pg.fetch("CREATE INDEX {} ON {} (source_id)", f"{table}_mine", table)
    pg.fetch("CREATE VIEW {} AS SELECT * FROM {}", f"{table}_view", table)
    told = load(pg, table, "new", replace=True)
    assert any(f"the indexes that you made ({table}_mine)" in line for line in told)
    with pytest.raises(SinkError, match="other objects depend on it"):
        drop_old(pg.sink(table))
    pg.fetch("DROP VIEW {}", f"{table}_view")
    assert drop_old(pg.sink(table)) == NUM
    with pytest.raises(SinkError, match="names have at most 63 bytes; rename the table first"):
        load(pg, "t" * 50, "new", replace=True)


def test_rows_that_another_program_adds_during_the_load_are_not_lost(pg: Any, table: str) -> None:
    load(pg, table, "old")
    with closing(pg.sink(table, index=None).beside()) as new:
        new.begin(pg.target(), pg.lines.append)
        pg.fetch(
            "INSERT INTO {} (langchain_id, content, embedding) SELECT gen_random_uuid(), 'x', "
            "embedding FROM {} LIMIT 1",
            *(table, table),
        )
        with pytest.raises(SinkError, match="has 1 rows that other programs wrote"):
            new.switch()


def test_a_connection_that_is_lost_after_the_switch(
    pg: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the answer is lost: the switch is not made twice."""
    load(pg, table, "old")
    lost: list[None] = []
    whole = psycopg.Transaction.__exit__

    def lose_answer(self: Any, *args: Any) -> Any:
        done = whole(self, *args)
        if not lost and pg.fetch(f"SELECT to_regclass('{table}__embedlib_old')") != [None]:
            lost.append(None)
            pg.end_writers()
        return done

    monkeypatch.setattr(psycopg.Transaction, "__exit__", lose_answer)
    load(pg, table, "new", replace=True)
    assert lost
    with closing(pg.sink(table)) as sink:
        assert (sink.inspect().model, sink.old().model) == ("new", "old")
