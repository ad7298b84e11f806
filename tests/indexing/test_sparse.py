"""`index` with sparse vectors, and hybrid search, against the models' own vectors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from embedlib import Embedder, Search, index
from embedlib.cli import main
from embedlib.config import Config
from embedlib.errors import ConfigError, ModelNotFoundError, SinkError
from embedlib.indexing import open_sink
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.row_jobs import RowJob
from embedlib.indexing.rows import Row
from embedlib.indexing.sparse_rows import ARM_ROWS, most_rows
from embedlib.testing.models.tokenizers import WORDS
from embedlib.testing.models.write import write_tiny_model
from tests.indexing.sparse_checks import fused, ranked
from tests.tiny_models.sparse import write_router

pytest.importorskip("qdrant_edge", reason="needs the extra qdrant")

RANDOM = np.random.default_rng(5)
TEXTS = [" ".join(RANDOM.choice(WORDS, RANDOM.integers(2, 9))) for _ in range(60)]
SOURCE = [{"id": str(i), "text": text, "page": i} for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Embedder, Embedder]]:
    """A model of vectors, and one of sparse vectors."""
    folder = tmp_path_factory.mktemp("models")
    dense = write_tiny_model(folder / "dense", "bert")
    sparse = write_router(folder / "sparse")
    with (
        Embedder(dense, threads=1, on_truncate="ignore") as one,
        Embedder(sparse, threads=1, on_truncate="ignore") as other,
    ):
        yield one, other


def _write_m3(folder: Path) -> Path:
    """Write a model of both kinds of vectors."""
    write_tiny_model(folder, "xlm-roberta")
    head = {"weight": np.ones((1, 32), np.float32), "bias": np.ones(1, np.float32)}
    save_file(head, folder / "sparse_linear.safetensors")
    return folder


def _load(models: tuple[Embedder, Embedder], url: str, **options: Any) -> Any:
    embedder, sparse = models
    return index(SOURCE, url, embedder=embedder, sparse=sparse, chunk=False, **options)


def test_a_sparse_model_in_the_place_of_the_other_is_refused_before_anything_is_dropped(
    models: tuple[Embedder, Embedder], tmp_path: Path
) -> None:
    url = f"edge:{tmp_path / 'db'}"
    _load(models, url)
    for place in (url, f"edge:{tmp_path / 'new'}"):
        with pytest.raises(ConfigError, match="is a sparse model; give it as sparse"):
            index(SOURCE, place, embedder=models[1], chunk=False, recreate=True)
    with closing(open_sink(url)) as sink:
        assert sink.inspect().num_rows == len(TEXTS)
    assert not (tmp_path / "new").exists()


def test_a_hybrid_search_is_two_searches_fused(
    models: tuple[Embedder, Embedder], tmp_path: Path
) -> None:
    embedder, sparse = models
    url = f"edge:{tmp_path / 'db'}"
    assert _load(models, url).num_embedded == len(TEXTS)
    assert _load(models, url).num_unchanged == len(TEXTS)
    vectors = embedder.encode_document(TEXTS)
    weights = sparse.encode_document(TEXTS, output_value="sparse")
    question = f"{TEXTS[7]} {TEXTS[20]}"
    with Search(url, embedder, hybrid=True, sparse=sparse) as search:
        ids = {hit.source_id: hit.id for hit in search.search(question, 60)}
        for where, members in ((None, range(60)), ("page < 20", range(20))):
            known = [i for i in members if str(i) in ids]
            query = embedder.encode_query(question)
            near = {ids[str(i)]: float(vectors[i] @ query) for i in known}
            own = sparse.encode_query(question, output_value="sparse")
            products = np.asarray(sparse.similarity(own, [weights[i] for i in known]))[0]
            common = {ids[str(i)]: float(p) for i, p in zip(known, products, strict=True) if p > 0}
            expected = fused([ranked(near)[:ARM_ROWS], ranked(common)[:ARM_ROWS]], 10)
            found = search.search(question, 10, where=where)
            assert [(hit.id, hit.score) for hit in found] == expected
        num_batches = sparse.stats().num_batches
        several = search.search([question, TEXTS[3]], 10, where="page < 20")
        assert sparse.stats().num_batches == num_batches + 1
        assert [hit.score for hit in several[0]] == [score for _, score in expected]
        assert search.search([]) == []
    with Search(url, embedder) as search:  # the vectors alone
        best = search.search(TEXTS[7], 1)
        assert best[0].source_id == "7"
    with Search(url, hybrid=True) as search:  # by the stored names
        found = search.search(question, 10, where="page < 20")
        assert [(hit.id, hit.score) for hit in found] == expected


def test_rows_belong_to_both_models(models: tuple[Embedder, Embedder], tmp_path: Path) -> None:
    url = f"edge:{tmp_path / 'db'}"
    _load(models, url)
    embedder, sparse = models
    with pytest.raises(SinkError, match=r"holds sparse vectors of .*; pass the same model"):
        index(SOURCE, url, embedder=embedder, chunk=False)
    with Embedder(sparse.model_name, threads=1, max_active_dims=3) as other:
        with pytest.raises(SinkError, match=r"use the same model and options \(max_active"):
            index(SOURCE, url, embedder=embedder, sparse=other, chunk=False)
        with pytest.raises(SinkError, match="search with the same model and options"):
            Search(url, embedder, hybrid=True, sparse=other)
        report = index(SOURCE, url, embedder=embedder, sparse=other, chunk=False, recreate=True)
        assert report.num_embedded == len(TEXTS)
        with pytest.raises(SinkError, match=r" sparse=Embedder\(MODEL, max_active_dims=N\)"):
            Search(url, embedder, hybrid=True)  # by the stored name, without the option
        with Search(url, embedder, hybrid=True, sparse=other) as search:
            assert search.search(TEXTS[7], 1)[0].source_id == "7"


def test_a_sparse_model_that_lies_elsewhere_now_is_to_be_named(
    models: tuple[Embedder, Embedder], tmp_path: Path
) -> None:
    url = f"edge:{tmp_path / 'db'}"
    folder = write_router(tmp_path / "sparse")
    with Embedder(folder, threads=1) as sparse:
        index(SOURCE[:3], url, embedder=models[0], sparse=sparse, chunk=False)
    folder.rename(tmp_path / "moved")
    with pytest.raises(
        ModelNotFoundError, match=r"^edge:.*which is not found here: .*; if it has"
    ) as caught:
        Search(url, models[0], hybrid=True)
    assert str(caught.value).endswith("pass that as sparse= of Search")
    with pytest.raises(ModelNotFoundError, match=r"^no model folder"):
        Search(url, models[0], hybrid=True, sparse=str(folder))
    with Search(url, models[0], hybrid=True, sparse=str(tmp_path / "moved")) as search:
        assert search.search(TEXTS[1], 1)[0].source_id == "1"


def test_a_prefix_is_in_both_vectors(models: tuple[Embedder, Embedder], tmp_path: Path) -> None:
    sparse = models[1]
    document = {"id": "a", "text": TEXTS[1], "title": TEXTS[2]}
    url = f"edge:{tmp_path / 'db'}"
    index([document], url, embedder=models[0], sparse=sparse, prefix="{title} ")
    [weights] = sparse.encode_document([f"{TEXTS[2]} {TEXTS[1]}"], output_value="sparse")
    with closing(open_sink(url)) as sink:
        [hit] = sink.search_sparse(weights, 1, None)
    expected = np.asarray(sparse.similarity([weights], [weights]))[0, 0]
    assert hit.score == pytest.approx(float(expected), rel=1e-4)


def test_what_cannot_be_asked_for(models: tuple[Embedder, Embedder], tmp_path: Path) -> None:
    embedder, sparse = models
    with pytest.raises(SinkError, match=r"out.jsonl cannot hold sparse vectors; leave sparse out"):
        _load(models, f"jsonl:{tmp_path / 'out.jsonl'}")
    url = f"edge:{tmp_path / 'db'}"
    index(SOURCE[:3], url, embedder=embedder, chunk=False)
    with pytest.raises(SinkError, match="holds no sparse vectors and no full-text index"):
        Search(url, embedder, hybrid=True)
    with pytest.raises(ConfigError, match="sparse is for hybrid search; pass hybrid=True"):
        Search(url, embedder, sparse=sparse)


def test_one_model_makes_both_vectors(tmp_path: Path) -> None:
    folder = _write_m3(tmp_path / "m3")
    url = f"edge:{tmp_path / 'db'}"
    with Embedder(folder, threads=1, on_truncate="ignore") as embedder:
        index(SOURCE[:9], url, embedder=embedder, sparse=embedder, chunk=False)
        weights = embedder.encode_document(TEXTS[:9], output_value="sparse")
        with Search(url, embedder, hybrid=True) as search:
            assert search.state.sparse is not None
            assert search.state.sparse.fingerprint == search.state.fingerprint
            assert search.search(TEXTS[4], 1)[0].source_id == "4"
        own = embedder.encode_query(TEXTS[4], output_value="sparse")
        scores = np.asarray(embedder.similarity([own], weights))[0]
        with closing(open_sink(url)) as sink:
            hits = sink.search_sparse(own, 9, None)
        expected = sorted((float(s) for s in scores if s > 0), reverse=True)
        assert [hit.score for hit in hits] == pytest.approx(expected, rel=1e-4)


def test_commands(models: tuple[Embedder, Embedder], tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, arguments)

    embedder, sparse = models
    (tmp_path / "a.txt").write_text(TEXTS[0])
    (tmp_path / "b.txt").write_text(TEXTS[1])
    url = f"edge:{tmp_path / 'db'}"
    names = ("-m", embedder.model_name, "--sparse", sparse.model_name)
    done = run("index", str(tmp_path), *names, "--to", url)
    assert done.exit_code == 0, done.output
    found = run("search", TEXTS[1], "--to", url, "--hybrid", "--json", "-k", "1")
    assert found.exit_code == 0, found.output
    hit = json.loads(found.stdout)
    assert hit["text"] == TEXTS[1]
    assert hit["score"] == pytest.approx(2 / 61)  # the first of both answers
    assert re.search(f"sparse vectors +{sparse.model_name}\n", run("status", url).stdout)


class Promise:
    """An embedder whose vectors come when they are to."""

    def __init__(self) -> None:
        self.made: Future[Any] = Future()

    def submit_batch(self, *_: object, **__: object) -> Future[Any]:
        return self.made


def test_rows_are_embedded_when_both_their_vectors_are_there() -> None:
    row = Row(id=uuid4(), source_id="a", chunk=0, text="a", metadata={}, digest=b"")
    promises: list[Any] = [Promise(), Promise()]
    job = RowJob([row], *promises)
    promises[0].made.set_result(np.zeros((1, 3)))
    assert not job.done()
    promises[1].made.set_result([{}])
    assert job.done()
    assert job.result().weights == [{}]
    promises = [Promise(), Promise()]
    RowJob([row], *promises).cancel()
    assert all(promise.made.cancelled() for promise in promises)


@pytest.mark.parametrize("is_one", [False, True], ids=["two models", "one model"])
def test_commands_keep_the_greatest_weights(
    models: tuple[Embedder, Embedder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_one: bool,
) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, arguments)

    names = [model.model_name for model in models]
    if is_one:
        names = [str(_write_m3(tmp_path / "m3")), f"{tmp_path}/./m3/"]
    texts = tmp_path / "texts.txt"
    texts.write_text("fox\nthe river and this search\n")
    url = f"edge:{tmp_path / 'db'}"
    load = ("index", str(texts), "--input-format", "lines", "-m", names[0], "--to", url)
    ask = ("search", "fox", "--to", url)
    with monkeypatch.context() as patch:
        if is_one:  # which is not loaded again
            patch.setattr("embedlib.embedder.Embedder", None)
        done = run(*load, "--sparse", names[1], "--max-active-dims", "3")
    assert done.exit_code == 0, done.output
    with Search(url, names[0], hybrid=True, config=Config(max_active_dims=3)) as search:
        assert search.search("fox", 1)[0].text == "fox"
    found = run(*ask, "--hybrid", "--max-active-dims", "3", "--json", "-k", "1")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["text"] == "fox"
    assert re.search("max.active.dims", run(*ask, "--hybrid").stderr)
    plain = run(*ask, *(["--max-active-dims", "3"] if is_one else []))
    assert plain.exit_code == 0, plain.output
    assert "add --sparse MODEL" in run(*load, "--max-active-dims", "3").stderr


def test_a_model_without_sparse_vectors_is_refused(
    models: tuple[Embedder, Embedder], tmp_path: Path
) -> None:
    embedder, _ = models
    with pytest.raises(
        ConfigError,
        match=r"^sparse \(--sparse\) = '.*': this model has no sparse_linear.safetensors",
    ):
        _load((embedder, embedder), f"edge:{tmp_path / 'db'}")
    assert not (tmp_path / "db").exists()


def test_vectors_of_tokens_bound_the_rows_in_flight(models: tuple[Embedder, Embedder]) -> None:
    embedder, sparse = models
    options = IndexOptions()
    assert most_rows(embedder, options) == 128
    assert most_rows(sparse, options) == most_rows(None, options) == 2048
