"""`POST /v1/search` and `embedlib serve --search`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner, Result

from embedlib import Config, Document, Embedder, Search, drop_old, index
from embedlib.cli import main
from embedlib.errors import ConfigError, SinkError
from embedlib.indexing import UnreachableSinkError
from embedlib.models.spec import Head
from embedlib.serve import ServeOptions, create_app
from embedlib.serve import app as app_module
from embedlib.serve.http.server import Listen, serve
from embedlib.serve.models import destinations
from embedlib.testing import (
    FakeEngine,
    FakeSink,
    FakeStore,
    byte_tokenizer,
    fake_embedder,
    fake_spec,
)
from embedlib.testing.models.tokenizers import WORDS
from tests.serve.conftest import Client, ScoreEngine, ended_in_time, fake_reranker
from tests.tiny_models.sparse import write_router
from tests.waiting import WAIT_SECONDS

MakeSearch = Callable[..., Client]


def other_embedder() -> Embedder:
    return Embedder.from_engine(
        FakeEngine(), fake_spec(), byte_tokenizer(), Config(), fingerprint="other:1"
    )


@pytest.fixture(scope="module")
def store() -> FakeStore:
    return make_store()


def make_store() -> FakeStore:
    filled = FakeStore()
    rows = [
        Document(id=f"d{n}", text=f"{n} text{'s' * (n % 5)}", metadata={"n": n, "big": 10**30})
        for n in range(40)
    ]
    with fake_embedder() as embedder:
        index(rows, FakeSink(filled), embedder=embedder)
    return filled


@pytest.fixture
def run() -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


@pytest.fixture
def make(store: FakeStore) -> Iterator[MakeSearch]:
    made: list[Client] = []

    def make(search: Any = None, models: Any = None, **options: Any) -> Client:
        given = models or {"other": other_embedder(), "embed": fake_embedder()}
        found = FakeSink(store) if search is None else search
        app = create_app(
            given,
            options=ServeOptions(**options),
            search=found if isinstance(found, dict) else {"docs": found},
        )
        made.append(Client(app))
        made[-1].start()
        return made[-1]

    yield make
    for client in made:
        client.close()
    left = [each.name for each in threading.enumerate()]
    assert [name for name in left if name.startswith("embedlib-serve-search")] == []


def test_it_goes_on_with_the_old_rows_after_a_change_of_model(
    make: MakeSearch, tmp_path: Path
) -> None:
    url = f"jsonl:{tmp_path / 'rows.jsonl'}"
    rows = [Document(id=f"d{n}", text=f"{n} text") for n in range(5)]
    with fake_embedder() as old, other_embedder() as new:
        index(rows, url, embedder=old)
        client = make(url, {"embed": fake_embedder()})
        index(rows, url, embedder=new, replace=True)
        again = make(url, {"embed": fake_embedder()})  # a server that was started again
    for each in (client, again):
        assert each.post("/v1/search", {"query": "3 text"})["results"][0]["text"] == "3 text"
    assert drop_old(url) == 5
    status, error = client.refuse("/v1/search", {"query": "3 text"})
    assert status == 503
    assert "with the model of the stored rows: start the server again" in str(error)


def test_it_answers_as_search_does(make: MakeSearch, store: FakeStore) -> None:
    client = make()
    answer = client.post(
        "/v1/search", {"query": "7 textss", "top_k": 3, "filter": "n >= 5 and n < 30"}
    )
    with fake_embedder() as embedder, Search(FakeSink(store), embedder) as search:
        found = search.search("7 textss", 3, where="n >= 5 and n < 30")
    assert [hit["id"] for hit in answer["results"]] == [str(hit.id) for hit in found]
    assert [hit["score"] for hit in answer["results"]] == [hit.score for hit in found]
    first = answer["results"][0]
    assert first["text"] == "7 textss"
    assert first["metadata"]["n"] == 7
    assert first["metadata"]["big"] == 10**30
    assert (first["source_id"], first["chunk"]) == ("d7", 0)
    assert (answer["model"], answer["collection"]) == ("embed", "docs")
    times = answer["timings_ms"]
    assert set(times) == {"embed", "search", "rerank", "total"}
    assert times["total"] >= times["search"] > 0
    assert answer["usage"]["prompt_tokens"] > 0
    far = ",".join(map(str, range(100, 600)))
    long = client.post(
        "/v1/search", {"query": "7 textss", "top_k": 1, "filter": f"n not in ({far})"}
    )
    assert long["results"] == [first]
    none = client.post("/v1/search", {"query": "7", "filter": "n > 99"})
    assert none["results"] == []
    high = client.post("/v1/search", {"query": "7 textss", "min_score": first["score"]})
    assert [hit["text"] for hit in high["results"]] == ["7 textss"]


def test_hybrid_search_needs_a_second_ranking(make: MakeSearch) -> None:
    client = make()
    for hybrid, what in (
        (True, "docs has no sparse vectors and no full-text index"),
        ("text", "docs has no full-text index"),
        ("sparse", "docs has no sparse vectors"),
    ):
        status, error = client.refuse("/v1/search", {"query": "7", "hybrid": hybrid})
        assert (status, error["error"]["param"]) == (400, "hybrid")
        assert what in error["error"]["message"]


def test_hybrid_search_with_words_and_with_sparse_vectors(make: MakeSearch, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")
    url = f"edge:{tmp_path / 'db'}"
    rows = [{"id": str(n), "text": " ".join(WORDS[n : n + 4]), "page": n} for n in range(12)]
    sparse = Embedder(write_router(tmp_path / "sparse"), threads=1, on_truncate="ignore")
    question = f"{WORDS[3]} {WORDS[9]}"
    with fake_embedder() as embedder:
        index(rows, url, embedder=embedder, sparse=sparse, chunk=False, full_text="simple")
        found = {}
        for kind in ("sparse", "text"):
            with Search(
                url, embedder, hybrid=kind, sparse=sparse if kind == "sparse" else None
            ) as s:
                hits = s.search(question, 5, where="page < 10")
                found[kind] = [(str(hit.id), hit.score) for hit in hits]
    assert found["sparse"] != found["text"]
    without = Client(create_app({"embed": fake_embedder()}, search=url))
    without.start()
    asked = {"query": [question, "!"], "top_k": 5, "filter": "page < 10"}
    assert without.post("/v1/search", {**asked, "hybrid": True})["hybrid"] == "text"
    status, error = without.refuse("/v1/search", {**asked, "hybrid": "sparse"})
    assert (status, error["error"]["param"]) == (400, "hybrid")
    assert "which is not served; start the server with that model too" in str(error)
    without.close()  # one process has the folder
    client = make(url, {"embed": fake_embedder(), "words": sparse})
    for hybrid, kind in ((True, "sparse"), ("sparse", "sparse"), ("text", "text")):
        answer = client.post("/v1/search", {**asked, "hybrid": hybrid})
        assert answer["hybrid"] == kind
        assert [(hit["id"], hit["score"]) for hit in answer["results"][0]] == found[kind]
    assert "hybrid" not in client.post("/v1/search", asked)
    counted = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="words",lane="query"} 4' in counted


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("k", "send top_k"),
        ("where", "send filter"),
        ("filters", "send filter"),
        ("score_threshold", "send min_score"),
        ("unit", "GET /openapi.json has them"),
    ],
)
def test_an_unknown_field_is_refused(name: str, remedy: str, make: MakeSearch) -> None:
    status, error = make().refuse("/v1/search", {"query": "7", name: 3})
    assert (status, error["error"]["param"]) == (400, name)
    assert error["error"]["message"] == f"{name} is no field of this route; {remedy}"


def test_it_is_described_where_there_is_something_to_search(make: MakeSearch) -> None:
    for found, is_there in ((None, True), ({}, False)):
        paths = make(found).send("GET", "/openapi.json").json()["paths"]
        assert ("/v1/search" in paths) is is_there


def test_a_search_waits_in_the_lane_that_it_names(make: MakeSearch) -> None:
    client = make()
    for lane in ({}, {"lane": "bulk"}, {"lane": "bulk"}):
        client.post("/v1/search", {"query": "7", **lane})
    metrics = client.send("GET", "/metrics").text
    for lane, num_requests in (("query", 1), ("bulk", 2)):
        assert f'requests_total{{model="embed",lane="{lane}"}} {num_requests}' in metrics


def test_several_questions(make: MakeSearch) -> None:
    client = make()
    answer = client.post("/v1/search", {"query": ["7 textss", "9 textssss"], "top_k": 2})
    assert [hits[0]["text"] for hits in answer["results"]] == ["7 textss", "9 textssss"]
    status, error = client.refuse("/v1/search", {"query": ["a"] * 65})
    assert status == 413
    assert "query has 65 texts, the limit is 64" in error["error"]["message"]


def test_a_reranker_with_several_scores_orders_nothing(make: MakeSearch) -> None:
    head = Head(labels=("a", "b"), activation="softmax", reranker_activation="identity")
    client = make(models={"rank": fake_reranker(ScoreEngine(2), head), "embed": fake_embedder()})
    status, error = client.refuse("/v1/search", {"query": "7", "rerank": True})
    assert (status, error["error"]["param"]) == (400, "rerank")
    assert "model 'rank' has 2 scores for a pair; serve a reranker with one" in str(error)


def test_a_reranker_of_the_server(make: MakeSearch) -> None:
    client = make(models={"rank": fake_reranker(), "embed": fake_embedder()})
    body = {"query": "7 textss", "top_k": 4, "num_candidates": 20, "rerank": True}
    answer = client.post("/v1/search", body)
    near = client.post("/v1/search", {**body, "top_k": 20, "rerank": False})["results"]
    texts = [hit["text"] for hit in near]
    ranked = client.post("/v1/rerank", {"query": "7 textss", "documents": texts})["results"]
    expected = [(near[each["index"]]["id"], each["relevance_score"]) for each in ranked[:4]]
    assert [(hit["id"], hit["score"]) for hit in answer["results"]] == expected
    by_id = {hit["id"]: hit["score"] for hit in near}
    assert all(hit["vector_score"] == by_id[hit["id"]] for hit in answer["results"])
    assert answer["reranker"] == "rank"
    named = client.post("/v1/search", {**body, "rerank": "rank"})
    assert named["results"] == answer["results"]
    assert answer["timings_ms"]["rerank"] > 0
    several = client.post("/v1/search", {**body, "query": ["7 textss", "8 textsss"]})["results"]
    assert several[0] == answer["results"]
    pages = client.send("GET", "/metrics").text
    counted = 'embedlib_texts_total{model="rank",lane="query"}'
    (line,) = [line for line in pages.splitlines() if line.startswith(counted)]
    assert int(line.split()[-1]) >= 60


def test_it_runs_on_the_query_lane_and_is_counted(make: MakeSearch) -> None:
    client = make()
    client.post("/v1/search", {"query": ["a"] * 30})
    pages = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="query"} 30' in pages
    for stage in ("embed", "search", "rerank"):
        assert f'embedlib_search_seconds_count{{collection="docs",stage="{stage}"}} 1' in pages


def test_destinations_by_name(make: MakeSearch, store: FakeStore) -> None:
    few = FakeStore()
    with other_embedder() as other:
        index([Document(id="x", text="only one")], FakeSink(few), embedder=other)
    client = make({"docs": FakeSink(store), "few": FakeSink(few)})
    answer = client.post("/v1/search", {"query": "a", "collection": "few"})
    assert [hit["text"] for hit in answer["results"]] == ["only one"]
    assert answer["model"] == "other"
    for body, words in (
        ({"query": "a"}, "collection is missing; there is docs, few"),
        ({"query": "a", "collection": "x"}, "no collection 'x' here; there is docs, few"),
        ({"query": "a", "collection": "few", "model": "embed"}, "are those of other, leave it out"),
    ):
        assert words in client.refuse("/v1/search", body)[1]["error"]["message"]
    ready = client.send("GET", "/ready").json()
    assert (ready["models"]["search docs"], ready["models"]["search few"]) == ("ready", "ready")


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"query": None}, "query: expected", "query"),
        ({"query": ""}, "question = ''; it is empty", "query"),
        ({"query": ["a", " "]}, "question = ' '; it is empty", "query"),
        ({"query": []}, "query is empty", "query"),
        ({"top_k": 0}, "top_k = 0; it must be 1 to 1000", "top_k"),
        ({"top_k": 1001}, "top_k = 1001; it must be 1 to 1000", "top_k"),
        ({"num_candidates": 1001}, "num_candidates = 1001", "num_candidates"),
        ({"top_k": "3"}, "top_k: expected", "top_k"),
        ({"filter": "n ="}, "filter: character 4, the end: a value must be here", "filter"),
        ({"filter": ""}, "filter is empty; leave it out", "filter"),
        ({"filter": {"n": 1}}, "filter: expected", "filter"),
        ({"min_score": "x"}, "min_score: expected", "min_score"),
        ({"rerank": 1}, "rerank: expected", "rerank"),
        ({"rerank": True}, "no model here can rerank", "rerank"),
        ({"lane": "fast"}, "lane = 'fast'", "lane"),
    ],
)
def test_a_wrong_field_is_named(
    make: MakeSearch, fields: dict[str, Any], words: str, param: str
) -> None:
    status, error = make().refuse("/v1/search", {"query": "a", **fields})
    assert status == 400
    assert words in error["error"]["message"]
    assert error["error"]["param"] == param
    assert "\n" not in error["error"]["message"]


def test_a_server_that_loads_is_asked_again(store: FakeStore) -> None:
    client = Client(create_app({"embed": fake_embedder()}, search={"docs": FakeSink(store)}))
    answer = client.send("POST", "/v1/search", {"query": "a"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "the models are loading; come again" in answer.text
    client.start()
    client.close()


@pytest.mark.parametrize("error", [ValueError("a bug"), GeneratorExit("a bug")])
def test_a_bug_of_one_destination_leaves_the_others_searchable(
    make: MakeSearch, store: FakeStore, error: BaseException
) -> None:
    class Broken(FakeSink):
        num_calls = 0

        def inspect(self) -> Any:
            self.num_calls += 1
            if self.num_calls == 2:
                raise error
            return super().inspect()

    client = make({"first": Broken(store), "second": FakeSink(store)})
    status, answer = client.refuse("/v1/search", {"query": "a", "collection": "first"})
    assert status == 503
    assert f"{type(error).__name__}: a bug" in str(answer)
    assert client.post("/v1/search", {"query": "3 text", "collection": "second"})["results"]


def test_a_server_without_destinations(make: MakeSearch) -> None:
    status, error = make({}).refuse("/v1/search", {"query": "a"})
    assert status == 404
    assert error["error"]["message"].startswith("nothing to search here; start the server with")


def test_an_error_of_the_database_is_told(make: MakeSearch, store: FakeStore) -> None:
    class Broken(FakeSink):
        def search(self, vector: Any, k: int) -> Any:
            raise SinkError("fake: is gone")

    status, error = make(Broken(store)).refuse("/v1/search", {"query": "a"})
    assert (status, error["error"]["message"]) == (500, "fake: is gone")


def test_a_database_that_does_not_answer_is_503(
    make: MakeSearch, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Away(FakeSink):
        def search(self, vector: Any, k: int) -> Any:
            if goes_on.is_set():
                raise UnreachableSinkError("fake: connection refused; gave up after 4 s")
            assert goes_on.wait(WAIT_SECONDS)

    monkeypatch.setattr(destinations, "ANSWER_SECONDS", 0.01)
    client = make(Away(store))
    for words in ("docs has not answered within 0.01 seconds", "fake: connection refused; gave"):
        answer = client.send("POST", "/v1/search", {"query": "a"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert answer.json()["error"]["message"].startswith(words)
        goes_on.set()
        monkeypatch.setattr(destinations, "ANSWER_SECONDS", WAIT_SECONDS)


def test_the_first_error_of_several_questions_drops_the_others(
    make: MakeSearch, store: FakeStore
) -> None:
    goes_on, num_calls = threading.Event(), 0

    class Broken(FakeSink):
        def search(self, vector: Any, k: int) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == 1:
                raise SinkError("fake: is gone")
            assert goes_on.wait(WAIT_SECONDS)
            return super().search(vector, k)

    client = make(Broken(store))
    assert client.refuse("/v1/search", {"query": ["a"] * 9})[0] == 500
    goes_on.set()  # the second one may have begun
    client.post("/v1/search", {"query": "a"})
    assert num_calls <= 3


def test_a_slow_database_keeps_nobody_else_waiting(make: MakeSearch, store: FakeStore) -> None:
    goes_on = threading.Event()

    class Slow(FakeSink):
        def search(self, vector: Any, k: int) -> Any:
            assert goes_on.wait(WAIT_SECONDS)
            return super().search(vector, k)

    client = make(Slow(store))
    client.application.destinations.find("docs")._max_waiting = 2

    async def ask() -> tuple[int, ...]:
        async with client.http() as http:
            waiting = [
                asyncio.create_task(http.post("/v1/search", json={"query": "a"})) for _ in range(3)
            ]
            refused = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (first,) = refused[0]
            other = await http.post("/v1/embeddings", json={"input": "b", "model": "embed"})
            goes_on.set()
            rest = [(await task).status_code for task in waiting]
            return (first.result().status_code, other.status_code, *sorted(rest))

    assert client.run(ask()) == (429, 200, 200, 200, 429)
    client.post("/v1/search", {"query": "a"})  # none waits any more


def test_a_destination_that_does_not_fit_ends_the_server(store: FakeStore) -> None:
    app = create_app({"other": other_embedder()}, search={"docs": FakeSink(store)})
    refused = pytest.raises(SinkError, match="fake: was made by 'fake' too, but with other")
    with ended_in_time(app), refused:
        serve(app, Listen(port=0))


def test_the_end_waits_for_no_search_of_a_model(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fingerprint of many gigabytes takes a minute."""
    begun, goes_on, over = threading.Event(), threading.Event(), threading.Event()

    def find_model(*_: Any) -> None:
        begun.set()
        goes_on.wait(WAIT_SECONDS)
        over.set()

    monkeypatch.setattr(destinations.Destination, "find_model", find_model)
    monkeypatch.setattr(app_module, "LOAD_SECONDS", 0.0)
    app = create_app({"embed": fake_embedder()}, search={"docs": FakeSink(store)})
    app.end_server = Mock()
    client = Client(app)

    async def end() -> None:
        await app.start()
        while not begun.is_set():
            await asyncio.sleep(0)
        await app.close()

    client.run(end())
    assert app.is_loading
    assert not over.is_set()
    goes_on.set()
    assert over.wait(WAIT_SECONDS)
    client.close()


def test_mounted_it_answers_why(make: MakeSearch) -> None:
    client = make(models={"other": other_embedder()})
    status, error = client.refuse("/v1/search", {"query": "a"})
    assert status == 503
    assert error["error"]["message"].startswith("docs cannot be searched: fake: was made by")
    assert client.send("GET", "/ready").status_code == 503


@pytest.mark.parametrize(
    ("search", "kind", "words"),
    [
        ({"docs": "nowhere:x"}, SinkError, "no destination begins with 'nowhere:'"),
        ({"docs": 3}, ConfigError, "sink = 3; it must be a URL"),
        ({"": FakeSink(FakeStore())}, ConfigError, "a destination is called ''"),
        ({"\udcff": FakeSink(FakeStore())}, ConfigError, r"a destination is called '\\udcff'"),
        ({"docs": FakeSink(FakeStore())}, SinkError, "fake: holds nothing; load it with"),
    ],
)
def test_a_wrong_destination_is_refused_at_the_start(
    search: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        create_app({"embed": fake_embedder()}, search=search)


def test_the_description_has_the_body(make: MakeSearch) -> None:
    described = make().send("GET", "/openapi.json").json()
    operation = described["paths"]["/v1/search"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = described["components"]["schemas"][reference.rpartition("/")[2]]
    assert body["required"] == ["query"]
    assert {"top_k", "filter", "min_score", "rerank", "collection"} <= set(body["properties"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--search", "nowhere:x?a=b"], "Error: no destination begins with 'nowhere:'"),
        (["--search", "docs=jsonl:/no/such/folder/x"], "there is no folder"),
        (["--search", "a=jsonl:x", "--search", "a=jsonl:y"], "two destinations are called 'a'"),
        (["--search", "jsonl:x", "--search", "jsonl:y"], "two destinations are called 'default'"),
    ],
)
def test_the_command_refuses_a_wrong_destination(
    arguments: list[str], words: str, run: Callable[..., Result]
) -> None:
    done = run("serve", "./no-model", *arguments)
    assert done.exit_code != 0
    assert words in done.stderr
    assert "embedlib-serve-log" not in {each.name for each in threading.enumerate()}


def test_a_file_is_searched(
    make: MakeSearch, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model, out = str(tiny_folder("bert")), f"jsonl:{tmp_path / 'rows.jsonl'}"
    with Embedder(model) as embedder:
        index([Document(id="a", text="copy a folder")], out, embedder=embedder)
        expected = embedder.encode_query("copy a folder") @ embedder.encode("copy a folder")
    client = make(out, models={"small": model})
    (hit,) = client.post("/v1/search", {"query": "copy a folder"})["results"]
    assert hit["score"] == pytest.approx(float(np.float32(expected)), abs=1e-5)
    assert json.loads((tmp_path / "rows.jsonl").read_text())["id"] == hit["id"]
