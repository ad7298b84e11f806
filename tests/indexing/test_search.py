"""`embedlib.Search`: the model of a destination, a reranker, filters, and what it refuses."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import embedlib
from embedlib import Config, Document, Embedder, Search, index
from embedlib.errors import (
    ClosedError,
    CloseTimeoutError,
    ConfigError,
    ModelNotFoundError,
    SinkError,
)
from embedlib.indexing import SearchResults, SparseModel
from embedlib.indexing.searches import hybrid, retrieval
from embedlib.indexing.searches.searching import find_fused
from embedlib.testing import (
    FakeEngine,
    FakeSink,
    FakeStore,
    byte_tokenizer,
    fake_embedder,
    fake_spec,
)
from tests.serve.conftest import fake_reranker
from tests.waiting import WAIT_SECONDS

TEXTS = [f"{n} {'word' * (n % 4)}" for n in range(60)]


class Table:
    """As a DataFrame, of which a for loop sees the names of the columns."""

    columns = ("text",)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __repr__(self) -> str:
        return "a table"


class ArrowColumn(list[str]):
    """As an array of pyarrow, of which a for loop sees no str."""

    to_pylist = list[str].copy

    def __iter__(self) -> Iterator[Any]:
        return (SimpleNamespace(as_py=text.__str__) for text in super().__iter__())


class Ranker:
    """Scores a document by its number, the last one first, and notes who asked for what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def rank(self, query: str, documents: Sequence[str], /) -> list[dict[str, Any]]:
        self.calls.append((query, len(documents)))
        numbers = [int(text.split()[0]) for text in documents]
        ranking = [{"corpus_id": row, "score": np.float64(n / 10)} for row, n in enumerate(numbers)]
        return ranking[::-1]


class WatchedSink(FakeSink):
    """Notes the threads that call it, and whether it was closed."""

    def __init__(self, store: FakeStore) -> None:
        super().__init__(store)
        self.threads: set[str] = set()
        self.asked_for: list[int] = []
        self.is_closed = False

    def search(self, vector: Any, k: int) -> Any:
        self.threads.add(threading.current_thread().name)
        self.asked_for.append(k)
        return super().search(vector, k)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(scope="module")
def store() -> FakeStore:
    filled = FakeStore()
    rows = [Document(id=f"d{n}", text=text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    with fake_embedder() as embedder:
        index(rows, FakeSink(filled), embedder=embedder)
    return filled


@pytest.fixture
def embedder() -> Iterator[Embedder]:
    with fake_embedder() as made:
        yield made


def test_the_nearest_rows_best_first(store: FakeStore, embedder: Embedder) -> None:
    sink = WatchedSink(store)
    with Search(sink, embedder) as search:
        assert search.state.num_rows == 60
        found = search.search(TEXTS[7], 3)
    assert found[0].text == TEXTS[7]
    assert len(found) == 3
    assert found[0].score == found[0].vector_score == pytest.approx(1, abs=1e-3)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert (found[0].source_id, found[0].metadata["n"]) == ("d7", 7)
    assert found.times.total_ms >= found.times.embed_ms + found.times.search_ms > 0
    assert found.times.rerank_ms == 0
    assert sink.threads == {"embedlib-search"}
    assert not sink.is_closed  # it was given
    assert embedder.encode("still open").shape


def test_the_rows_are_counted_when_they_are_asked_for(embedder: Embedder) -> None:
    store = FakeStore()
    index([Document(id="a", text="a")], FakeSink(store), embedder=embedder)
    with Search(FakeSink(store), embedder) as search:
        index([Document(id="b", text="b")], FakeSink(store), embedder=embedder)
        assert search.state.num_rows == 2


def test_a_filter_and_a_least_score(store: FakeStore, embedder: Embedder) -> None:
    with Search(FakeSink(store), embedder) as search:
        found = search.search(TEXTS[7], 60, where="n >= 5 and n < 20 and n != 7")
        assert sorted(hit.metadata["n"] for hit in found) == [5, 6, *range(8, 20)]
        least = found[4].score
        kept = search.search(TEXTS[7], 60, where="n >= 5 and n < 20 and n != 7", min_score=least)
        assert list(kept) == [hit for hit in found if hit.score >= least]


@pytest.mark.parametrize("num_rows", [2**31, 2**63, 10**20])
def test_more_rows_than_a_database_can_count_are_all_rows(
    store: FakeStore, embedder: Embedder, num_rows: int
) -> None:
    sink = WatchedSink(store)
    with Search(sink, embedder, Ranker()) as search:
        assert len(search.search("a", top_k=num_rows)) == len(TEXTS)
        assert len(search.search("a", top_k=1, num_candidates=num_rows)) == 1
        assert len(search.search("a", top_k=num_rows, where="n >= 0")) == len(TEXTS)
    assert len(embedlib.search("a", sink, embedder=embedder, top_k=num_rows)) == len(TEXTS)
    assert set(sink.asked_for) == {2**31 - 1}


@pytest.mark.parametrize(("k", "num_rows"), [(3, 100), (50, 100), (80, 160), (2**40, 2**31 - 1)])
def test_each_of_two_rankings_finds_twice_the_rows_that_are_wanted(k: int, num_rows: int) -> None:
    sink: Any = SimpleNamespace(search=Mock(return_value=[]), search_text=Mock(return_value=[]))
    vector = np.ones(6, np.float32)
    assert find_fused(sink, vector, "words", k, None) == []
    sink.search.assert_called_once_with(vector, num_rows)
    sink.search_text.assert_called_once_with("words", num_rows, None)


def test_a_reranker_reads_the_candidates(store: FakeStore, embedder: Embedder) -> None:
    ranker = Ranker()
    with Search(FakeSink(store), embedder, ranker) as search:
        found = search.search(TEXTS[7], 3, num_candidates=20)
        nearest = search.search(TEXTS[7], 20, rerank=False)
        assert ranker.calls == [(TEXTS[7], 20)]
        assert search.search(TEXTS[7], 3, num_candidates=20, rerank=True).hits == found.hits
        best = sorted(nearest, key=lambda hit: -hit.metadata["n"])[:3]
        assert [hit.id for hit in found] == [hit.id for hit in best]
        assert [hit.score for hit in found] == [hit.metadata["n"] / 10 for hit in best]
        assert {type(hit.score) for hit in found} == {float}, "JSON has no other"
        assert [hit.vector_score for hit in found] == [hit.score for hit in best]
        search.search(TEXTS[7], 30, num_candidates=5)  # no fewer than are wanted
        assert ranker.calls[-1] == (TEXTS[7], 30)
        high = search.search(TEXTS[7], 60, min_score=5.5)  # of the reranker's scores
        assert {hit.metadata["n"] for hit in high} == {55, 56, 57, 58, 59}


@pytest.mark.parametrize("rows", [[0, 2], [0, 0, 1], [0, 1, 3], [0, 1, 2, 3], []])
def test_a_reranker_that_does_not_score_each_document_is_refused(
    store: FakeStore, embedder: Embedder, rows: list[int]
) -> None:
    ranker: Any = SimpleNamespace(
        rank=lambda *_: [{"corpus_id": row, "score": 1.0} for row in rows]
    )
    with (
        Search(FakeSink(store), embedder, ranker) as search,
        pytest.raises(ConfigError, match=r"^the reranker .* for each of the 3$"),
    ):
        search.search("a", 3, num_candidates=3)


def test_several_questions(store: FakeStore, embedder: Embedder) -> None:
    with Search(FakeSink(store), embedder, Ranker()) as search:
        num_batches = embedder.stats().num_batches
        answers = search.search([TEXTS[3], TEXTS[9]], 2, rerank=False)
        assert embedder.stats().num_batches == num_batches + 1
        assert [answer[0].text for answer in answers] == [TEXTS[3], TEXTS[9]]
        assert answers[0].hits == search.search(TEXTS[3], 2, rerank=False).hits
        assert search.search([]) == []
        one = [TEXTS[3]]
        for forms in (tuple(one), np.array(one), iter(one), ArrowColumn(one)):
            [answer] = search.search(forms, 2, rerank=False)
            assert answer.hits == answers[0].hits
        with pytest.raises(TypeError, match="cannot be pickled or copied; share it"):
            copy.copy(search)


@pytest.mark.parametrize("own", [False, True])
def test_asyncio(store: FakeStore, own: bool) -> None:
    reranker: Any = fake_reranker() if own else Ranker()

    async def ask() -> tuple[Any, Any]:
        with fake_embedder() as embedder:
            async with Search(FakeSink(store), embedder, reranker) as search:
                [alone] = await search.asearch((TEXTS[3],), 2)
                assert alone.hits == (await search.asearch(TEXTS[3], 2)).hits
                several = await search.asearch([TEXTS[3], TEXTS[9]], 2, where="n < 30")
                return several, search.search([TEXTS[3], TEXTS[9]], 2, where="n < 30")

    found, expected = asyncio.run(ask())
    assert [answer.hits for answer in found] == [answer.hits for answer in expected]
    if own:
        reranker.close()


async def test_the_event_loop_is_not_blocked(store: FakeStore, embedder: Embedder) -> None:
    def note(result: Any) -> Any:
        threads.append(threading.current_thread())
        return result

    threads: list[threading.Thread] = []
    other: Any = SimpleNamespace(
        model_name="other",
        fingerprint=embedder.fingerprint,
        get_embedding_dimension=embedder.get_embedding_dimension,
        encode_query=lambda text: note(embedder.encode_query(text)),
    )
    ranker: Any = SimpleNamespace(rank=lambda *asked: note(Ranker().rank(*asked)))
    async with Search(FakeSink(store), other, ranker) as search:
        search._second = lambda questions: note(["words"] * len(questions))
        search._sink.search_text = lambda *_: []  # type: ignore[attr-defined]
        search._owned.callback(note, None)
        assert await search.asearch("a")
    assert len(threads) == 4
    assert threading.main_thread() not in threads


async def test_a_question_in_an_event_loop_takes_no_thread_from_others(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_reranker() as reranker, Search(FakeSink(store), embedder, reranker) as search:
        monkeypatch.setattr(asyncio, "to_thread", None)
        for rerank in (True, False):
            [best, *_] = await search.asearch(TEXTS[7], rerank=rerank)
            assert (best.score == best.vector_score) is not rerank


def test_the_destination_knows_its_model(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLIB_MAX_BATCH_TOKENS", "999")
    model, out = tiny_folder("bert"), f"jsonl:{tmp_path / 'rows.jsonl'}"
    with Embedder(model) as embedder:
        index([Document(id="a", text="copy a folder")], out, embedder=embedder)
    with Search(out, reranker=str(tiny_folder("bert-cross-encoder"))) as search:
        found = search.search("copy a folder", rerank=False)
        assert found[0].score == pytest.approx(1, abs=1e-5)
    with pytest.raises(ClosedError, match="this Search is closed; make another one"):
        search.search("x")
    copied = shutil.copytree(model, tmp_path / "copied")
    with Search(out, str(copied)) as of_copy:
        assert of_copy._embedder.model_name == str(copied)
    made: Any = search
    assert made._embedder.config.max_batch_tokens == 999
    for call in (lambda: made._embedder.encode("x"), lambda: made._reranker.rank("x", ["y"])):
        with pytest.raises(ClosedError):
            call()
    search.close()
    assert not [t for t in threading.enumerate() if t.name == "embedlib-search"]
    with pytest.raises(SinkError, match=r"search with the same model and options"):
        Search(out, config=Config(max_seq_tokens=8))


def test_a_wrong_destination_is_refused_at_the_start(store: FakeStore, embedder: Embedder) -> None:
    with pytest.raises(SinkError, match="holds nothing; load it with embedlib index"):
        Search(FakeSink(FakeStore()), embedder)
    other = Embedder.from_engine(
        FakeEngine(), fake_spec(), byte_tokenizer(), Config(), fingerprint="other:1"
    )
    with other, pytest.raises(SinkError, match="search with the same model and options"):
        Search(FakeSink(store), other)
    assert not [t for t in threading.enumerate() if t.name == "embedlib-search"]


def test_the_model_of_the_rows_is_loaded_as_these_were_made(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, _: Config, state: Any, *__: object) -> Embedder:
        asked.append((name, state.fingerprint, state.precision))
        return fake_embedder()

    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(retrieval, "open_embedder", load)
    with Search(FakeSink(store)) as search:
        assert search.search("a")
        assert asked == [("fake", search.state.fingerprint, "float32")]


@pytest.mark.parametrize("error", [ModelNotFoundError, KeyboardInterrupt])
def test_what_was_opened_is_closed_where_a_model_cannot_be_loaded(
    store: FakeStore,
    embedder: Embedder,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise error

    sink = WatchedSink(store)
    monkeypatch.setattr(retrieval, "open_sink", lambda url: sink)
    monkeypatch.setattr(retrieval, "load_ranking", refuse)
    with pytest.raises(error) as caught:
        Search("fake:", embedder, "a/reranker")
    assert sink.is_closed
    assert caught.tb is not None, "it still holds the object, which nobody has collected"


def test_a_model_that_lies_elsewhere_now_is_to_be_named(store: FakeStore, tmp_path: Path) -> None:
    """Nobody typed the path that is not there: the destination knows it."""
    moved = str(tmp_path / "moved")
    assert store.target is not None
    store.target = replace(store.target, model=moved)
    with pytest.raises(ModelNotFoundError) as caught:
        Search(FakeSink(store))
    message = str(caught.value)
    assert message.startswith(f"fake: was made by {moved!r}, which is not found here: no model")
    assert message.endswith(
        "; if it has another path or name now, pass that as embedder= (--model)"
    )
    with pytest.raises(ModelNotFoundError, match=r"^no model folder '.*/other': "):
        Search(FakeSink(store), str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": 3}, "question = 3; it must be a str"),
        ({"question": ["a", ""]}, "question = ''; it is empty"),
        ({"question": Table()}, "question = a table; it must be a str"),
        ({"question": {"a"}}, "question = {'a'}; it must be a str"),
        ({"question": "a", "top_k": 0}, "top_k = 0; it must be a whole number of at least 1"),
        ({"question": "a", "top_k": True}, "top_k = True; it must be a whole number"),
        ({"question": "a", "where": "n ="}, "where: character 4, the end: a value"),
        ({"question": "a", "where": ["n"]}, "where = ['n']; it must be a str"),
        ({"question": "a", "min_score": "1"}, "min_score = '1'; it must be a number or None"),
        ({"question": "a", "min_score": float("nan")}, "min_score = nan; it must be a number"),
        ({"question": "a", "rerank": 1}, "rerank = 1; it must be True or False"),
        ({"question": "a", "rerank": True}, "rerank = True; there is no reranker here"),
        ({"question": "a", "num_candidates": 0}, "num_candidates = 0; it must be a whole"),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    async def ask(search: Search) -> Any:
        return await search.asearch(**arguments)

    with Search(FakeSink(store), embedder) as search:
        for call in (lambda: search.search(**arguments), lambda: asyncio.run(ask(search))):
            with pytest.raises(ConfigError) as caught:
                call()
            assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "hint", "hint_of_the_function"),
    [
        ("k", "pass top_k=", "pass top_k="),
        ("filter", "pass where=", "pass where="),
        ("score_threshold", "pass min_score=", "embedlib.Search has it: min_score="),
        ("hybrid", "embedlib.Search has it: hybrid=", "embedlib.Search has it: hybrid="),
        ("wehre", "did you mean 'where'?", "did you mean 'where'?"),
    ],
)
def test_an_option_that_a_search_lacks_is_told_by_its_name_here(
    name: str, hint: str, hint_of_the_function: str, store: FakeStore, embedder: Embedder
) -> None:
    asked: dict[str, Any] = {name: 5}

    async def ask(search: Search) -> Any:
        return await search.asearch("a", **asked)

    def check(call: Callable[[], object], function: str, hint: str) -> None:
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == (
            f"{function}() got an unexpected keyword argument {name!r}; {hint}"
        )

    sink = FakeSink(store)
    check(
        lambda: embedlib.search("a", sink, embedder=embedder, **asked),
        "search",
        hint_of_the_function,
    )
    with Search(sink, embedder) as search:
        check(lambda: search.search("a", **asked), "Search.search", hint)
        check(lambda: asyncio.run(ask(search)), "Search.asearch", hint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"destination": Path("a")}, "sink = PosixPath('a'); it must be a URL"),
        ({"embedder": 3}, "embedder = 3 has no model_name; it must be an Embedder"),
        ({"reranker": 3}, "reranker = 3; it must be a Reranker or the name of one"),
    ],
)
def test_a_wrong_part_is_one_line(
    arguments: dict[str, Any], message: str, store: FakeStore, embedder: Embedder
) -> None:
    with pytest.raises(ConfigError) as caught:
        Search(**{"destination": FakeSink(store), "embedder": embedder, **arguments})
    assert str(caught.value).startswith(message)


def test_an_error_of_the_destination_reaches_the_caller(
    store: FakeStore, embedder: Embedder
) -> None:
    class Broken(FakeSink):
        def search(self, vector: Any, k: int) -> Any:
            raise SinkError("fake: is gone")

    with Search(Broken(store), embedder) as search:
        with pytest.raises(SinkError, match="fake: is gone"):
            search.search("a")
        with pytest.raises(SinkError, match="fake: is gone"):
            asyncio.run(search.asearch("a"))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_search_that_is_closed_meanwhile_ends(store: FakeStore, is_async: bool) -> None:
    engine = FakeEngine()
    with fake_embedder(engine) as embedder, ThreadPoolExecutor(1) as pool:
        search = Search(FakeSink(store), embedder)

        def ask() -> object:
            return asyncio.run(search.asearch("a")) if is_async else search.search("a")

        engine.hold()
        num_batches = len(engine.batches)
        answer = pool.submit(ask)
        engine.wait_submitted(num_batches + 1)
        search.close()
        engine.release()
        with pytest.raises(ClosedError, match="this destination is closed; open it again"):
            answer.result(WAIT_SECONDS)


def test_what_close_waits_for_is_told(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(WatchedSink):
        def search(self, vector: Any, k: int) -> Any:
            assert is_told.wait(WAIT_SECONDS)
            return super().search(vector, k)

    def warn(log: logging.Logger, *line: object) -> None:
        told.append(line)
        is_told.set()

    told, is_told = list[Any](), threading.Event()
    monkeypatch.setattr(retrieval, "_SILENT_SECONDS", 0)
    monkeypatch.setattr(logging.Logger, "warning", warn)
    sink = Slow(store)
    monkeypatch.setattr(retrieval, "open_sink", lambda url: sink)
    search = Search("fake:", embedder)
    search._thread.submit(sink.search, embedder.encode("a"), 1)
    search.close()
    assert told == [("%s still answers a call; close waits %g s for it", sink.name, 30.0)]
    assert sink.is_closed
    monkeypatch.setattr(retrieval, "_SILENT_SECONDS", WAIT_SECONDS)
    Search("fake:", embedder).close()
    assert len(told) == 1


def test_all_is_closed_though_a_model_fails_to(store: FakeStore, embedder: Embedder) -> None:
    def refuse() -> None:
        raise CloseTimeoutError("a thread still runs")

    sink, closed = WatchedSink(store), list[str]()
    search = Search(sink, embedder)
    search._owned.callback(closed.append, "first")
    search._owned.callback(refuse)
    with pytest.raises(CloseTimeoutError, match="a thread still runs"):
        search.close()
    assert closed == ["first"]
    assert not search._thread._thread.is_alive()


def test_a_forked_child_can_close(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = WatchedSink(store)
    search = Search(sink, embedder)
    thread = search._thread._thread
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ClosedError, match="forked child -1"):
            search.search("a")
        search.close()
        assert thread.is_alive()
    search.close()
    assert not thread.is_alive()


def test_a_search_that_is_dropped_is_freed(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = WatchedSink(store)
    monkeypatch.setattr(retrieval, "open_sink", lambda url: sink)
    search = Search("fake:", embedder)
    assert search.search(TEXTS[7], 1)[0].text == TEXTS[7]
    thread = search._thread._thread
    del search
    gc.collect()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert sink.is_closed


def test_a_destination_that_cannot_be_closed_is_told(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unclosable(FakeSink):
        def close(self) -> None:
            raise SinkError("fake: cannot be closed")

    monkeypatch.setattr(retrieval, "open_sink", lambda url: Unclosable(store))
    with pytest.raises(SinkError, match="fake: cannot be closed"):
        Search("fake:", embedder).close()


def test_models_given_by_name_get_the_options(
    store: FakeStore, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Config(
        threads=3,
        local_files_only=True,
        truncate_dim=3,
        precision="int8",
        engine="openvino",
        on_truncate="ignore",
    )
    loaded: list[Config] = []

    def load(name: str, config: Config) -> Any:
        loaded.append(config)
        raise ModelNotFoundError(name)

    monkeypatch.setattr(retrieval, "load_ranking", load)
    monkeypatch.setattr(hybrid, "Embedder", load)
    monkeypatch.setattr(hybrid, "sparse_sink", lambda sink: sink)
    monkeypatch.setenv("EMBEDLIB_THREADS", "2")
    monkeypatch.setenv("EMBEDLIB_LOCAL_FILES_ONLY", "1")
    sparse = SparseModel(model="sparse", fingerprint="sparse:1", dim=9)
    with Search(FakeSink(store), embedder) as search:
        state = replace(search.state, sparse=sparse)
    monkeypatch.setattr(retrieval, "held_state", lambda *_: state)
    for config in (given, None, replace(given, on_truncate="chunk")):
        for options in ({"reranker": "name"}, {"hybrid": True}):
            with pytest.raises(ModelNotFoundError):
                Search(FakeSink(store), embedder, **options, config=config)
    assert [(each.threads, each.local_files_only) for each in loaded] == [
        *[(3, True)] * 2,
        *[(2, True)] * 2,
        *[(3, True)] * 2,
    ]
    assert [each.on_truncate for each in loaded[::2]] == ["ignore", "warn", "warn"], "rerankers"
    assert {(each.truncate_dim, each.precision) for each in loaded} == {(None, "auto")}
    assert [each.engine for each in loaded[:2]] == ["openvino", "auto"], "sparse models have one"


def test_an_answer_is_a_sequence() -> None:
    from embedlib.indexing.searches.hits import SearchTimes

    empty = SearchResults((), SearchTimes())
    assert (len(empty), list(empty), empty[:1]) == (0, [], ())
