"""What a load deletes, and what recreating drops."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlib.embedder import Embedder
from embedlib.errors import (
    SinkError,
    SourceError,
)
from embedlib.indexing.pipeline import index
from embedlib.indexing.report import IndexReport
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.seen import Seen
from embedlib.testing import FakeSink, FakeStore
from tests.indexing.loading import Killed, contents, documents, expect, numbered, run
from tests.waiting import WAIT_SECONDS


def test_vanished_rows_stay_unless_asked(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(10), store, embedder)
    report = run(numbered(8), store, embedder)
    assert report.num_deleted == 0
    assert len(store.rows) == 10
    report = run(numbered(8), store, embedder, delete_missing=True)
    assert report.num_deleted == 2
    expect(store, numbered(8), embedder)


def test_too_many_deletions_are_refused_and_nothing_is_deleted(
    store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(10), store, embedder)
    with pytest.raises(
        SinkError, match=r"4 of 11 rows are missing in the source.*max_delete = 0\.3"
    ):
        run({**numbered(6), "new": "text"}, store, embedder, delete_missing=True)
    assert len(store.rows) == 11
    assert store.calls[-1] == ("finish", 0)  # the new row is to be found all the same
    run(numbered(6), store, embedder, delete_missing=True, max_delete=0.5)
    expect(store, numbered(6), embedder)


@pytest.mark.parametrize(("num", "share"), [(50, 0.5), (29, 0.29), (57, 0.57)])
def test_exactly_the_share_may_be_deleted(
    num: int, share: float, store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(100), store, embedder)
    kept = numbered(100 - num)
    with pytest.raises(SinkError, match=f"{num} of 100 rows are missing in the source, more"):
        run(kept, store, embedder, delete_missing=True, max_delete=share - 1e-9)
    report = run(kept, store, embedder, delete_missing=True, max_delete=share)
    assert report.num_deleted == num


def test_bad_rows_that_are_all_there_is_are_no_empty_source(
    store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(2), store, embedder)
    rows = [BadRow(place=id_, reason="broken", id=id_) for id_ in numbered(2)]
    assert run(rows, store, embedder, delete_missing=True).num_deleted == 0
    expect(store, numbered(2), embedder)


def test_nothing_is_deleted_when_a_bad_row_may_own_it(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(10), store, embedder)
    told: list[str] = []
    nameless = [
        *documents(numbered(8)),
        BadRow(place="line 9", reason="broken"),
        BadRow(place="line 10", reason="broken", id="d9"),
    ]
    report = run(nameless, store, embedder, delete_missing=True, tell=told.append)
    assert report.num_deleted == 0
    assert any("nothing is deleted" in line for line in told)
    named = [*documents(numbered(8)), Document(id="d9", text="")]
    report = run(named, store, embedder, delete_missing=True)
    assert report.num_deleted == 1
    assert set(contents(store)) == {(f"d{n}", 0) for n in [*range(8), 9]}


def test_a_bad_file_keeps_its_own_documents_alone(store: FakeStore, embedder: Embedder) -> None:
    kept = {"a.pdf#1": "one", "a.pdf#12": "two", "b.pdf#1": "three", "c#d.pdf#1": "four"}
    gone = {"a.pdf": "five", "a.pdf#x#1": "six", "old.pdf#1": "seven"}
    run({**kept, **gone}, store, embedder)
    source = [
        *documents({"b.pdf#1": "three"}),
        BadRow(place="a.pdf", reason="broken", file="a.pdf"),
        BadRow(place="c#d.pdf", reason="broken", file="c#d.pdf"),
    ]
    report = run(source, store, embedder, delete_missing=True, max_delete=1.0)
    assert (report.num_bad, report.num_deleted, report.num_other) == (2, 3, 0)
    expect(store, kept, embedder)


def test_nothing_is_deleted_when_reading_fails(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(10), store, embedder)

    def broken() -> Iterator[Document]:
        yield from documents(numbered(2))
        raise SourceError("the file ends early")

    with pytest.raises(SourceError, match="ends early"):
        run(broken(), store, embedder, delete_missing=True, max_delete=1.0)
    assert len(store.rows) == 10


def test_shards_make_the_whole_and_delete_only_their_own(
    store: FakeStore, embedder: Embedder
) -> None:
    reports = [run(numbered(100), store, embedder, shard=f"{n}/3") for n in (1, 2, 3)]
    assert sum(report.num_documents for report in reports) == 100
    assert min(report.num_documents for report in reports) > 10
    expect(store, numbered(100), embedder)
    for n in (1, 2, 3):
        report = run(numbered(90), store, embedder, shard=f"{n}/3", delete_missing=True)
        assert report.num_deleted <= 10
    expect(store, numbered(90), embedder)


def test_a_bad_row_without_an_id_is_in_every_shard(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(20), store, embedder)
    for n in (1, 2, 3):
        rows = [*documents(numbered(18)), BadRow(place="line 19", reason="broken")]
        report = run(rows, store, embedder, shard=f"{n}/3", delete_missing=True, max_delete=1)
        assert (report.num_bad, report.num_deleted) == (1, 0)
    assert len(store.rows) == 20


# Chunks that a document has no longer.

LONG = "One sentence here. Another one there. A third one follows. And a fourth one. "


def in_chunks(
    texts: dict[str, str] | Iterable[Document | BadRow],
    store: FakeStore,
    embedder: Embedder,
    **options: Any,
) -> IndexReport:
    return run(texts, store, embedder, **{"chunk": True, "chunk_tokens": 24, **options})


@pytest.mark.parametrize("options", [{}, {"limit": 1}, {"shard": "1/1"}, {"delete_missing": True}])
def test_surplus_chunks_of_a_document_that_was_read_always_go(
    options: dict[str, Any], store: FakeStore, embedder: Embedder
) -> None:
    in_chunks({"a": LONG, "b": LONG}, store, embedder)
    assert len(store.rows) > 6
    report = in_chunks({"a": "short", "b": LONG}, store, embedder, **options)
    assert report.num_deleted == 3
    assert {id_ for id_, chunk in contents(store) if chunk} == {"b"}
    assert contents(store)["a", 0] == "short"
    again = in_chunks({"a": "short", "b": LONG}, store, embedder, **options)
    assert (again.num_deleted, again.num_embedded) == (0, 0)


def test_surplus_chunks_go_where_rows_are_counted_late(
    store: FakeStore, embedder: Embedder
) -> None:
    class Late(FakeSink):
        def inspect(self) -> Any:
            state, has_ended = super().inspect(), store.calls[-1] == ("finish", 0)
            return state if has_ended else replace(state, num_rows=0)

    in_chunks({"a": LONG}, store, embedder)
    options = {"chunk_tokens": 24, "embedder": embedder}
    assert index(documents({"a": "short"}), Late(store), **options).num_deleted == 3
    assert contents(store) == {("a", 0): "short"}


def test_a_bad_row_loses_no_chunk(store: FakeStore, embedder: Embedder) -> None:
    in_chunks({"a": LONG, "b": LONG}, store, embedder)
    before = contents(store)
    rows = [*documents({"b": LONG}), BadRow(place="line 1", reason="broken", id="a")]
    for options in ({}, {"delete_missing": True, "max_delete": 1.0}):
        assert in_chunks(rows, store, embedder, **options).num_deleted == 0
        assert contents(store) == before


@pytest.mark.parametrize("name", ["write", "delete", "finish"])
def test_a_run_after_a_kill_finds_surplus_chunks(
    name: str, store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: object) -> None:
        raise Killed

    in_chunks({"a": LONG, "b": LONG}, store, embedder)
    with monkeypatch.context() as patch:
        patch.setattr(FakeSink, name, kill)
        with pytest.raises(Killed):
            in_chunks({"a": "short", "b": LONG}, store, embedder)
    in_chunks({"a": "short", "b": LONG}, store, embedder)
    assert {id_ for id_, chunk in contents(store) if chunk} == {"b"}


def test_rows_of_documents_that_were_not_read_are_counted(
    store: FakeStore, embedder: Embedder
) -> None:
    assert run(numbered(10), store, embedder).num_other == 0
    assert run(numbered(4), store, embedder).num_other == 6
    assert run(numbered(3, first=10), store, embedder).num_other == 10
    assert run(numbered(4), store, embedder, limit=2).num_other is None
    assert run(numbered(4), store, embedder, dry_run=True).num_other is None
    parts = [run(numbered(4), store, embedder, shard=f"{n}/2").num_other for n in (1, 2)]
    assert sum(filter(None, parts)) == 9
    report = run(numbered(13), store, embedder, delete_missing=True)
    assert (report.num_other, report.num_deleted) == (0, 0)


def test_where_all_rows_are_those_of_the_source_they_are_only_counted(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run over millions of rows must not read all of their keys."""
    monkeypatch.setattr(FakeSink, "scan", None)
    for options in ({}, {}, {"delete_missing": True}):
        run(numbered(10), store, embedder, **options)


def test_a_full_temporary_folder_is_one_line(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(numbered(10), store, embedder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("embedlib.indexing.seen.TemporaryFile", full)
    with pytest.raises(SourceError, match=r"in a temporary file .*No space left.*TMPDIR$"):
        run(numbered(4), store, embedder)
    expect(store, numbered(10), embedder)
    seen = Seen()
    seen._execute("PRAGMA max_page_count = 2")
    with pytest.raises(SourceError, match=r"in a temporary file .*full; make room.*TMPDIR$"):
        all(seen.add(f"d{n}") for n in range(1000))
    seen.close()


_INTERRUPTED = """
import os, signal
from embedlib.indexing import Document, index
from embedlib.testing import FakeSink, FakeStore, fake_embedder

def interrupt(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt

class Endless(FakeSink):
    def scan(self):
        key = next(super().scan())
        while True:
            # Again and again: Python misses one that comes while its main thread begins to wait.
            os.kill(os.getpid(), signal.SIGINT)
            yield from [key] * 1000

store = FakeStore()
signal.signal(signal.SIGINT, interrupt)
with fake_embedder() as embedder:
    index([Document(id="a", text="text")], FakeSink(store), embedder=embedder)
    try:
        index([Document(id="b", text="text")], Endless(store), embedder=embedder)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_while_stored_rows_are_compared_crashes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


# An empty source.


@pytest.mark.parametrize(
    "source",
    [[], [BadRow(place="line 2", reason="broken")]],
    ids=["nothing", "bad rows"],
)
@pytest.mark.parametrize(
    "options",
    [
        {"recreate": True},
        {"recreate": True, "dry_run": True},
        {"recreate": True, "delete_missing": True, "max_delete": 1.0},
    ],
)
def test_an_empty_source_is_not_recreated(
    source: list[Any], options: dict[str, Any], store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(10), store, embedder)
    before = list(store.calls)
    with pytest.raises(
        SourceError, match=r"the source has no documents, and recreate would drop the 10 rows of fa"
    ):
        run(source, store, embedder, chunk=True, **options)
    expect(store, numbered(10), embedder)
    assert store.calls == before


@pytest.mark.parametrize(
    "source", [[], [BadRow(place="line 2", reason="broken", id="new")]], ids=["nothing", "bad row"]
)
def test_an_empty_source_deletes_nothing(
    source: list[Any], store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(10), store, embedder)
    with pytest.raises(SinkError, match=r"the source has no documents.*10 of 10 rows"):
        run(source, store, embedder, delete_missing=True, max_delete=1.0)
    expect(store, numbered(10), embedder)


def test_where_no_row_is_stored_nothing_may_be_recreated(
    store: FakeStore, embedder: Embedder
) -> None:
    run([], store, embedder)
    assert run([], store, embedder, recreate=True).num_rows == 0


def test_recreating_says_what_it_drops_before_it_does(
    store: FakeStore, embedder: Embedder, tmp_path: Path
) -> None:
    told: list[str] = []
    run(numbered(10), store, embedder, recreate=True, tell=told.append)
    assert told == []  # there was nothing
    run(numbered(3), store, embedder, recreate=True, dry_run=True, tell=told.append)
    expect(store, numbered(10), embedder)
    path = tmp_path / "errors.jsonl"
    rows = [BadRow(place="caf\udce9", reason="broken"), *documents(numbered(3))]
    rows += [BadRow(place="line 9", reason="broken")]
    run(rows, store, embedder, recreate=True, tell=told.append, errors_file=path)
    assert [line for line in told if "skipped" not in line] == [
        "recreate would drop the 10 rows of fake:",
        "recreate drops the 10 rows of fake:",
    ]
    expect(store, numbered(3), embedder)
    places = [json.loads(line)["place"] for line in path.read_text().splitlines()]
    assert places == ["caf\udce9", "line 9"]


def test_what_cannot_be_inspected_can_be_recreated(store: FakeStore, embedder: Embedder) -> None:
    class Broken(FakeSink):
        def inspect(self) -> Any:
            if not self._has_lock:
                raise SinkError("fake: is damaged")
            return super().inspect()

        def begin(self, target: Any, tell: Any) -> None:
            self._has_lock = True
            super().begin(target, tell)

    told: list[str] = []
    source = documents(numbered(2))
    index(source, Broken(store), embedder=embedder, recreate=True, tell=told.append)
    assert told == ["recreate drops the rows of fake:"]
    expect(store, numbered(2), embedder)


def test_nothing_is_said_of_rows_that_recreate_may_not_drop(
    store: FakeStore, embedder: Embedder
) -> None:
    class Foreign(FakeSink):
        def inspect(self) -> Any:
            raise SinkError("fake: was not created by embedlib")

        def begin(self, target: Any, tell: Any) -> None:
            self.inspect()

    told: list[str] = []
    with pytest.raises(SinkError, match="not created by embedlib"):
        index(
            documents(numbered(2)),
            Foreign(store),
            embedder=embedder,
            recreate=True,
            tell=told.append,
        )
    assert told == []
