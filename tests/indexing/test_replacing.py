"""A change of model: rows beside rows, the checks, the switch, and what is kept."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from embedlib import Document, Search, drop_old, index, search
from embedlib.cli import main
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing import ReplacedError, open_sink
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.replacing import other_rows
from embedlib.indexing.sinks.file_sink import FileSink
from embedlib.indexing.sinks.file_tables import drop_old_tables
from embedlib.testing import FakeSink, FakeStore, check_replaceable
from tests.indexing.two_models import Model, documents, is_of, vector_of

NUM = 40


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A destination with rows of the model "old"."""
    url = f"jsonl:{tmp_path / 'rows.jsonl'}"
    load(url, Model("old"))
    return url


def load(url: str, model: Model, rows: Any = None, **options: Any) -> list[str]:
    told: list[str] = []
    given = {"chunk": False, "tell": told.append, **options}
    index(documents(NUM) if rows is None else rows, url, embedder=model, **given)
    return told


def vectors_in(url: str) -> dict[str, Any]:
    """What another program reads in the exported file."""
    lines = Path(url.partition(":")[2]).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["text"]: np.array(row["embedding"], np.float32) for row in rows}


def expect_rows(url: str, model: str, num_rows: int = NUM) -> None:
    """The destination and its file have the rows of a fresh load."""
    found = vectors_in(url)
    assert len(found) == num_rows
    assert all(np.allclose(found[text], vector_of(model, text)) for text in found)
    with closing(open_sink(url)) as sink:
        state = sink.inspect()
    assert state is not None
    assert (state.model, state.num_rows) == (model, num_rows)


@pytest.mark.parametrize("scheme", ["jsonl", "npy"])
def test_files_keep_what_a_replaceable_sink_promises(scheme: str, tmp_path: Path) -> None:
    are_open: set[Any] = set()

    def make() -> Any:
        sink: Any = open_sink(f"{scheme}:{tmp_path / 'a'}")
        close = sink.close
        sink.close = lambda: (are_open.discard(sink), close())
        are_open.add(sink)
        return sink

    check_replaceable(make)
    assert not are_open


def test_room_that_could_not_be_given_back_is_given_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"jsonl:{tmp_path / 'a'}"
    load(url, Model("old"))
    load(url, Model("new"), replace=True)
    database = tmp_path / "a.embedlib" / "rows.sqlite"
    size = database.stat().st_size

    def refuse_then(connection: sqlite3.Connection) -> None:
        drop_old_tables(connection)
        connection.set_progress_handler(lambda: 1, 100)  # stops what takes longer than a commit

    with monkeypatch.context() as patched:
        patched.setattr("embedlib.indexing.sinks.file_sink.drop_old_tables", refuse_then)
        with pytest.raises(SinkError, match=r"rows are removed, but .* and run drop-old again"):
            drop_old(url)
    assert drop_old(url) == 0
    assert database.stat().st_size < size
    expect_rows(url, "new")


def test_a_model_is_changed_while_searches_go_on(url: str) -> None:
    old, new = Model("old"), Model("new")
    with Search(url, old) as early:
        told = load(url, new, replace=True)
        assert is_of("old", "text 3", early.search("text 3"))
        with Search(url, new) as late, Search(url, old) as with_the_old_model:
            assert is_of("new", "text 3", late.search("text 3"))
            assert is_of("old", "text 3", with_the_old_model.search("text 3"))
        assert is_of("old", "text 3", search("text 3", url, embedder=old))
        expect_rows(url, "new")
        assert re.search(r"nearest to each of 32 sampled rows, both models find \d+%$", told[-2])
        assert told[-1].endswith("those of 'old' are kept until embedlib drop-old")
        assert drop_old(url) == NUM
        assert drop_old(url) == 0
        gone = "holds rows of 'new' now, and those of 'old' that were searched are gone"
        with pytest.raises(ReplacedError, match=gone):
            early.search("text 3")
    with pytest.raises(SinkError, match="search with the same model and options"):
        search("text 3", url, embedder=old)


def test_what_is_embedded_in_front_of_a_chunk_is_no_other_vector(url: str) -> None:
    """The sampled rows are embedded again with it."""
    new = Model("new")
    load(url, new, replace=True, chunk=True, prefix="{page}: ")
    found = vectors_in(url)
    expected = {doc.text: f"{doc.metadata['page']}: {doc.text}" for doc in documents(NUM)}
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[text], vector_of("new", expected[text])) for text in found)


def test_a_load_that_died_goes_on(url: str) -> None:
    new = Model("new")
    new.dies_after = 8
    with pytest.raises(KeyboardInterrupt):
        load(url, new, replace=True, batch_rows=4)
    expect_rows(url, "old")
    new.dies_after = None
    stored = new.num_texts
    load(url, new, replace=True)
    assert 0 < stored <= 8
    assert new.num_texts <= NUM + 4 + 32  # what was in flight, and the sample
    expect_rows(url, "new")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_export_that_died_is_written_by_the_next_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("embedlib.indexing.sinks.file_sink.export", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load(url, Model("new"), replace=True)
    assert is_of("new", "text 1", search("text 1", url, embedder=Model("new")))
    again = Model("new")
    told = load(url, again, replace=True)
    assert "holds rows of 'new' already; they are brought up to date" in told[0]
    assert again.num_texts == 0
    expect_rows(url, "new")


def test_a_third_model_has_to_say_what_becomes_of_the_second(url: str) -> None:
    second = Model("second")
    second.dies_after = 8
    with pytest.raises(KeyboardInterrupt):
        load(url, second, replace=True, batch_rows=4)
    sides = (
        r"changed to 'second' with 32 dimensions, of which .* 'second' with 8 dimensions instead"
    )
    smaller = Model("second", dim=8)
    smaller.fingerprint = "folder:smaller"
    with pytest.raises(SinkError, match=sides):
        load(url, smaller, replace=True)
    shown = CliRunner().invoke(main, ["status", url])
    assert re.search(r"loaded beside, not found +\d+ rows of second\n", shown.output)
    load(url, Model("third", dim=8), replace=True, recreate=True)
    with closing(open_sink(url)) as sink:
        state = sink.inspect()
    assert state is not None
    assert (state.model, state.dim) == ("third", 8)
    with pytest.raises(SinkError, match=r"still keeps the 40 rows of 'old'.*embedlib drop-old"):
        load(url, Model("fourth"), replace=True)


def test_to_recreate_never_drops_what_searches_find(url: str) -> None:
    """After a kill, and as the same command again after the switch."""
    killed = Model("new")
    killed.dies_after = 8
    with pytest.raises(KeyboardInterrupt):
        load(url, killed, replace=True, recreate=True, batch_rows=4)
    expect_rows(url, "old")
    load(url, Model("new"), replace=True, recreate=True)
    again = Model("new")
    told = load(url, again, replace=True, recreate=True)
    assert told == [f"{url} holds rows of 'new' already; they are brought up to date"]
    assert again.num_texts == 0
    expect_rows(url, "new")


def test_a_change_that_was_begun_can_be_given_up(url: str) -> None:
    given_up = Model("given up", dim=8)
    given_up.dies_after = 8
    with pytest.raises(KeyboardInterrupt):
        load(url, given_up, replace=True, batch_rows=4)
    again = Model("old")
    assert len(load(url, again, replace=True)) == 1  # not asked to
    told = load(url, again, replace=True, recreate=True, dry_run=True)
    assert re.search(r"the \d rows of 'given up' beside would be dropped$", told[0])
    assert "beside" in read_status(url)
    told = load(url, again, replace=True, recreate=True)
    assert re.search(r"the \d rows of 'given up' beside are dropped$", told[0])
    assert again.num_texts == 0
    expect_rows(url, "old")
    assert "beside" not in read_status(url)
    assert load(url, again, replace=True, recreate=True) == told[1:]
    load(url, Model("new"), replace=True)
    expect_rows(url, "new")


@pytest.mark.parametrize("name", ["beside", "inspect"])
def test_what_cannot_be_given_up_is_told(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = getattr(FileSink, name)

    def refuse(sink: FileSink) -> Any:
        if name == "beside" or sink.name.endswith("(beside)"):
            raise SinkError(f"{name} fails")
        return method(sink)

    monkeypatch.setattr(FileSink, name, refuse)
    if name == "beside":  # it cannot be switched, and holds nothing beside
        assert len(load(url, Model("old"), replace=True, recreate=True)) == 1
    else:
        with pytest.raises(SinkError, match="inspect fails"):
            load(url, Model("old"), replace=True, recreate=True)
    assert json.loads(read_status(url))["model"] == "old"


def test_a_change_that_died_before_its_first_row_holds_up_no_other(url: str) -> None:
    early = Model("early", dim=8)
    early.dies_after = 0
    with pytest.raises(KeyboardInterrupt):
        load(url, early, replace=True)
    load(url, Model("new"), replace=True)
    expect_rows(url, "new")


def read_status(url: str) -> str:
    return CliRunner().invoke(main, ["status", url, "--json"]).output


@pytest.mark.parametrize("is_first", [False, True])
def test_files_keep_their_names_in_what_is_loaded_beside(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the rows that are found, or of the half of the first ones that a kill has left."""
    url = f"jsonl:{tmp_path / 'rows.jsonl'}"
    for folder in ("docs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path / "elsewhere")
    if is_first:
        with monkeypatch.context() as patched:
            patched.setattr("embedlib.indexing.replacing.compare", interrupt)
            with pytest.raises(KeyboardInterrupt):
                load(url, Model("new"), tmp_path / "docs", replace=True)
    else:
        load(url, Model("old"), tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    load(url, Model("new"), "docs", replace=True, recreate=not is_first)
    with closing(open_sink(url)) as sink:
        assert [key.source_id for key in sink.scan()] == [str(tmp_path / "docs" / "a.txt")]


def test_the_commands(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(url, Model("new"), replace=True)
    run = CliRunner().invoke
    assert re.search(r"kept until drop-old +40 rows of old\n", run(main, ["status", url]).output)
    state = json.loads(run(main, ["status", url, "--json"]).output)
    assert (state["model"], state["old"]["model"]) == ("new", "old")
    assert run(main, ["drop-old", url]).output == f"Removed 40 old rows from {url}\n"
    assert run(main, ["drop-old", url]).output == f"{url} keeps no old rows\n"
    monkeypatch.setattr("embedlib.indexing.replacing.drop_old", lambda url: 1)
    done = run(main, ["drop-old", "postgresql://me:secret@host/db?table=t"])
    assert done.output == "Removed 1 old row from postgresql://me:***@host/db?table=t\n"


def test_documents_that_the_source_does_not_have(url: str) -> None:
    fewer = documents(NUM - 10, first=10)
    told = r"loaded beside, and searches still find those of 'old': 10 of the 40 rows .* as 'd0'"
    with pytest.raises(SinkError, match=told):
        load(url, Model("new"), fewer, replace=True)
    expect_rows(url, "old")
    with pytest.raises(SinkError, match="10 of the 40 rows"):
        load(url, Model("new"), fewer, replace=True, delete_missing=True, max_delete=0.2)
    load(url, Model("new"), fewer, replace=True, delete_missing=True)
    expect_rows(url, "new", NUM - 10)


def test_rows_that_an_earlier_run_left_beside_are_removed(url: str) -> None:
    """The source has changed between a run that was refused and the next one."""
    more = [*documents(2 * NUM), Document(id="y", text="")]
    refused = "1 bad row is not among them; correct the source, or leave it out"
    with pytest.raises(SinkError, match=refused):
        load(url, Model("new"), more, replace=True)
    expect_rows(url, "old")
    load(url, Model("new"), replace=True)
    expect_rows(url, "new")


def test_a_vector_that_is_not_the_models(url: str) -> None:
    new = Model("new")
    with pytest.raises(SinkError, match="1 bad row"):
        load(url, new, [*documents(NUM), Document(id="y", text="")], replace=True)
    file = Path(f"{url.partition(':')[2]}.embedlib") / "rows.sqlite"
    with closing(sqlite3.connect(file)) as database, database:
        vector = vector_of("another", "text").tobytes()
        database.execute("UPDATE new_row SET vector = ?", (vector,))
    with pytest.raises(SinkError, match="another vector than its text embedded again, with cosine"):
        load(url, new, replace=True)
    expect_rows(url, "old")


def test_an_empty_source(url: str) -> None:
    with pytest.raises(SinkError, match="the source has no documents; check the source"):
        load(url, Model("new"), [], replace=True)
    expect_rows(url, "old")


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path / 'first.jsonl'}"
    told = load(url, Model("new"), replace=True)
    expect_rows(url, "new")
    assert told == [f"{url}: searches that begin now find the rows of 'new'"]
    assert drop_old(url) == 0


def test_what_cannot_be_replaced_is_refused_at_the_start() -> None:
    model = Model("new")
    refused = "two models at a time; for another model load into a new .* or .* --recreate$"
    with pytest.raises(SinkError, match=refused):
        index(documents(3), FakeSink(FakeStore()), embedder=model, replace=True)
    with pytest.raises(SinkError, match=r"keeps no old rows: .* two models at a time$"):
        drop_old(FakeSink(FakeStore()))
    assert model.num_texts == 0
    assert other_rows(FakeSink(FakeStore())) == {}
    for options in ({"limit": 3}, {"shard": "1/2"}):
        with pytest.raises(ConfigError, match="replace needs the whole source in one load"):
            IndexOptions(replace=True, **options)  # type: ignore[arg-type]


class SparseModel(Model):
    def encode_query(self, text: str, /, *, output_value: str = "sparse") -> Any:
        return {}


def test_what_is_refused_beside_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = [], []
    beside, close = FileSink.beside, FileSink.close
    with monkeypatch.context() as patched:
        patched.setattr(FileSink, "beside", lambda sink: opened.append(beside(sink)) or opened[-1])
        patched.setattr(FileSink, "close", lambda sink: (closed.append(sink), close(sink)))
        with pytest.raises(SinkError, match="cannot hold sparse vectors"):
            load(url, Model("new"), replace=True, sparse=SparseModel("sparse"))
    assert opened
    assert {*map(id, opened)} <= {*map(id, closed)}


def test_a_dry_run_switches_nothing(url: str) -> None:
    report = index(
        documents(NUM), url, embedder=Model("new"), chunk=False, replace=True, dry_run=True
    )
    assert report.num_embedded == NUM
    expect_rows(url, "old")
