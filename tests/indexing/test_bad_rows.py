"""Rows that are left out of a load, and chunks."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from embedlib.embedder import Embedder
from embedlib.errors import (
    ConfigError,
    EmbedlibError,
    EngineRunError,
    SinkError,
    SourceError,
)
from embedlib.indexing.chunks.chunking import Chunker
from embedlib.indexing.pipeline import index
from embedlib.indexing.rows import BadRow, Document
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder
from tests.indexing.loading import contents, documents, expect, numbered, run


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


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
    assert [row.metadata for row in store.rows.values()] == [{"source": "a"}, {"source": "b"}]


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


def test_bad_rows_may_go_to_a_pipe(store: FakeStore, embedder: Embedder) -> None:
    """Such as /dev/stderr in a container."""
    out, into = os.pipe()
    rows = [BadRow(place="line 1", reason="is not JSON")]
    run(rows, store, embedder, errors_file=f"/dev/fd/{into}")
    os.close(into)
    with open(out) as lines:
        assert json.loads(lines.read())["reason"] == "is not JSON"


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


def test_a_prefix_the_engine_cannot_embed_makes_a_bad_row(store: FakeStore) -> None:
    engine = FakeEngine()
    engine.poison(ord("!"))
    document = Document(id="a", text="text", metadata={"mark": "!"})
    with fake_embedder(engine) as embedder:
        report = run([document], store, embedder, prefix="{mark}")
    assert (report.num_bad, report.num_embedded) == (1, 0)


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
