"""`index` and `search` with an object that is not an Embedder."""

from __future__ import annotations

from concurrent.futures import Future
from hashlib import blake2b
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.config import Similarity
from embedlib.errors import ConfigError, EngineRunError, InputError, SinkError, SourceError
from embedlib.indexing import Document, QueryEmbedder, Row, TextEmbedder, Vectors, index, search
from embedlib.indexing.dry_run import DryRun
from embedlib.indexing.reader import Group
from embedlib.indexing.report import Tally
from embedlib.indexing.sinks.thread import SinkThread
from embedlib.testing import FakeSink, FakeStore, byte_tokenizer

if TYPE_CHECKING:

    def an_embedder_fits(embedder: Embedder) -> tuple[TextEmbedder, QueryEmbedder]:
        return embedder, embedder


class HashEmbedder:
    """A deterministic embedder: the vector of a text is made of its hash."""

    model_name = "hash"
    fingerprint = "hash:1"
    similarity_fn_name: Similarity = "dot"
    tokenizer = byte_tokenizer()
    max_seq_length = 100

    def __init__(self) -> None:
        self.texts: list[str] = []

    def get_embedding_dimension(self) -> int:
        return 16

    def count_room(self, role: str) -> int:
        return self.max_seq_length

    def encode_query(self, text: str) -> Vectors:
        digest = blake2b(text.encode(), digest_size=16).digest()
        return np.frombuffer(digest, np.uint8) - np.float32(127.5)

    def submit_batch(self, texts: Any, *, role: str) -> Future[Vectors]:
        future: Future[Vectors] = Future()
        self.texts += texts
        if "bad" in texts:
            future.set_exception(InputError("the text is bad"))
        else:
            future.set_result(np.stack([self.encode_query(text) for text in texts]))
        return future

    def stats(self) -> Any:
        return SimpleNamespace(num_tokens=sum(map(len, self.texts)), num_truncated=0)


def documents(num_documents: int) -> list[Document]:
    return [Document(id=f"d{n}", text=f"text {n}") for n in range(num_documents)]


def load(store: FakeStore, embedder: Any, source: list[Document], **options: Any) -> Any:
    return index(source, FakeSink(store), embedder=embedder, **options)


def test_it_loads_searches_and_resumes() -> None:
    store, embedder = FakeStore(), HashEmbedder()
    report = load(store, embedder, documents(50))
    assert (report.num_embedded, report.num_tokens) == (50, sum(map(len, embedder.texts)))
    for row in store.rows.values():
        assert (store.vectors[row.id] == embedder.encode_query(row.text)).all()
    assert store.target is not None
    assert (store.target.model, store.target.dim) == ("hash", 16)
    again = HashEmbedder()
    report = load(store, again, documents(60))
    assert (report.num_embedded, report.num_unchanged) == (10, 50)
    assert len(again.texts) == 10
    hits = search("text 7", FakeSink(store), embedder=embedder, top_k=3)
    assert hits[0].text == "text 7"


def test_long_texts_are_divided_and_bad_ones_skipped() -> None:
    store, lines = FakeStore(), list[str]()
    source = [Document(id="long", text="words " * 60), Document(id="bad", text="bad")]
    report = load(store, HashEmbedder(), source, tell=lines.append)
    assert (report.num_rows, report.num_embedded, report.num_bad) == (4, 4, 1)
    assert max(len(row.text) for row in store.rows.values()) <= 100
    assert lines == ["skipped: 'bad', chunk 0: the text is bad"]


def test_what_an_engine_says_of_the_only_row_is_told_though_it_takes_no_short_text() -> None:
    class Refusing(HashEmbedder):
        def submit_batch(self, texts: Any, *, role: str) -> Future[Vectors]:
            future: Future[Vectors] = Future()
            is_row = [*texts] == ["a document"]
            future.set_exception(
                EngineRunError("the engine is broken") if is_row else InputError("too short")
            )
            return future

    with pytest.raises(EngineRunError, match="the engine is broken"):
        load(FakeStore(), Refusing(), [Document(id="a", text="a document")])


def test_a_dry_run_of_an_embedder_that_counts_no_tokens_estimates_nothing() -> None:
    embedder = HashEmbedder()
    embedder.stats = lambda: SimpleNamespace(num_tokens=0, num_truncated=0)  # type: ignore[method-assign]
    report = load(FakeStore(), embedder, documents(10), dry_run=True)
    assert (report.estimated_seconds, report.num_sampled) == (None, 0)


@pytest.mark.parametrize(("seconds_per_text", "num_rows"), [(0.001, 128), (0.1, 8), (9.0, 1)])
def test_a_dry_run_measures_rows_for_about_a_second(seconds_per_text: float, num_rows: int) -> None:
    embedded: list[str] = []

    class Slow(HashEmbedder):
        def submit_batch(self, texts: Any, *, role: str) -> Any:
            embedded.extend(texts)
            return super().submit_batch(texts, role=role)

    embedder = Slow()
    texts = documents(1000)
    tally = Tally(embedder, lambda _: None, None)
    thread = SinkThread()
    dry_run = DryRun(
        *(embedder, FakeSink(FakeStore()), thread, tally),
        has_rows=False,
        clock=lambda: len(embedded) * seconds_per_text,
    )
    rows = [
        Row(
            id=UUID(int=n),
            source_id=document.id,
            chunk=0,
            text=document.text,
            metadata={},
            digest=b"",
        )
        for n, document in enumerate(texts)
    ]
    dry_run.add(Group(rows, len(rows)))
    report = dry_run.report(0)
    thread.close(None)
    assert (report.num_sampled, len(embedded)) == (num_rows, 2 * num_rows - 1)
    assert report.num_tokens == sum(len(document.text) for document in texts)
    expected = 1000 * seconds_per_text
    assert report.estimated_seconds == pytest.approx(expected, rel=0.35)  # texts differ in length


@pytest.mark.parametrize("missing", ["fingerprint", "submit_batch", "stats"])
def test_an_object_without_a_member_is_refused(missing: str) -> None:
    members = {name: None for name in dir(HashEmbedder) if name != missing}
    with pytest.raises(ConfigError, match=rf"has no {missing}; it must be an Embedder, .* or an "):
        load(FakeStore(), SimpleNamespace(**members), documents(1))


def test_looking_for_members_computes_no_property() -> None:
    class Slow(HashEmbedder):
        num_reads = 0

        @property
        def fingerprint(self) -> str:  # type: ignore[override]
            self.num_reads += 1
            return "hash:1"

    embedder = Slow()
    with pytest.raises(SourceError, match="no such file"):
        index("missing.txt", FakeSink(FakeStore()), embedder=embedder)
    assert embedder.num_reads == 0


def test_members_behind_getattr_are_found() -> None:
    class Proxy:
        def __init__(self, behind: HashEmbedder) -> None:
            self._behind = behind

        def __getattr__(self, name: str) -> Any:
            return getattr(self._behind, name)

    assert load(FakeStore(), Proxy(HashEmbedder()), documents(3)).num_embedded == 3


def test_search_needs_no_members_of_index() -> None:
    store, embedder = FakeStore(), HashEmbedder()
    load(store, embedder, documents(5))
    asking = SimpleNamespace(
        model_name="hash",
        fingerprint="hash:1",
        get_embedding_dimension=lambda: 16,
        encode_query=embedder.encode_query,
    )
    assert search("text 2", FakeSink(store), embedder=asking)[0].source_id == "d2"
    del asking.encode_query
    with pytest.raises(ConfigError, match=r"has no encode_query; .* embedlib\.indexing\.QueryEmb"):
        search("text 2", FakeSink(store), embedder=asking)


def test_a_search_with_a_filter_and_a_sink_that_has_none() -> None:
    class Plain(FakeSink):
        search_where = None  # type: ignore[assignment]

    store, embedder = FakeStore(), HashEmbedder()
    load(store, embedder, documents(9))
    where = 'source in ("d2", "d5")'
    hits = search("text 7", FakeSink(store), embedder=embedder, where=where)
    assert {hit.source_id for hit in hits} == {"d2", "d5"}
    with pytest.raises(SinkError, match="fake: has no filters, since its sink has no search_where"):
        search("text 7", Plain(store), embedder=embedder, where=where)


def test_the_class_in_place_of_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"it must be an Embedder, which is made with Embedder\("):
        load(FakeStore(), Embedder, documents(1))


def test_another_model_is_refused_with_both_fingerprints() -> None:
    store, other = FakeStore(), HashEmbedder()
    load(store, HashEmbedder(), documents(3))
    other.fingerprint = "hash:2"
    with pytest.raises(SinkError, match="with fingerprint hash:1, this is 'hash' with hash:2"):
        load(store, other, documents(3))
