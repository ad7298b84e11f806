"""Loads of a table that grows: only what has changed is read, and nothing is lost."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SinkError, SourceError
from embedlib.indexing import (
    Document,
    IndexReport,
    Source,
    SourceOptions,
    index,
    open_sql_source,
)
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder

QUERY = "SELECT id, body, changed FROM docs"


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as made:
        yield made


@dataclass
class Table:
    """A SQLite file, and the destination that its rows are loaded into."""

    path: Path
    embedder: Embedder
    store: FakeStore = field(default_factory=FakeStore)
    told: list[str] = field(default_factory=list)

    def put(self, id_: int, changed: Any, body: str | None = "text") -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("PRAGMA synchronous = OFF")
            row = (id_, body and f"{body} {id_} of {changed}", changed)
            database.execute("INSERT OR REPLACE INTO docs VALUES (?, ?, ?)", row)

    def rows(self) -> dict[str, str]:
        with closing(sqlite3.connect(self.path)) as database:
            return {str(id_): body for id_, body in database.execute("SELECT id, body FROM docs")}

    def source(self, query: str = QUERY, **how: Any) -> Source:
        options = SourceOptions(**{"since_field": "changed", "since_overlap": 5, **how})
        return open_sql_source(f"sqlite:{self.path}", query, options, self.told.append)

    def load(
        self, *errors: BaseException | None, query: str = QUERY, **options: Any
    ) -> IndexReport:
        how = {name: options.pop(name) for name in list(options) if name.startswith("since")}
        sink = FakeSink(self.store)
        sink.fail(*errors)
        return index(
            self.source(query, **how),
            sink,
            embedder=self.embedder,
            tell=self.told.append,
            **{"chunk": False, **options},
        )

    def stored(self) -> dict[str, str]:
        return {row.source_id: row.text for row in self.store.rows.values()}


@pytest.fixture
def table(tmp_path: Path, embedder: Embedder) -> Table:
    made = Table(tmp_path / "app.db", embedder)
    with closing(sqlite3.connect(made.path)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE docs (id INTEGER PRIMARY KEY, body TEXT, changed)")
        rows = [(number, f"text {number} of {number}", number) for number in range(1, 21)]
        database.executemany("INSERT INTO docs VALUES (?, ?, ?)", rows)
    return made


def test_a_second_run_reads_what_is_new_and_what_has_changed(table: Table) -> None:
    assert table.load().num_documents == 20
    table.put(21, 21)
    table.put(3, 22)
    report = table.load()
    # Those from 20 - 5 on, and the two.
    assert (report.num_documents, report.num_embedded, report.num_unchanged) == (8, 2, 6)
    assert report.num_other is None
    assert not any("takes the place" in line for line in table.told)
    assert table.stored() == table.rows()


def test_rows_with_the_last_value_are_read_again(table: Table) -> None:
    table.load(since_overlap=0)
    table.put(21, 20)  # committed later, with the same value
    report = table.load(since_overlap=0)
    assert (report.num_documents, report.num_embedded) == (2, 1)
    assert table.stored() == table.rows()


def test_a_row_that_was_committed_late_is_found_within_the_overlap(table: Table) -> None:
    table.load()
    table.put(21, 15)
    assert table.load().num_embedded == 1
    assert table.stored() == table.rows()


def test_a_row_without_a_value_is_read_in_every_run(table: Table) -> None:
    table.put(5, None)
    table.load()
    table.put(5, None, "other")
    assert table.load().num_embedded == 1
    assert table.stored() == table.rows()


def test_where_no_row_has_a_value_there_is_no_position(table: Table) -> None:
    for number in range(1, 21):
        table.put(number, None)
    for _ in range(2):
        assert table.load().num_documents == 20
        assert table.store.position is None


def test_a_column_of_times(table: Table) -> None:
    for number in range(1, 21):
        table.put(number, f"2026-01-{number:02} 00:00:00")
    table.load(since_overlap=60)
    table.put(21, "2026-01-19 23:59:30.5")
    assert table.load(since_overlap=60).num_documents == 2
    assert table.stored() == table.rows()


def test_the_position_is_stored_after_the_last_row(table: Table) -> None:
    with pytest.raises(SinkError):
        table.load(None, SinkError("killed"), batch_rows=4)
    assert table.stored()
    assert table.store.position is None
    assert table.load().num_documents == 20
    assert [name for name, _ in table.store.calls][-2:] == ["finish", "save_position"]
    position = table.store.position
    table.put(30, 30)
    with pytest.raises(SinkError):
        table.load(SinkError("killed"))
    assert table.store.position == position
    table.load()
    assert table.stored() == table.rows()


def test_a_position_that_does_not_move_is_not_written_again(table: Table) -> None:
    table.load()
    table.store.calls.clear()
    table.load()
    assert ("save_position", 0) not in table.store.calls


def test_bad_rows_hold_the_position(table: Table) -> None:
    table.put(21, 21, None)
    assert table.load().num_bad == 1
    assert table.store.position is None
    assert "leave them out of the query (WHERE)" in table.told[-1]
    assert table.load(query=f"{QUERY} WHERE body NOT NULL").num_bad == 0
    assert table.store.position is not None


def test_a_limited_load_leaves_the_position(table: Table) -> None:
    table.load(limit=3)
    assert table.store.position is None
    table.load()
    position = table.store.position
    table.put(40, 40)
    table.load(limit=1)
    assert table.store.position == position


@pytest.mark.parametrize(
    "other",
    [
        {"query": f"{QUERY} WHERE id > 0"},
        {"chunk": True},
        {"since_field": "id"},
        {"since_field": None},
        {"recreate": True},
    ],
)
def test_another_load_drops_the_position(table: Table, other: dict[str, Any]) -> None:
    table.load()
    table.put(1, 1, "changed")
    with pytest.raises(SinkError, match="killed"):
        table.load(SinkError("killed"), **other)
    assert table.store.position is None
    assert table.load().num_documents == 20
    assert table.stored() == table.rows()


@pytest.mark.parametrize(
    "line", ["the file, from the folder docs", "17", '{"by": "hand"}', '{"scope": "all rows"}']
)
def test_what_is_no_position_is_left_alone(table: Table, line: str) -> None:
    """Postgres keeps the position in the comment of a column, which is for everybody."""
    table.store.position = line
    table.load(since_field=None)
    assert table.store.position == line
    assert table.load().num_documents == 20
    assert table.told[-1].endswith(f"what somebody wrote where it is kept: {line!r}")
    assert table.load().num_documents == 6
    assert sum("takes the place" in said for said in table.told) == 1


def test_another_version_reads_everything(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.load()
    monkeypatch.setattr("embedlib.indexing.resuming.__version__", "0")
    assert table.load().num_documents == 20


def test_what_a_function_puts_in_front_is_read_anew(table: Table) -> None:
    """Another function may lie where this one did, or this one may return something else."""
    words = ["a"]
    options: dict[str, Any] = {"chunk": True, "prefix": lambda document, chunk: words[0]}
    table.load(**options)
    words[0] = "b"
    assert table.load(**options).num_embedded == 20


def test_an_object_that_puts_something_in_front_is_not_copied(table: Table) -> None:
    class Model:
        def __init__(self) -> None:
            self.connection = threading.Lock()  # what cannot be copied

        def prefix(self, document: Any, chunk: Any) -> str:
            return "a"

    model = Model()
    for _ in range(2):
        assert table.load(chunk=True, prefix=model.prefix).num_documents == 20


def test_options_that_change_no_row_keep_the_position(table: Table) -> None:
    table.load()
    assert table.load(batch_rows=7, on_error="stop", since_overlap=0).num_documents == 1


def test_a_destination_that_lost_rows_is_loaded_again(table: Table) -> None:
    table.load()
    del table.store.rows[next(iter(table.store.rows))]
    assert table.load().num_documents == 20
    assert "has lost rows" in "".join(table.told)
    assert table.stored() == table.rows()
    assert table.load().num_documents == 6  # the position is stored again, though it is the same


def test_a_load_whose_rows_are_removed_meanwhile_is_not_complete(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FakeSink.write

    def write_and_remove(sink: FakeSink, rows: Any, vectors: Any) -> None:
        write(sink, rows, vectors)
        sink.store.rows.pop(rows[0].id, None)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(FakeSink, "write", write_and_remove)
        with pytest.raises(SinkError, match="fewer than the 20 that this load has found"):
            table.load()
    assert [name for name, _ in table.store.calls][-1] == "finish"
    assert table.store.position is None
    table.load()
    assert table.stored() == table.rows()


def test_a_dry_run_moves_nothing(table: Table) -> None:
    table.load()
    position = table.store.position
    table.put(21, 21)
    report = table.load(dry_run=True)
    assert (report.num_documents, report.num_embedded) == (7, 1)  # from 20 - 5 on
    table.load(dry_run=True, chunk=True)
    assert table.store.position == position


def test_surplus_chunks_of_a_changed_row_are_deleted(tmp_path: Path, table: Table) -> None:
    table.put(21, 21, "many words " * 40)
    table.load(chunk=True, chunk_tokens=32)
    assert len(table.store.rows) > 21
    table.put(21, 22, "few")
    report = table.load(chunk=True, chunk_tokens=32)
    assert report.num_deleted > 0
    assert table.stored() == table.rows()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"delete_missing": True}, "leave since_field .--since-field. out of such runs"),
        ({"shard": "1/2"}, "since_field and shard exclude one another"),
    ],
)
def test_options_that_need_the_whole_table_are_refused(
    table: Table, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        table.load(**options)
    assert table.store.calls == []


def test_a_sink_without_positions_is_refused(table: Table) -> None:
    class Plain(FakeSink):
        @property
        def load_position(self) -> Any:  # type: ignore[override]
            raise AttributeError

    with pytest.raises(SinkError, match="stores no position"):
        index(table.source(), Plain(table.store), embedder=table.embedder)
    index(table.source(since_field=None), Plain(table.store), embedder=table.embedder, chunk=False)


@pytest.mark.parametrize("name", ["resume", "is_partial"])
def test_a_source_of_the_caller_needs_no_member_that_it_may_leave_out(
    name: str, table: Table
) -> None:
    class Own:
        scope = "own"

        def __iter__(self) -> Iterator[Document]:
            yield Document(id="1", text="text")

        def position(self) -> str | None:
            return "1"

    setattr(Own, name, lambda self, position: None)
    source: Any = Own()
    report = index(source, FakeSink(table.store), embedder=table.embedder)
    assert (table.store.position is not None) == (name == "resume")
    assert report.num_other == (0 if name == "resume" else None)


def test_a_source_that_resumes_something_else_is_read_as_a_whole(table: Table) -> None:
    class Stream(list[Document]):
        def resume(self) -> None:
            raise AssertionError("it is no position of a load")

    for _ in range(2):
        source = Stream([Document(id="1", text="text")])
        assert index(source, FakeSink(table.store), embedder=table.embedder).num_documents == 1
    assert table.store.position is None


def test_a_field_that_does_not_exist_is_named(table: Table) -> None:
    with pytest.raises(SourceError, match=r"there is no field 'when'; the fields are 'id', 'body'"):
        table.load(since_field="when")


def test_other_sources_take_no_since_field(table: Table, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    how = SourceOptions(since_field="changed")
    for source in (tmp_path / "a.txt", [{"id": "1", "text": "a"}]):
        with pytest.raises(ConfigError, match="is for the rows of a query"):
            index(source, FakeSink(table.store), embedder=table.embedder, source_options=how)


def test_an_overlap_beyond_all_numbers_of_the_database_is_one_line(table: Table) -> None:
    table.load()
    with pytest.raises(SourceError, match=r"^sqlite:.*app\.db: Python int too large to convert"):
        table.load(since_overlap=1e20)


@pytest.mark.parametrize("value", [-1, "1", True, float("nan"), float("inf")])
def test_an_overlap_is_a_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="since_overlap = "):
        SourceOptions(since_overlap=value)


def test_the_position_says_nothing_of_the_source(table: Table) -> None:
    table.load(query=f"{QUERY} WHERE body <> 'a secret'")
    stored = json.loads(table.store.position or "")
    assert sorted(stored) == ["num_rows", "position", "scope"]
    assert stored["position"] == '["int", "20", 0]'
    assert len(stored["scope"]) == 32


@pytest.mark.parametrize("seed", range(3))
def test_no_row_is_lost_with_late_commits_and_kills(table: Table, seed: int) -> None:
    draw = random.Random(seed)
    clock = 20
    newest: dict[int, int] = {}
    late: list[tuple[int, int]] = []
    for _ in range(12):
        for _ in range(draw.randrange(6)):
            clock += draw.randrange(2)  # some values are equal
            row = (draw.randrange(1, 60), clock)
            if draw.random() < 0.3:
                late.append(row)
            else:
                table.put(*row)
                newest[row[0]] = clock
        for id_, changed in late[:]:
            if changed < clock - 3 or draw.random() < 0.3:
                late.remove((id_, changed))
                if newest.get(id_, 0) < changed:
                    table.put(id_, changed)
                    newest[id_] = changed
        killed = SinkError("killed") if draw.random() < 0.4 else None
        with suppress(SinkError):
            table.load(None, killed, batch_rows=4)
    table.load()
    assert table.stored() == table.rows()
