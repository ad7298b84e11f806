"""Headings and other prefixes that are embedded in front of chunks, and not stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.indexing import Chunk, Document
from embedlib.indexing.chunks.prefixes import PrefixedChunks, prefix_room
from embedlib.indexing.chunks.templates import parse_template
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.pipeline import index
from embedlib.indexing.report import IndexReport
from embedlib.testing import (
    FakeEngine,
    FakeSink,
    FakeStore,
    byte_tokenizer,
    fake_embedder,
    fake_spec,
)

GUIDE = """# Guide

How to begin.

## Install

First words. Second words. Third words. Fourth words here.

### Linux

Some words more.
"""
SOURCE = [Document(id="g", text=GUIDE, metadata={"title": "Manual"}, is_markdown=True)]


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with fake_embedder(FakeEngine(max_batch_tokens=512), fake_spec(max_seq_tokens=64)) as made:
        yield made


def run(store: FakeStore, embedder: Embedder, source: Any = SOURCE, **options: Any) -> IndexReport:
    return index(source, FakeSink(store), embedder=embedder, **{"chunk_tokens": 40, **options})


def expect(store: FakeStore, embedder: Embedder, prefixes: list[str]) -> None:
    """The stored texts are those of the source, and the vectors those of prefix and text."""
    rows = sorted(store.rows.values(), key=lambda row: row.chunk)
    for row, prefix in zip(rows, prefixes, strict=True):
        start, end = row.metadata["start_index"], row.metadata["end_index"]
        assert row.text == GUIDE[start:end]
        assert (store.vectors[row.id] == embedder.encode_document(prefix + row.text)).all()


PATHS = ["", "Guide\n\n", *["Guide > Install\n\n"] * 3]


def test_headings_are_embedded_and_not_stored(store: FakeStore, embedder: Embedder) -> None:
    report = run(store, embedder, with_headings=True)
    expect(store, embedder, PATHS)
    headings = {row.chunk: row.metadata.get("headings") for row in store.rows.values()}
    assert [headings[chunk] for chunk in (0, 1, 2)] == [None, ["Guide"], ["Guide", "Install"]]
    assert report.num_truncated == 0
    assert run(store, embedder, with_headings=True).num_unchanged == 5
    # Only the chunks without headings above them are what they were.
    without = run(store, embedder)
    assert (without.num_embedded, without.num_unchanged) == (4, 1)
    expect(store, embedder, [""] * 5)


def test_a_template_is_filled_for_each_document(store: FakeStore, embedder: Embedder) -> None:
    run(store, embedder, prefix="{title}: ")
    expect(store, embedder, ["Manual: "] * 5)
    other = [Document(id="g", text=GUIDE, metadata={"title": "Book"}, is_markdown=True)]
    assert run(store, embedder, other, prefix="{title}: ").num_embedded == 5
    expect(store, embedder, ["Book: "] * 5)
    run(store, embedder, prefix="{title}: ", with_headings=True)
    expect(store, embedder, [f"Manual: {path}" for path in PATHS])


def test_a_function_makes_prefixes(store: FakeStore, embedder: Embedder) -> None:
    def prefix(document: Document, chunk: Chunk) -> str:
        return "" if chunk.start == 0 else f"{document.id}{len(chunk.headings)} "

    run(store, embedder, prefix=prefix)
    expect(store, embedder, ["", "g1 ", "g2 ", "g2 ", "g2 "])
    with pytest.raises(ConfigError, match=r"^prefix returned 7 for 'g'; it must return a str$"):
        run(store, embedder, prefix=lambda document, chunk: 7)
    with pytest.raises(ConfigError, match="prefix returned a text for 'g' that "):
        run(store, embedder, prefix=lambda document, chunk: "\udc00")


def test_a_document_without_the_field_has_no_prefix(store: FakeStore, embedder: Embedder) -> None:
    source = [
        Document(id="a", text="one", metadata={"title": "T"}),
        Document(id="b", text="two", metadata={"title": None, "lang": "de"}),
        Document(id="c", text="six"),
    ]
    told: list[str] = []
    run(
        store,
        embedder,
        source,
        prefix="{title}: ",
        chunk=False,
        chunk_tokens=None,
        tell=told.append,
    )
    by_id = {row.source_id: store.vectors[row.id] for row in store.rows.values()}
    for id_, text in (("a", "T: one"), ("b", "two"), ("c", "six")):
        assert (by_id[id_] == embedder.encode_document(text)).all()
    assert told == [
        "'b' has no 'title', so no prefix is put in front of it; its fields: 'source', 'headings', "
        "'title', 'lang'"
    ]
    told.clear()  # that there is no heading above a chunk is nothing to tell
    run(store, embedder, source, prefix="{headings}: ", tell=told.append)
    assert told == []


@pytest.mark.parametrize(
    ("prefix", "path", "text", "expected"),
    [
        ("", ("A", "B"), "x" * 12, "A > B\n\n" + "x" * 12),
        ("", ("A", "B"), "x" * 16, "B\n\n" + "x" * 16),
        ("", ("A", "B"), "x" * 18, None),
        ("p: ", ("A", "B"), "x" * 14, "p: B\n\n" + "x" * 14),
        ("p: ", ("A", "B"), "x" * 17, "p: " + "x" * 17),
        ("12345678", (), "x" * 17, "678" + "x" * 17),
        ("é€", (), "x" * 17, "€" + "x" * 17),
        ("12345678", (), "x" * 20, None),
    ],
)
def test_what_does_not_fit_is_shortened(
    prefix: str, path: tuple[str, ...], text: str, expected: str | None
) -> None:
    chunk = Chunk(text=text, start=0, end=len(text), headings=path)
    told: list[str] = []
    put = PrefixedChunks(
        *(lambda documents: [[chunk] for _ in documents], byte_tokenizer(), 20),
        *(lambda document, chunk: prefix, told.append),
        with_headings=True,
    )
    assert [found.embedded for [found] in put([Document(id="a", text=text)] * 2)] == [expected] * 2
    whole = f"{prefix}{' > '.join(path)}\n\n{text}" if path else prefix + text
    assert len(told) == (expected != whole)  # once for both documents


def test_a_chunk_leaves_room_for_its_prefix(store: FakeStore, embedder: Embedder) -> None:
    assert (prefix_room(510), prefix_room(64), prefix_room(8190)) == (127, 16, 128)
    with pytest.raises(
        ConfigError,
        match=r"^chunk_tokens = 60; the model has room for 48 tokens of text beside a prefix of 16",
    ):
        run(store, embedder, with_headings=True, chunk_tokens=60)
    run(store, embedder, with_headings=True, chunk_tokens=None)
    assert max(len(row.text) for row in store.rows.values()) <= 48


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("{title}: ", {"title": " The day\n"}, "The day: "),
        ("{a} {b}", {"a": 1, "b": ["x", "y"]}, "1 x, y"),
        ("{{{a}}}", {"a": True}, "{true}"),
        ("{a}", {"a": ["x", 1]}, '["x", 1]'),
        ("{a b-c.d}", {"a b-c.d": {"x": "ü"}}, '{"x": "ü"}'),
        ("{a}", {"a": 0}, "0"),
    ],
)
def test_templates(template: str, values: dict[str, Any], expected: str) -> None:
    assert parse_template(template).fill(values) == expected
    assert parse_template(template).missing(values) == []


@pytest.mark.parametrize("values", [*({"a": value} for value in (None, "", " ", [])), {}])
def test_a_field_without_a_value_is_missing(values: dict[str, Any]) -> None:
    assert parse_template("{a}: {b}").missing({"b": 1, **values}) == ["a"]


@pytest.mark.parametrize("template", ["", "no field", "{", "{}", "{a!r}", "{a:>9}", "}", "{a"])
def test_a_template_that_is_none(template: str) -> None:
    with pytest.raises(ConfigError, match=r"^prefix = .*it must name a field of the metadata"):
        parse_template(template)


def test_a_name_is_a_key_and_is_not_evaluated() -> None:
    template = parse_template("{a.__class__}{a[0]}")
    assert template.fields == ("a.__class__", "a[0]")
    assert template.missing({"a": "x"}) == ["a.__class__", "a[0]"]


@pytest.mark.parametrize(
    "option", [{"with_headings": True}, {"chunk_tokens": 64}, {"chunk_overlap": 8}]
)
def test_options_of_chunks_need_chunks(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ConfigError, match=f"{name} is for chunks; leave it out where chunk=False"):
        IndexOptions(chunk=False, **option)


def test_a_dry_run_counts_prefixes(store: FakeStore, embedder: Embedder) -> None:
    plain = run(store, embedder, dry_run=True)
    prefixed = run(store, embedder, dry_run=True, prefix="{title}: ")
    assert prefixed.num_tokens == plain.num_tokens + 5 * len("Manual: ")
