from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import date
from decimal import Decimal
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.embedder import Embedder
from embedlib.errors import (
    ConfigError,
    EmbedlibError,
    EngineRunError,
    PassingBuildError,
    SinkError,
    SourceError,
)
from embedlib.indexing.bad_rows import BadRows
from embedlib.indexing.chunks.chunking import Chunker, cut_nothing
from embedlib.indexing.load import Load
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.pipeline import index
from embedlib.indexing.reader import Group, Reader
from embedlib.indexing.report import IndexProgress, IndexReport, Tally
from embedlib.indexing.rows import BadRow, Chunk, Document
from embedlib.indexing.searches.searching import search
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.protocol import UnstorableRowsError
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.indexing.sources.protocol import SourceOptions
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder, fake_spec
from tests.waiting import WAIT_SECONDS


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as made:
        yield made


def documents(texts: dict[str, str], **metadata: Any) -> list[Document]:
    return [Document(id=id_, text=text, metadata=metadata) for id_, text in texts.items()]


def numbered(num_documents: int, first: int = 0) -> dict[str, str]:
    return {f"d{n}": f"text {n}" for n in range(first, first + num_documents)}


def run(
    texts: dict[str, str] | Iterable[Document | BadRow],
    store: FakeStore,
    embedder: Embedder,
    **options: Any,
) -> IndexReport:
    source = documents(texts) if isinstance(texts, dict) else texts
    return index(source, FakeSink(store), embedder=embedder, **{"chunk": False, **options})


def contents(store: FakeStore) -> dict[tuple[str, int], str]:
    return {(row.source_id, row.chunk): row.text for row in store.rows.values()}


def expect(store: FakeStore, texts: dict[str, str], embedder: Embedder) -> None:
    """The destination has exactly these documents, each with its own text's vector."""
    assert contents(store) == {(id_, 0): text for id_, text in texts.items()}
    expected = embedder.encode_document([row.text for row in store.rows.values()])
    assert (np.stack([store.vectors[id_] for id_ in store.rows]) == expected).all()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def num_calls(store: FakeStore, name: str) -> int:
    return sum(call == name for call, _ in store.calls)


def test_every_document_becomes_a_row_with_its_own_vector(
    store: FakeStore, embedder: Embedder
) -> None:
    report = run(numbered(3000), store, embedder)
    expect(store, numbered(3000), embedder)
    assert (report.num_documents, report.num_rows, report.num_embedded) == (3000, 3000, 3000)
    assert report.num_tokens == sum(len(text) for text in numbered(3000).values())
    assert store.calls[0] == ("begin", 0)
    assert store.calls[-1] == ("finish", 0)


def test_a_second_run_embeds_nothing(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(700), store, embedder)
    before = embedder.stats().num_texts
    report = run(numbered(700), store, embedder)
    assert embedder.stats().num_texts == before
    assert (report.num_embedded, report.num_unchanged, report.num_tokens) == (0, 700, 0)
    assert num_calls(store, "write") == num_calls(FakeStore(calls=store.calls[:-2]), "write")


def test_only_what_changed_is_embedded(store: FakeStore, embedder: Embedder) -> None:
    texts = numbered(700)
    run(texts, store, embedder)
    before = embedder.stats().num_texts
    texts |= {"d5": "another text", "new": "a new one"}
    report = run(texts, store, embedder)
    assert embedder.stats().num_texts == before + 2
    assert (report.num_embedded, report.num_unchanged) == (2, 699)
    expect(store, texts, embedder)


def test_changed_metadata_is_written_without_embedding(
    store: FakeStore, embedder: Embedder
) -> None:
    run(documents(numbered(10), page=1), store, embedder)
    before = embedder.stats().num_texts
    report = run(documents(numbered(10), page=2), store, embedder)
    assert embedder.stats().num_texts == before
    assert (report.num_embedded, report.num_metadata, report.num_unchanged) == (0, 10, 0)
    assert {row.metadata["page"] for row in store.rows.values()} == {2}
    expect(store, numbered(10), embedder)


def test_documents_get_their_prompt_and_queries_do_not_matter(store: FakeStore) -> None:
    spec = fake_spec(prompts={"query": "q: ", "document": "d: "})
    with fake_embedder(spec=spec) as embedder:
        run(numbered(3), store, embedder)
        assert (
            store.vectors[next(iter(store.rows))] == embedder.encode("d: text 0", prompt="")
        ).all()


def test_an_empty_source_is_no_error(store: FakeStore, embedder: Embedder) -> None:
    report = run({}, store, embedder)
    assert (report.num_documents, report.num_rows) == (0, 0)
    assert store.calls == [("begin", 0), ("finish", 0)]


# Killed and run again.


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it to clean up what is stored."""


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 4), max_size=6),
    st.integers(1, 120),
    st.sampled_from([1, 4, 16, 64]),
)
def test_killed_anywhere_a_rerun_ends_with_exactly_the_rows(
    kills: list[int], num_documents: int, batch_rows: int
) -> None:
    store, texts = FakeStore(), numbered(num_documents)
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as embedder:
        num_killed = 0
        for after in kills:
            sink = FakeSink(store)
            sink.fail(*[None] * after, Killed())
            try:
                index(documents(texts), sink, embedder=embedder, chunk=False, batch_rows=batch_rows)
            except Killed:
                num_killed += 1
        run(texts, store, embedder, batch_rows=batch_rows)
        num_embedded = embedder.stats().num_texts
        expect(store, texts, embedder)
        assert num_embedded <= num_documents + num_killed * batch_rows


def test_never_more_rows_are_under_way_than_batch_rows(
    store: FakeStore, embedder: Embedder
) -> None:
    """What is embedded and not yet written is what a kill costs."""
    most = 0

    class Watching(FakeSink):
        def write(self, rows: Any, vectors: Any) -> None:
            nonlocal most
            most = max(most, embedder.stats().num_texts - len(self.store.rows))
            super().write(rows, vectors)

    index(documents(numbered(500)), Watching(store), embedder=embedder, chunk=False, batch_rows=40)
    assert 10 <= most <= 40
    assert max(rows for _, rows in store.calls) <= 40


def test_the_first_rows_are_written_soon(store: FakeStore, embedder: Embedder) -> None:
    """A load that is killed after seconds has then stored some."""
    run(numbered(3000), store, embedder, batch_rows=2048)
    writes = [num_rows for name, num_rows in store.calls if name == "write"]
    assert sum(writes) == 3000
    assert writes[0] <= 8
    assert all(rows <= 8 + sum(writes[:n]) for n, rows in enumerate(writes))


# What vanished.


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


# Arguments.


@dataclass
class Frame:
    """A table of which no way to its rows is known; it iterates over the names of its columns."""

    dtypes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter(["id", "text"])


def test_switches_of_numpy_are_taken() -> None:
    options = IndexOptions(chunk=np.False_, dry_run=np.True_)
    assert (options.chunk, options.dry_run) == (False, True)
    assert type(options.chunk) is bool


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedder": "name"}, "embedder = 'name'; it must be an Embedder, which is made with Emb"),
        ({"sink": None}, "sink = None; it must be a URL, such as 'edge:PATH' or 'jsonl:FILE', or"),
        ({"source": np.array("a")}, "source = array('a', dtype='<U1'); it must be a path, a list"),
        ({"source": None}, "source = None; it must be a path, a list of paths, a table, or an it"),
        ({"source": Document(id="a", text="b")}, "source = Document(id='a'"),
        ({"source": {"a": "b"}}, "source = {'a': 'b'}, a dict; pass a list of embedlib.Document("),
        ({"source": b"abc"}, "source = b'abc', a bytes; pass a list of embedlib.Document("),
        (
            {"source": Frame()},
            "source is a Frame, which has no rows to read; pass a data frame, an Arrow table or a",
        ),
        ({"source": [".", 5]}, "source has 5 among its paths; a path must be a str or a Path"),
        (
            {"id_field": "x"},
            "unknown option 'id_field'; it says how sources are read: pass source_op",
        ),
        ({"max_delete": "0.5"}, "max_delete = '0.5'; it must be a share, from 0 to 1"),
        ({"chunk_overlap": -1}, "chunk_overlap = -1; it must be a whole number of at least 0"),
        ({"shard": 3}, "shard = 3; it must be I/N"),
        ({"ray": ""}, "ray = ''; it must be auto, local or HOST:PORT"),
        ({"ray_workers": 0}, "ray_workers = 0; it must be"),
        ({"ray_workers": 2}, "ray_workers = 2 needs ray='auto' or another address"),
        ({"errors_file": 5}, "errors_file = 5; it must be a path"),
    ],
)
def test_an_argument_of_a_wrong_type_is_one_line(
    arguments: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    given = {"source": documents({"a": "b"}), "sink": FakeSink(store), "embedder": embedder}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
        index(**{**given, **arguments})
    assert "\n" not in str(caught.value)
    assert store.calls == []


@pytest.mark.parametrize("option", [field.name for field in fields(IndexOptions)])
@pytest.mark.parametrize("value", [object(), ["false"], "false\nno"])
def test_every_option_has_a_check_of_its_type(option: str, value: Any) -> None:
    """A new option without one fails here."""
    if option == "errors_file" and isinstance(value, str):
        return  # a file may have this name
    with pytest.raises(ConfigError, match=f"^{option} = ") as caught:
        IndexOptions(**{option: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", [field.name for field in fields(SourceOptions)])
def test_every_option_of_a_source_has_a_check_of_its_type(option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option} (=|is) "):
        SourceOptions(**{option: object()})


@pytest.mark.parametrize("function", [index, search])
def test_every_argument_has_a_check_of_its_type(
    function: Callable[..., Any], store: FakeStore, embedder: Embedder
) -> None:
    right = {"sink": FakeSink(store), "embedder": embedder}
    right |= {"source": documents({"a": "b"})} if function is index else {"question": "a"}
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    assert set(right) < set(names)
    for name in names:
        with pytest.raises(ConfigError, match=f"^{name} = <object object"):
            function(**{**right, name: object()})
    assert store.calls == []


@pytest.mark.parametrize("value", ["false", "no", "", 0, 1, None])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^recreate = {value!r}; it must be True or False$"):
        IndexOptions(recreate=value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedder": "name"}, "embedder = 'name'; it must be an Embedder"),
        ({"sink": Path("a.jsonl")}, "sink = PosixPath('a.jsonl'); it must be a URL"),
        ({"question": ["a"]}, "question = ['a']; it must be a str"),
        ({"question": " \n"}, "question = ' \\n'; it is empty"),
        ({"top_k": "5"}, "top_k = '5'; it must be a whole number of at least 1"),
        ({"top_k": 0}, "top_k = 0; it must be a whole number of at least 1"),
        ({"where": 3}, "where = 3; it must be a str, such as"),
        ({"where": "year ="}, "where: character 7, the end: a value must be here"),
    ],
)
def test_a_search_with_a_wrong_argument_is_one_line(
    arguments: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    given = {"question": "a", "sink": FakeSink(store), "embedder": embedder}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        search(**{**given, **arguments})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            "a text",
            "the source gave 'a text', a str; it must give documents: embedlib.Document(id=..., te",
        ),
        (np.zeros((2, 2)), "ndarray; it must give documents: embedlib.Document(id=..., text=...,"),
        (
            Path("a.md"),
            # Python 3.13 has it in pathlib._local.
            f"gave PosixPath('a.md'), a {type(Path()).__module__}.PosixPath; pass paths as a list",
        ),
    ],
)
def test_what_is_no_document_is_refused_with_the_way_to_make_one(
    item: Any, message: str, store: FakeStore, embedder: Embedder
) -> None:
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        run((item for _ in range(2)), store, embedder)
    assert "\n" not in str(caught.value)


def test_dicts_are_loaded_and_known_again(store: FakeStore, embedder: Embedder) -> None:
    rows = [{"key": n, "subject": f"s {n}", "body": f"b {n}"} for n in range(3)]
    options = SourceOptions(text_field=("subject", "body"))
    assert run(rows, store, embedder, source_options=options).num_embedded == 3
    expect(store, {f"{n}": f"s {n}\n\nb {n}" for n in range(3)}, embedder)
    rows[1]["body"] = "changed"
    report = run(iter(rows), store, embedder, source_options=options)
    assert (report.num_embedded, report.num_unchanged) == (1, 2)


def test_a_text_among_paths_is_refused_with_the_way_to_pass_it(
    store: FakeStore, embedder: Embedder
) -> None:
    for source in ("hello world", ["hello world"]):
        with pytest.raises(SourceError, match=r"folder; .* in Python a text is embedlib\.Document"):
            index(source, FakeSink(store), embedder=embedder)
    with pytest.raises(SourceError, match=r"folder; a pattern is .* SourceOptions\(glob="):
        index("docs/*.md", FakeSink(store), embedder=embedder)


# Bad rows.


def test_bad_rows_are_left_out_told_counted_and_written_down(
    store: FakeStore, embedder: Embedder, tmp_path: Path
) -> None:
    told: list[str] = []
    rows = [
        *documents(numbered(2)),
        BadRow(place="line 3", reason="is not JSON"),
        Document(id="d0", text="again", place="line 4"),
    ]
    path = tmp_path / "errors.jsonl"
    report = run(rows, store, embedder, tell=told.append, errors_file=path)
    assert (report.num_bad, report.num_documents) == (2, 2)
    expect(store, numbered(2), embedder)
    reason = "the id 'd0' was used before; ids must be unique"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"place": "line 3", "id": None, "reason": "is not JSON"},
        {"place": "line 4", "id": "d0", "reason": reason},
    ]
    assert told == ["skipped: line 3: is not JSON", f"skipped: line 4: {reason}"]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document(id="", text="a"), "has the id ''"),
        (Document(id=True, text="a"), "has the id True"),  # type: ignore[arg-type]
        (Document(id=7.0, text="a"), "has the id 7.0"),  # type: ignore[arg-type]
        (Document(id=None, text="a"), "has the id None"),  # type: ignore[arg-type]
        (Document(id="x" * 5000, text="a"), "more than 4096 characters"),
        (Document(id=10**5000, text="a"), "an integer of 16610 bits"),  # type: ignore[arg-type]
        (Document(id="a", text=10**5000), "has the text an int"),  # type: ignore[arg-type]
        (Document(id="a", text="a", metadata={"x": 10**5000}), "an integer of 16610 bits"),
        (Document(id="a\0", text="a"), "has NUL"),
        (Document(id="\ud800", text="a"), "lone surrogate"),
        (Document(id="a", text=" \n"), "must be a str with words"),
        (Document(id="a", text=""), "must be a str with words"),
        (Document(id="a", text=None), "has the text None"),  # type: ignore[arg-type]
        (Document(id="a", text="a\0b"), "has NUL"),
        (Document(id="a", text="\udfff"), "lone surrogate"),
        (Document(id="a", text="a", metadata={"x": b"raw"}), "holds bytes"),
        (Document(id="a", text="a", metadata={"x": "\0"}), "has NUL"),
        (Document(id="a", text="a", metadata={1: "x"}), "has the key 1"),  # type: ignore[dict-item]
        (Document(id="a", text="a", metadata=[1]), "has the metadata [1]"),  # type: ignore[arg-type]
        (Document(id="a", text="a", metadata={"x": object()}), "holds object"),
        (Document(id="a", text="a", is_markdown=np.arange(2)), "has is_markdown = array([0, 1])"),  # type: ignore[arg-type]
        (Document(id="a", text="a", is_markdown="no"), "has is_markdown = 'no'"),  # type: ignore[arg-type]
        (Document(id="a", text="a", place=np.arange(2)), "has the place array([0, 1])"),  # type: ignore[arg-type]
        (
            Document(id="a", text="a", metadata={"x": np.datetime64(1, "ns")}),
            "holds datetime64[ns]",
        ),
        (Document(id="a", text="a", metadata={"x": np.longdouble(1)}), "holds float128"),
        (Document(id="a", text="a", metadata={"x": nested(5000)}), "metadata nested too deeply"),
    ],
)
def test_what_no_destination_could_store_is_a_bad_row(
    document: Document, reason: str, store: FakeStore, embedder: Embedder
) -> None:
    told: list[str] = []
    report = run([*documents(numbered(2)), document], store, embedder, tell=told.append)
    assert (report.num_bad, report.num_embedded) == (1, 2)
    assert reason in told[0]
    assert "\n" not in told[0]


def test_a_text_without_a_token_is_a_bad_row(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chunker, "__call__", lambda _, documents: [[] for _ in documents])
    told: list[str] = []
    assert run(numbered(1), store, embedder, chunk=True, tell=told.append).num_bad == 1
    assert told == ["skipped: 'd0': has no token of the model, such as control characters only"]
    assert run(numbered(1), store, embedder, chunk=True).num_documents == 0


def test_long_texts_become_chunks_and_shorter_ones_lose_theirs(
    store: FakeStore, embedder: Embedder
) -> None:
    text = "One sentence here. Another one there. And a third one."
    report = run({"a": text, "b": "short"}, store, embedder, chunk=True)
    chunks = sorted(
        (row for row in store.rows.values() if row.source_id == "a"), key=lambda r: r.chunk
    )
    assert report.num_rows == len(chunks) + 1 > 2
    for row in chunks:
        span = row.metadata["start_index"], row.metadata["end_index"]
        assert text[slice(*span)] == row.text
    run({"a": "One.", "b": "short"}, store, embedder, chunk=True, delete_missing=True, max_delete=1)
    expect(store, {"a": "One.", "b": "short"}, embedder)


def test_a_chunk_beyond_the_model_is_refused(store: FakeStore, embedder: Embedder) -> None:
    with pytest.raises(ConfigError, match="chunk_tokens = 33; the model has room for 32 tokens"):
        run(numbered(1), store, embedder, chunk=True, chunk_tokens=33)
    with pytest.raises(ConfigError, match="chunk_tokens = an int; the model has room for 32"):
        run(numbered(1), store, embedder, chunk=True, chunk_tokens=10**5000)


def test_metadata_become_json_and_the_users_keys_win(store: FakeStore, embedder: Embedder) -> None:
    metadata = {"day": date(2026, 1, 2), "nan": float("nan"), "source": "mine"}
    run([Document(id="a", text="a", metadata=metadata)], store, embedder)
    (row,) = store.rows.values()
    assert row.metadata == {"day": "2026-01-02", "nan": None, "source": "mine"}
    assert row.source_id == "a"


@pytest.mark.parametrize("number", [7, np.int64(7)])
def test_a_number_names_a_document_as_in_json_lines(
    number: Any, store: FakeStore, embedder: Embedder
) -> None:
    report = run([Document(id=number, text="text 7")], store, embedder, shard="1/1")
    assert (report.num_bad, report.num_embedded) == (0, 1)
    expect(store, {"7": "text 7"}, embedder)
    (row,) = store.rows.values()
    assert row.metadata == {"source": "7"}
    again = run([Document(id="7", text="text 7")], store, embedder)
    assert again.num_unchanged == 1


@pytest.mark.parametrize(("id_", "named", "num_deleted"), [(7, "7", 1), ("\ud800", None, 0)])
def test_a_bad_row_of_the_callers_source_is_read_as_a_document_is(
    id_: Any,
    named: str | None,
    num_deleted: int,
    store: FakeStore,
    embedder: Embedder,
    tmp_path: Path,
) -> None:
    run({"7": "seven", "8": "eight", "9": "nine"}, store, embedder)
    wrong: dict[str, Any] = {"place": Path("row"), "reason": ValueError("broken"), "id": id_}
    bad = BadRow(**wrong)
    path = tmp_path / "errors.jsonl"
    source = [*documents({"8": "eight"}), bad]
    report = run(source, store, embedder, errors_file=path, delete_missing=True, max_delete=1)
    assert (report.num_bad, report.num_deleted) == (1, num_deleted)
    assert ("7", 0) in contents(store)
    assert json.loads(path.read_text()) == {"place": "row", "id": named, "reason": "broken"}


def test_a_bad_row_may_name_its_file_by_a_path(store: FakeStore, embedder: Embedder) -> None:
    run({"a.txt#0": "stays", "b": "goes"}, store, embedder)
    bad = BadRow(place="a.txt", reason="broken", file=Path("a.txt"))  # type: ignore[arg-type]
    run([*documents({"c": "new"}), bad], store, embedder, delete_missing=True, max_delete=1)
    assert [name for name, _ in contents(store)] == ["a.txt#0", "c"]


def test_no_metadata_may_be_none(store: FakeStore, embedder: Embedder) -> None:
    document = Document(id="a", text="a", metadata=None)  # type: ignore[arg-type]
    assert run([document], store, embedder).num_bad == 0
    (row,) = store.rows.values()
    assert row.metadata == {"source": "a"}


def test_scalars_of_numpy_become_json(store: FakeStore, embedder: Embedder) -> None:
    metadata = {
        "stars": np.int64(5),
        "price": np.float32(0.5),
        "nan": np.float64("nan"),
        "is_new": np.bool_(True),
        "lang": np.str_("de"),
        "day": np.datetime64("2026-01-02"),
        "inner": [np.uint8(1)],
    }
    long = "a" * 4096
    document = Document(id=long, text="a", metadata={"source": "a", **metadata})
    run([replace(document, is_markdown=np.True_)], store, embedder)  # type: ignore[arg-type]
    (row,) = store.rows.values()
    assert row.source_id == long
    assert json.dumps(row.metadata) == (
        '{"source": "a", "stars": 5, "price": 0.5, "nan": null, "is_new": true, "lang": "de", '
        '"day": "2026-01-02", "inner": [1]}'
    )
    assert {type(value) for value in row.metadata.values()} == {
        *(str, int, float, type(None), bool, list),
    }


def test_metadata_equal_to_what_they_become_are_written_all_the_same(
    store: FakeStore, embedder: Embedder
) -> None:
    metadata = {"price": Decimal(1), "inner": MappingProxyType({"x": 1})}
    run([Document(id="a", text="a", metadata=metadata)], store, embedder)
    (row,) = store.rows.values()
    assert json.dumps(row.metadata) == '{"source": "a", "price": 1, "inner": {"x": 1}}'


def test_a_refused_load_leaves_the_errors_file_of_the_running_one(
    store: FakeStore, embedder: Embedder, tmp_path: Path
) -> None:
    path = tmp_path / "errors.jsonl"
    path.write_text("of the running load\n")
    store.is_locked = True
    with pytest.raises(SinkError, match="being written"):
        run(numbered(1), store, embedder, errors_file=str(path))
    assert path.read_text() == "of the running load\n"
    store.is_locked = False
    run(numbered(1), store, embedder, errors_file=str(path))
    assert path.read_text() == ""


def test_a_bad_row_is_in_the_file_when_it_is_told(
    store: FakeStore, embedder: Embedder, tmp_path: Path
) -> None:
    path = tmp_path / "errors.jsonl"
    read: list[str] = []
    rows = [BadRow(place="caf\udce9.txt", reason="is not UTF-8")]
    run(rows, store, embedder, errors_file=path, tell=lambda _: read.append(path.read_text()))
    assert [json.loads(line)["reason"] for line in read] == ["is not UTF-8"]


@pytest.mark.parametrize("name", ["full_text", "errors_file"])
def test_the_sink_of_a_load_that_is_refused_is_closed(
    name: str, store: FakeStore, embedder: Embedder, tmp_path: Path
) -> None:
    class Closing(FakeSink):
        num_closed = 0
        output_paths = (str(tmp_path / "out"),)

        def close(self) -> None:
            super().close()
            self.num_closed += 1

    sink = Closing(store)
    option = {"full_text": "english", "errors_file": tmp_path / "out"}[name]
    with pytest.raises(EmbedlibError):
        index([], sink, embedder=embedder, **{name: option})
    assert sink.num_closed == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
@pytest.mark.parametrize("as_list", [False, True])
def test_an_errors_file_that_is_a_source_is_left_alone(
    as_list: bool, store: FakeStore, embedder: Embedder, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(SourceError, match=r"errors_file '.*notes\.txt' is also an input"):
        run([path] if as_list else path, store, embedder, errors_file=str(path))  # type: ignore[arg-type]
    assert path.read_text() == "precious"
    assert store.calls == []


@pytest.mark.parametrize("scheme", ["jsonl", "npy", "parquet"])
def test_an_errors_file_of_the_destination_is_refused(
    scheme: str, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["out", "out.rows.jsonl"] if scheme == "npy" else ["out"]
    Path("a.errors").touch()
    for other in ("a.errors", "b.errors"):  # before there is the file, and then
        for name in names:
            with pytest.raises(ConfigError, match=f"'.*{name}' is also a file of {scheme}:out"):
                index(
                    documents({"a": ""}),
                    f"{scheme}:out",
                    embedder=embedder,
                    errors_file=str(tmp_path / name),
                )
        index(documents({"a": "b"}), f"{scheme}:out", embedder=embedder, errors_file=other)
    (tmp_path / "link").symlink_to("out")
    with pytest.raises(ConfigError, match="errors_file 'link' is also a file of"):
        index(documents({"a": ""}), f"{scheme}:out", embedder=embedder, errors_file="link")


def test_a_destination_is_not_loaded_from_itself(embedder: Embedder, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    index(documents({"a": "b"}), f"jsonl:{out}", embedder=embedder)
    before = out.read_bytes()
    message = r"^destination '.*out\.jsonl' is also an input, which writing would destroy; name"
    with pytest.raises(SourceError, match=message):
        index(out, f"jsonl:{out}", embedder=embedder)
    assert out.read_bytes() == before
    assert index(out, f"jsonl:{tmp_path / 'other.jsonl'}", embedder=embedder).num_rows == 1


@pytest.mark.parametrize(
    ("name", "reason"), [("\ud800", "'utf-8' codec can't encode"), ("a\0b", "embedded null")]
)
def test_a_name_that_no_errors_file_can_have_is_one_line(
    name: str, reason: str, store: FakeStore, embedder: Embedder
) -> None:
    with pytest.raises(SourceError, match=rf"cannot write errors_file '.*': {reason}") as caught:
        run(documents({"a": "b"}), store, embedder, errors_file=name)
    assert str(caught.value).isprintable()
    assert store.calls == []


def test_an_errors_file_on_a_full_disk_is_one_line(store: FakeStore, embedder: Embedder) -> None:
    rows = [BadRow(place="line 1", reason="bad")]
    with pytest.raises(SourceError, match="cannot write errors_file '/dev/full': No space left"):
        run(rows, store, embedder, errors_file=Path("/dev/full"))


def test_only_the_first_bad_rows_are_told(store: FakeStore, embedder: Embedder) -> None:
    told: list[str] = []
    rows = [BadRow(place=f"line {n}", reason="bad") for n in range(1000)]
    assert run(rows, store, embedder, tell=told.append).num_bad == 1000
    assert len(told) == 11


def test_a_bad_row_can_end_the_load(store: FakeStore, embedder: Embedder) -> None:
    rows = [*documents(numbered(2)), BadRow(place="line 3", reason="is not JSON")]
    with pytest.raises(SourceError, match=r"^line 3: is not JSON$"):
        run(rows, store, embedder, on_error="stop")
    run(numbered(3), store, embedder)
    expect(store, numbered(3), embedder)


@pytest.mark.parametrize(("num_documents", "batch_rows"), [(1, 9), (2, 9), (2, 1), (700, 2048)])
def test_a_text_the_engine_cannot_embed_is_a_bad_row(
    num_documents: int, batch_rows: int, store: FakeStore
) -> None:
    engine = FakeEngine(max_batch_tokens=256)
    engine.poison(ord("!"))
    texts = {**numbered(num_documents), "bad": "no!"}
    with fake_embedder(engine) as embedder:
        report = run(texts, store, embedder, batch_rows=batch_rows)
        assert (report.num_bad, report.num_embedded) == (1, num_documents)
        assert report.num_rows == num_documents
        expect(store, numbered(num_documents), embedder)


def test_neighbors_that_are_all_refused_are_bad_rows(store: FakeStore) -> None:
    good = numbered(340)
    texts = dict(list(good.items())[:40])
    texts |= {f"long{n}": "x" * 99 for n in range(60)}
    texts |= good
    with fake_embedder(on_truncate="error") as embedder:
        report = run(texts, store, embedder)
        assert (report.num_bad, report.num_embedded) == (60, 340)
        expect(store, good, embedder)


def test_an_engine_that_fails_always_ends_the_load(store: FakeStore) -> None:
    engine = FakeEngine(max_batch_tokens=256)
    engine.poison(ord("t"))
    texts = {**numbered(20), "refused": "x" * 99, **numbered(20, 20)}
    for one in (numbered(20), texts):
        with (
            fake_embedder(engine, on_truncate="error") as embedder,
            pytest.raises(EngineRunError),
        ):
            run(one, store, embedder)
        assert not store.is_locked


@pytest.mark.parametrize("batch_rows", [1, 4, 7])
def test_an_engine_that_fails_always_ends_a_load_of_single_rows(
    batch_rows: int, store: FakeStore
) -> None:
    engine = FakeEngine(max_batch_tokens=256)
    for letter in "at":
        engine.poison(ord(letter))
    with fake_embedder(engine) as embedder, pytest.raises(EngineRunError):
        run(numbered(20), store, embedder, batch_rows=batch_rows)


def test_cut_texts_are_counted_without_a_warning(store: FakeStore, embedder: Embedder) -> None:
    report = run({"a": "short", "b": "x" * 50}, store, embedder)
    assert (report.num_truncated, report.num_embedded) == (1, 2)


# Failures of the destination.


def test_a_failing_write_ends_the_load_and_gives_the_lock_back(
    store: FakeStore, embedder: Embedder
) -> None:
    sink = FakeSink(store)
    sink.fail(None, SinkError("the disk is full"))
    with pytest.raises(SinkError, match="the disk is full"):
        index(documents(numbered(300)), sink, embedder=embedder, chunk=False, batch_rows=40)
    assert not store.is_locked
    assert num_calls(store, "finish") == 0
    run(numbered(300), store, embedder)
    expect(store, numbered(300), embedder)


def test_the_first_error_is_the_one_to_tell(store: FakeStore, embedder: Embedder) -> None:
    class Unclosable(FakeSink):
        def close(self) -> None:
            super().close()
            raise SinkError("cannot be closed")

    sink = Unclosable(store)
    sink.fail(SinkError("the disk is full"))
    with pytest.raises(SinkError, match="the disk is full"):
        index(documents(numbered(1)), sink, embedder=embedder, chunk=False)
    with pytest.raises(SinkError, match="cannot be closed"):
        index(documents(numbered(1)), Unclosable(store), embedder=embedder, chunk=False)


def test_failing_writes_of_metadata_end_the_load_at_once(
    store: FakeStore, embedder: Embedder
) -> None:
    run(documents(numbered(10), page=1), store, embedder)

    class Full(FakeSink):
        def write_metadata(self, rows: Any) -> None:
            raise SinkError("the disk is full")

    changed = [
        replace(row, digest=row.digest[:-1] + bytes([row.digest[-1] ^ 1]))
        for row in store.rows.values()
    ]
    thread, bad_rows = SinkThread(), BadRows(None, print, stops=False)
    load = Load(embedder, Full(store), thread, bad_rows, Tally(embedder, print, None), 2048)

    def add_all() -> None:
        for row in changed:
            load.add(Group([row], 1))

    with pytest.raises(SinkError, match="the disk is full"):  # before `work` looks at the writes
        add_all()
    thread.close(None)


def test_the_counts_add_up_where_the_destination_refuses_rows(
    store: FakeStore, embedder: Embedder
) -> None:
    class Picky(FakeSink):
        def write(self, rows: Any, vectors: Any) -> None:
            good = [n for n, row in enumerate(rows) if row.metadata.get("page") != 13]
            super().write([rows[n] for n in good], vectors[good])
            self._refuse(rows)

        def write_metadata(self, rows: Any) -> None:
            super().write_metadata([row for row in rows if row.metadata.get("page") != 13])
            self._refuse(rows)

        def _refuse(self, rows: Any) -> None:
            bad = [row for row in rows if row.metadata.get("page") == 13]
            if bad:
                found = [BadRow(place=row.source_id, reason="is odd", id=row.id) for row in bad]
                raise UnstorableRowsError(self.name, found)

    def load(pages: list[int]) -> IndexReport:
        rows = [replace(one, metadata={"page": pages[n]}) for n, one in enumerate(numbered_rows)]
        return index(rows, Picky(store), embedder=embedder, chunk=False)

    numbered_rows = documents(numbered(3))
    first = load([1, 13, 2])
    assert (first.num_rows, first.num_embedded, first.num_bad) == (2, 2, 1)
    second = load([13, 4, 5])  # one refused, one new, one changed
    assert (second.num_rows, second.num_embedded, second.num_metadata) == (2, 1, 1)
    assert (second.num_unchanged, second.num_bad) == (0, 1)


def test_another_model_is_refused_before_anything_is_embedded(
    store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(3), store, embedder)
    assert store.target is not None
    store.target = replace(store.target, fingerprint="folder:other", model="other")
    before = embedder.stats().num_texts
    with pytest.raises(SinkError, match=r"made by 'other'.*--recreate"):
        run(numbered(3), store, embedder)
    assert embedder.stats().num_texts == before
    run(numbered(2), store, embedder, recreate=True)
    expect(store, numbered(2), embedder)


def test_where_no_thread_is_left_a_load_says_so(
    store: FakeStore, embedder: Embedder, limit_threads: Callable[[int], list[str]]
) -> None:
    started = limit_threads(1)
    with pytest.raises(PassingBuildError, match="no more threads can be started"):
        run(numbered(3), store, embedder)
    assert started == ["embedlib-sink"]
    assert "embedlib-sink" not in [thread.name for thread in threading.enumerate()]


def test_threads_end_with_the_load(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(100), store, embedder)
    sink = FakeSink(store)
    sink.fail(Killed())
    with pytest.raises(Killed):
        index(documents(numbered(5, 100)), sink, embedder=embedder, chunk=False)
    names = {thread.name for thread in threading.enumerate()}
    assert names.isdisjoint({"embedlib-reader", "embedlib-sink"})


# Dry run, limit, progress, options.


def test_a_dry_run_writes_nothing_and_counts_everything(
    store: FakeStore, embedder: Embedder
) -> None:
    run(numbered(10), store, embedder)
    calls = list(store.calls)
    texts = {**numbered(15), "d0": "changed"}
    report = run(texts, store, embedder, dry_run=True, delete_missing=True)
    assert store.calls == calls
    assert (report.num_documents, report.num_embedded, report.num_unchanged) == (15, 5 + 1, 9)
    assert report.num_tokens == sum(len(texts[f"d{n}"]) for n in [0, *range(10, 15)])
    assert report.estimated_seconds is not None
    assert report.estimated_seconds > 0
    assert (report.num_deleted, report.num_other) == (0, None)
    report = run(numbered(10), store, embedder, dry_run=True)
    assert (report.num_unchanged, report.estimated_seconds, report.num_sampled) == (10, None, 0)


def test_a_dry_run_needs_no_destination_yet(store: FakeStore, embedder: Embedder) -> None:
    report = run(numbered(3), store, embedder, dry_run=True)
    assert (report.num_embedded, store.target) == (3, None)


def test_a_dry_run_of_recreate_counts_everything(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(3), store, embedder)
    report = run(numbered(3), store, embedder, dry_run=True, recreate=True)
    assert (report.num_embedded, report.num_unchanged, len(store.rows)) == (3, 0, 3)


def test_the_sink_is_told_the_shard(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(3), store, embedder, shard="1/2")
    assert store.target is not None
    assert store.target.shard == "1/2"


def test_a_document_of_many_chunks_is_written_in_groups(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.indexing.reader.GROUP_ROWS", 4)
    asked: list[int] = []

    class Watching(FakeSink):
        def digests(self, ids: Any) -> Any:
            asked.append(len(ids))
            return super().digests(ids)

    text = "One sentence here. " * 20
    report = index([Document(id="a", text=text)], Watching(store), embedder=embedder)
    assert (sum(asked), max(asked)) == (report.num_rows, 4)
    assert report.num_documents == 1


def test_a_document_waits_for_no_other_and_an_endless_source_ends_with_its_reader() -> None:
    is_read = threading.Event()

    def endless() -> Iterator[Document]:
        yield Document(id="first", text="text")
        assert is_read.wait(WAIT_SECONDS)
        yield from (Document(id=f"d{number}", text="text") for number in count())

    with closing(Seen()) as seen:
        reader = Reader(endless(), cut_nothing, "model", seen, BadRows(None, print, stops=False))
        groups = reader.groups(while_waiting=lambda: False)
        assert [row.source_id for row in next(groups).rows] == ["first"]
        is_read.set()
        assert next(groups).rows[0].source_id == "d0"
        reader.close()
        assert not reader._thread.is_alive()


def test_long_documents_do_not_wait_for_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlib.indexing.reader._GROUP_CHARS", 1000)
    is_ahead, sizes = threading.Event(), list[int]()

    def long() -> Iterator[Document]:
        for number in range(50):
            if number == 8:
                is_ahead.set()
            yield Document(id=f"d{number}", text="x" * 400)

    def cut(together: Sequence[Document]) -> list[list[Chunk]]:
        sizes.append(len(together))
        return cut_nothing(together)

    with closing(Seen()) as seen:
        reader = Reader(long(), cut, "model", seen, BadRows(None, print, stops=False))
        assert is_ahead.wait(WAIT_SECONDS)
        groups = list(reader.groups(while_waiting=lambda: False))
        reader.close()
    assert sum(group.num_documents for group in groups) == sum(sizes) == 50
    assert max(sizes) == 3
    assert max(len(group.rows) for group in groups) <= 3


def test_a_dry_run_checks_the_destination(store: FakeStore, embedder: Embedder) -> None:
    run(numbered(3), store, embedder)
    assert store.target is not None
    store.target = replace(store.target, dim=7)
    with pytest.raises(SinkError, match="7 dimensions"):
        run(numbered(3), store, embedder, dry_run=True)


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_thread_of_the_destination_compares_rows(
    store: FakeStore, embedder: Embedder, dry_run: bool
) -> None:
    run(numbered(3), store, embedder)
    threads = []

    class Watched(FakeSink):
        def digests(self, ids: Any) -> Any:
            threads.append(threading.current_thread().name)
            return super().digests(ids)

    index(documents(numbered(5)), Watched(store), embedder=embedder, dry_run=dry_run, chunk=False)
    assert {*threads} == {"embedlib-sink"}


def test_a_dry_run_leaves_the_estimate_out_where_the_sample_cannot_be_embedded(
    store: FakeStore,
) -> None:
    with fake_embedder(on_truncate="error") as embedder:
        report = run({"a": "short", "b": "x" * 50}, store, embedder, dry_run=True)
    assert (report.num_rows, report.estimated_seconds, report.num_sampled) == (2, None, 0)


def test_a_limit_reads_no_further(store: FakeStore, embedder: Embedder) -> None:
    def live() -> Iterator[Document]:
        for number in range(7):
            yield Document(id=f"d{number}", text=f"text {number}")
        raise AssertionError("nobody asked for another one, which may take for ever")

    assert run(live(), store, embedder, limit=7).num_documents == 7
    expect(store, numbered(7), embedder)


def test_progress_only_grows_and_ends_at_the_whole(store: FakeStore, embedder: Embedder) -> None:
    seen: list[IndexProgress] = []
    run(numbered(900), store, embedder, on_progress=seen.append)
    counts = [progress.num_documents for progress in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 900
    assert {progress.total_documents for progress in seen} == {900}
    assert seen[-1].num_embedded == 900


def test_progress_counts_rows_as_batches_end(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.indexing.load.LOOK_SECONDS", 0.001)
    engine = FakeEngine(max_batch_tokens=64)
    seen, released = list[IndexProgress](), list[bool]()

    def look(progress: IndexProgress) -> None:
        seen.append(progress)
        if len(engine.batches) > len(released):  # one at each look; the others still wait
            released.append(True)
            engine.release_one()

    engine.hold()
    with fake_embedder(engine) as embedder:
        run(numbered(40), store, embedder, on_progress=look)
    ahead = [p for p in seen if p.num_embedded < p.num_vectors < 40]
    assert ahead
    assert all(p.num_documents_embedded == p.num_vectors for p in ahead)
    assert (seen[-1].num_vectors, seen[-1].num_documents_embedded) == (40, 40)
    assert [p.is_finishing for p in seen] == [False] * (len(seen) - 1) + [True]


@pytest.mark.parametrize(
    ("options", "total"), [({"limit": 7}, 7), ({"limit": 900}, 100), ({"shard": "1/4"}, 25)]
)
def test_the_whole_is_what_will_be_read(
    options: dict[str, Any], total: int, store: FakeStore, embedder: Embedder
) -> None:
    seen: list[IndexProgress] = []
    run(numbered(100), store, embedder, on_progress=seen.append, **options)
    assert {progress.total_documents for progress in seen} == {total}
    seen.clear()
    run((each for each in documents(numbered(9))), store, embedder, on_progress=seen.append)
    assert {progress.total_documents for progress in seen} == {None}


def test_numbers_of_numpy_are_those_of_python() -> None:
    given = {"chunk_tokens": np.int64(8), "max_delete": np.float64(0.5)}
    options = IndexOptions(**given, batch_rows=np.int32(4))
    assert (options.chunk_tokens, options.max_delete, options.batch_rows) == (8, 0.5, 4)
    assert {type(options.chunk_tokens), type(options.batch_rows)} == {int}
    assert IndexOptions(max_delete=0).max_delete == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_row": 1}, "did you mean 'batch_rows'"),
        ({"chunk_size": 100}, "unknown option 'chunk_size'; pass chunk_tokens=$"),
        ({"batch_rows": 0}, "batch_rows = 0"),
        ({"max_delete": 30}, "max_delete = 30"),
        ({"max_delete": 1.01}, "max_delete = 1.01"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"delete_missing": True, "limit": 1}, "whole source"),
        ({"recreate": True, "shard": "1/2"}, "other shards"),
        ({"shard": "0/2"}, "shard = '0/2'"),
        ({"shard": "3/2"}, "shard = '3/2'"),
        ({"shard": "a"}, "shard = 'a'"),
        ({"shard": Path("1/2")}, "shard = PosixPath"),
        ({"shard": "1/" + "2" * 5000}, "shard = '1/222"),
        ({"on_error": np.ones(2)}, "on_error = array"),
    ],
)
def test_a_wrong_option_is_refused(
    options: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(numbered(1), store, embedder, **options)
    assert store.calls == []
