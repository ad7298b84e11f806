"""A vector per token in Qdrant: what is stored and found is what MaxSim says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from qdrant_client import grpc

import embedlib
from embedlib import Embedder, Search
from embedlib.errors import SinkError
from embedlib.indexing import BadRow, Document
from embedlib.indexing.sinks.opening import open_sink
from embedlib.testing.check_sink import make_rows
from embedlib.testing.models.write import write_tiny_model
from embedlib_qdrant import upserts
from embedlib_qdrant.collection import CollectionSink
from embedlib_qdrant.upserts import PointEncoder

TEXTS = [
    "the quick brown fox",
    "a small city, a large river.",
    "data base",
    "hello world, hello sentence",
    "tokens of the model represent words",
]
QUESTIONS = ["river through the city", "fox", "what is a word vector?"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    folder = write_tiny_model(tmp_path_factory.mktemp("late") / "model", "late-stanford")
    with Embedder(folder, threads=1) as embedder:
        yield embedder


def documents() -> list[Document]:
    return [Document(id=str(number), text=text) for number, text in enumerate(TEXTS)]


@pytest.mark.parametrize("url", ["edge:{}/shard", "qdrant+local:{}/local"])
def test_an_answer_is_that_of_maxsim(url: str, tmp_path: Path, embedder: Embedder) -> None:
    check_answers(url.format(tmp_path), embedder)


@pytest.mark.qdrant_server
@pytest.mark.parametrize("options", ["", "?vector=tokens"])
def test_a_server_answers_as_maxsim(
    qdrant_url: str,
    options: str,
    embedder: Embedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"embedlib-test-{uuid4()}"
    sink = open_sink(f"{qdrant_url}/{name}{options}")
    assert isinstance(sink, CollectionSink)
    try:
        check_answers(f"{qdrant_url}/{name}{options}", embedder)
    finally:
        sink.drop()
        sink.close()


def check_answers(url: str, embedder: Embedder) -> None:
    report = embedlib.index(documents(), url, embedder=embedder)
    assert report.num_embedded == len(TEXTS)
    assert embedlib.index(documents(), url, embedder=embedder).num_embedded == 0
    vectors = embedder.encode_document(TEXTS)
    with Search(url, embedder) as search:
        for question in QUESTIONS:
            scores = embedlib.maxsim(embedder.encode_query(question), vectors)[0]
            hits = search.search(question, top_k=3)
            assert [int(hit.source_id) for hit in hits] == np.argsort(-scores)[:3].tolist()
            found = [hit.score for hit in hits]
            np.testing.assert_allclose(found, np.sort(scores)[::-1][:3], rtol=1e-4)


def test_other_destinations_refuse(tmp_path: Path, embedder: Embedder) -> None:
    with pytest.raises(SinkError, match=r"one vector per row, .* load into qdrant:// or edge:"):
        embedlib.index(documents(), f"jsonl:{tmp_path}/vectors.jsonl", embedder=embedder)
    assert not list(tmp_path.iterdir())


def test_requests_hold_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upserts, "MAX_BYTES", 300)
    random = np.random.default_rng(0)
    rows = make_rows(4)
    vectors = [random.standard_normal((size, 3)).astype(np.float32) for size in (1, 4, 2, 9)]
    for name in ("", "tokens"):
        bad_rows: list[BadRow] = []
        requests = list(PointEncoder(3, name).requests("docs", rows, vectors, bad_rows))
        assert len(requests) > 1
        points = [
            point for request in requests for point in grpc.UpsertPoints.FromString(request).points
        ]
        assert [point.id.uuid for point in points] == [str(row.id) for row in rows]
        for point, wanted in zip(points, vectors, strict=True):
            held = point.vectors.vectors.vectors[name] if name else point.vectors.vector
            found = [list(token.data) for token in held.multi_dense.vectors]
            np.testing.assert_array_equal(np.array(found, np.float32), wanted)
            assert point.payload["page_content"].string_value


def test_a_row_beyond_the_limit_of_a_server_is_one_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upserts, "MAX_NUMBERS", 12)
    rows = make_rows(3)
    vectors = [np.ones((size, 3), np.float32) for size in (3, 4, 2)]
    bad_rows: list[BadRow] = []
    (request,) = PointEncoder(3, "").requests("docs", rows, vectors, bad_rows)
    points = grpc.UpsertPoints.FromString(request).points
    assert [point.id.uuid for point in points] == [str(row.id) for row in (rows[0], rows[2])]
    (bad,) = bad_rows
    assert bad.id == rows[1].source_id
    assert "4 vectors of 3 numbers, 12 in all" in bad.reason
    assert "less than 12, here up to 3 vectors; make shorter chunks, or pass a lower" in bad.reason


def test_a_request_has_no_more_points_than_a_server_in_strict_mode_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = make_rows(600)
    short = [np.ones((2, 3), np.float32)] * len(rows)
    requests = list(PointEncoder(3, "").requests("docs", rows, short, []))
    counts = [len(grpc.UpsertPoints.FromString(request).points) for request in requests]
    assert counts == [256, 256, 88]
    # Texts may be long, too.
    monkeypatch.setattr(upserts, "MAX_BYTES", 1000)
    one = np.ones((9, 3), np.float32)
    requests = list(PointEncoder(3, "").requests("docs", rows[:9], one, []))
    assert all(500 < len(request) < 1500 for request in requests)
    assert sum(len(grpc.UpsertPoints.FromString(request).points) for request in requests) == 9
