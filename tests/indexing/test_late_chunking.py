"""Late chunking in a load: windows, digests, kills, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.indexing import Document
from embedlib.indexing.chunks.chunking import Chunker
from embedlib.indexing.chunks.late_windows import WindowedChunks
from embedlib.indexing.pipeline import index
from embedlib.indexing.report import IndexReport
from embedlib.indexing.row_jobs import RowJob, end_of_window
from embedlib.indexing.rows import Chunk, Row
from embedlib.testing import (
    FakeEngine,
    FakeSink,
    FakeStore,
    byte_tokenizer,
    fake_embedder,
    fake_spec,
)
from tests.indexing.loading import Killed
from tests.indexing.two_models import Model
from tests.two_engines import token_vectors, two_engines

ROOM = 64
LONG = "".join(f"Sentence number {number}. " for number in range(14))
TEXTS = {"long": LONG, "short": "One word. Two words. Three words here.", "tiny": "end"}
LONG_DOCUMENT = Document(id="long", text=LONG)
PER_TOKEN = partial(FakeEngine, is_per_token=True)


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    with two_engines(PER_TOKEN, fake_spec(max_seq_tokens=ROOM)) as (made, _):
        yield made


def run(
    store: FakeStore, embedder: Embedder, texts: dict[str, str] = TEXTS, **options: Any
) -> IndexReport:
    source = [Document(id=id_, text=text) for id_, text in texts.items()]
    given = {"late_chunking": True, "chunk_tokens": 22, **options}
    return index(source, FakeSink(store), embedder=embedder, **given)


def vectors_of(store: FakeStore) -> dict[tuple[str, int], tuple[str, bytes, bytes]]:
    return {
        (row.source_id, row.chunk): (row.text, row.digest, store.vectors[row.id].tobytes())
        for row in store.rows.values()
    }


def windowed(text: str, max_tokens: int = ROOM) -> list[Any]:
    cut = WindowedChunks(Chunker(byte_tokenizer(), 22), byte_tokenizer(), max_tokens)
    [chunks] = cut([Document(id="a", text=text)])
    return chunks


def test_a_change_of_model_embeds_sampled_rows_again_in_their_windows(
    embedder: Embedder, tmp_path: Path
) -> None:
    url, told = f"jsonl:{tmp_path / 'rows.jsonl'}", list[str]()
    source = [Document(id=id_, text=text) for id_, text in TEXTS.items()]
    index(source, url, embedder=Model("old"))
    given = {"late_chunking": True, "chunk_tokens": 22, "replace": True}
    assert index(source, url, embedder=embedder, tell=told.append, **given).num_rows > 9
    assert told[-1].endswith("those of 'old' are kept until embedlib drop-old")


def test_a_chunk_is_the_mean_of_its_tokens_in_the_window(embedder: Embedder) -> None:
    store = FakeStore()
    report = run(store, embedder)
    for id_, text in TEXTS.items():
        rows = sorted((r for r in store.rows.values() if r.source_id == id_), key=lambda r: r.chunk)
        for row, chunk in zip(rows, windowed(text), strict=True):
            start, end = chunk.span
            assert row.text == chunk.text == chunk.embedded[start:end]
            expected = token_vectors(chunk.embedded)[start:end].mean(0)
            np.testing.assert_allclose(store.vectors[row.id], expected, rtol=1e-6)
    assert (report.num_embedded, report.num_bad, report.num_truncated) == (len(store.rows), 0, 0)
    assert run(store, embedder).num_unchanged == len(store.rows)


def test_windows_hold_whole_chunks_and_begin_with_context() -> None:
    chunks = windowed(LONG)
    windows = list(dict.fromkeys(chunk.embedded for chunk in chunks))
    assert len(windows) > 3
    assert all(len(window) <= ROOM and window in LONG for window in windows)
    for before, chunk in pairwise(chunks):
        if chunk.embedded != before.embedded:  # the first that a window pools
            assert chunk.embedded == LONG[before.start : before.start + len(chunk.embedded)]
            assert chunk.span[0] == chunk.start - before.start
    # Of chunks of a few tokens there are more in the context, up to a quarter of the window.
    cut = WindowedChunks(Chunker(byte_tokenizer(), 7), byte_tokenizer(), ROOM)
    [small] = cut([Document(id="a", text="Ab cd. Ef gh. " * 12)])
    firsts = [b.span and b.span[0] for a, b in pairwise(small) if a.embedded != b.embedded]
    assert set(firsts) == {14}
    # The blanks between chunks count as well.
    cut = WindowedChunks(Chunker(byte_tokenizer(), 16), byte_tokenizer(), ROOM)
    [even] = cut([Document(id="a", text="Abcd fghij klmn. " * 12)])
    assert {len(chunk.text) for chunk in even} == {16}
    assert {len(chunk.embedded or "") for chunk in even[:-1]} == {50}
    # Where no two chunks fit in a window there is no context.
    cut = WindowedChunks(Chunker(byte_tokenizer(), 22), byte_tokenizer(), 30)
    assert all(chunk.embedded == chunk.text for [*found] in cut([LONG_DOCUMENT]) for chunk in found)
    whole = windowed(TEXTS["short"])
    assert {chunk.embedded for chunk in whole} == {TEXTS["short"]}
    assert windowed(" a \n")[0].span == (0, 1)


def test_the_context_of_a_long_window_has_no_more_than_256_tokens() -> None:
    cut = WindowedChunks(lambda _: [], byte_tokenizer(), 2048)
    assert cut._context([100] * 10, 9) == 7
    assert cut._context([300] * 10, 9) == 8  # one chunk at least


@pytest.mark.parametrize(
    ("pieces", "max_tokens", "windows"),
    [
        ("aaaa bbbb", 9, ["aaaa bbbb"]),
        ("aaaabbbb", 8, ["aaaabbbb"]),
        ("aaaa bbbb", 8, ["aaaa", "bbbb"]),  # the blank is one too many
        # Where a window is too long, it loses its context first.
        ("aaaa      bbb ccc", 12, ["aaaa", "bbb ccc"]),
        ("aaaabbbbccccddddeeeeffffgggghhhhiiii", 32, ["aaaabbbbccccddddeeeeffffgggghhhh", "gggg"]),
    ],
)
def test_windows_are_as_long_as_the_model_takes(
    pieces: str, max_tokens: int, windows: list[str]
) -> None:
    """Chunks are runs of one letter; those of four letters are context up to eight."""
    chunks = [
        Chunk(text=run[0], start=run.start(), end=run.end())
        for run in re.finditer(r"(\w)\1*", pieces)
    ]
    cut = WindowedChunks(lambda _: [chunks], byte_tokenizer(), max_tokens)
    [found] = cut([Document(id="a", text=pieces)])
    made = list(dict.fromkeys(chunk.embedded or "" for chunk in found))
    assert [window[: len(wanted)] for window, wanted in zip(made, windows, strict=True)] == windows


def test_a_change_anywhere_in_a_window_changes_all_its_chunks(embedder: Embedder) -> None:
    store = FakeStore()
    run(store, embedder)
    before = vectors_of(store)
    changed = TEXTS | {"short": TEXTS["short"].replace("One", "An")}
    report = run(store, embedder, changed)
    num_short = sum(id_ == "short" for id_, _ in before)
    assert (report.num_embedded, report.num_unchanged) == (num_short, len(before) - num_short)
    after = vectors_of(store)
    assert all((after[key] != before[key]) == (key[0] == "short") for key in before)
    fresh = FakeStore()
    run(fresh, embedder, changed)
    assert vectors_of(fresh) == after


def test_another_value_of_the_option_embeds_again(embedder: Embedder) -> None:
    store = FakeStore()
    num_rows = run(store, embedder).num_rows
    with fake_embedder(FakeEngine(), fake_spec(max_seq_tokens=ROOM)) as other:
        assert run(store, other, late_chunking=False).num_embedded == num_rows
        for row in store.rows.values():
            assert (store.vectors[row.id] == other.encode_document(row.text)).all()
    assert run(store, embedder).num_embedded == num_rows


def test_sparse_vectors_are_those_of_the_chunks() -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []

    def submit_batch(texts: Any, **options: Any) -> Future[Any]:
        asked.append((list(texts), options))
        future: Future[Any] = Future()
        future.set_result([np.zeros((len(spans), 2)) for spans in options.get("chunks", ())])
        return future

    model: Any = SimpleNamespace(submit_batch=submit_batch)
    rows: list[Any] = [
        Row(id=uuid4(), source_id="a", chunk=i, text=t, metadata={}, digest=b"", embedded=w, span=s)
        for i, (t, w, s) in enumerate(
            [("a", "a b", (0, 1)), ("b", "a b", (2, 3)), ("c", "b c", (2, 3))]
        )
    ]
    found = RowJob(rows, model, model).result()
    assert found.vectors.shape == (3, 2)  # type: ignore[union-attr]
    assert asked == [
        (["a b", "b c"], {"role": "document", "chunks": ([(0, 1), (2, 3)], [(2, 3)])}),
        (["a", "b", "c"], {"role": "document", "output_value": "sparse"}),
    ]
    assert [end_of_window(rows, end) for end in (1, 2, 3)] == [2, 2, 3]


@settings(deadline=None, max_examples=8)
@given(st.lists(st.integers(0, 3), max_size=4), st.sampled_from([1, 3, 16, 64]))
def test_killed_anywhere_a_rerun_ends_with_exactly_the_rows(
    kills: list[int], batch_rows: int
) -> None:
    texts = {f"d{n}": LONG[: 30 + 20 * n] for n in range(10)}
    store, whole = FakeStore(), FakeStore()
    with two_engines(PER_TOKEN, fake_spec(max_seq_tokens=ROOM)) as (embedder, _):
        run(whole, embedder, texts)
        num_embedded = embedder.stats().num_texts
        for after in kills:
            sink = FakeSink(store)
            sink.fail(*[None] * after, Killed())
            source = [Document(id=id_, text=text) for id_, text in texts.items()]
            options: dict[str, Any] = {"late_chunking": True, "chunk_tokens": 22}
            with suppress(Killed):
                index(source, sink, embedder=embedder, batch_rows=batch_rows, **options)
    with two_engines(PER_TOKEN, fake_spec(max_seq_tokens=ROOM)) as (embedder, _):  # another process
        run(store, embedder, texts, batch_rows=batch_rows)
        assert embedder.stats().num_texts <= num_embedded
    assert vectors_of(store) == vectors_of(whole)
    assert max(rows for name, rows in store.calls if name == "write") <= max(batch_rows, 6)


def test_a_chunk_leaves_room_for_others_in_its_window(embedder: Embedder) -> None:
    store = FakeStore()
    run(store, embedder, chunk_tokens=None)
    assert max(len(row.text) for row in store.rows.values()) == ROOM // 4


def test_a_dry_run_counts_windows_and_writes_nothing(embedder: Embedder) -> None:
    store = FakeStore()
    report = run(store, embedder, dry_run=True)
    assert store.calls == []
    windows = [dict.fromkeys(chunk.embedded for chunk in windowed(text)) for text in TEXTS.values()]
    assert report.num_tokens == sum(len(window) for of_text in windows for window in of_text)
    assert report.num_rows == sum(len(windowed(text)) for text in TEXTS.values())


def test_what_has_no_late_chunks_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    def told(embedder: Any, **options: Any) -> str:
        store = FakeStore()
        with pytest.raises(ConfigError) as caught:
            run(store, embedder, **{"chunk_tokens": None, **options})
        assert store.calls == []
        return str(caught.value)

    with Embedder(tiny_folder("xlm-roberta"), threads=1) as embedder:
        assert told(embedder).startswith(
            "late_chunking: chunks need a model that pools by the mean of its tokens; this one "
        )
    with two_engines(PER_TOKEN, on_truncate="chunk") as (embedder, _):
        assert "late_chunking: chunks needs all tokens in one sequence" in told(embedder)
        assert "late_chunking is for chunks; leave it out" in told(embedder, chunk=False)
        for option in ({"with_headings": True}, {"prefix": "{title}"}):
            assert "late_chunking embeds the document as it is" in told(embedder, **option)
    with fake_embedder() as embedder:
        assert told(embedder).startswith("late_chunking: chunks needs per-token vectors")

        class Other:
            def __getattr__(self, name: str) -> Any:
                return getattr(embedder, name)

            def submit_batch(self, texts: list[str], *, role: Any) -> Any:
                raise AssertionError("it is not called")

        assert told(Other()).startswith("late_chunking needs an embedlib.Embedder;")


def test_chunks_of_a_tiny_model_are_those_of_encode(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    text = "the quick brown fox. a small city. the end."
    store = FakeStore()
    with Embedder(tiny_folder("bert"), threads=1) as embedder:
        assert embedder.count_room("document") == 22
        run(store, embedder, {"a": text}, chunk_tokens=6)
        rows = sorted(store.rows.values(), key=lambda row: row.chunk)
        spans = [(row.metadata["start_index"], row.metadata["end_index"]) for row in rows]
        assert len(spans) > 1
        expected = embedder.encode_document(text, chunks=spans)
    for row, vector in zip(rows, expected, strict=True):
        np.testing.assert_allclose(store.vectors[row.id], vector, atol=1e-5)
