"""Transport tests of the server sink, against a stub: see conftest.py. Not a test of Qdrant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import psutil
import pytest

import embedlib
from embedlib import Document
from embedlib.errors import SinkError
from embedlib.indexing import BadRow, SparseModel, UnreachableSinkError, UnstorableRowsError
from embedlib.indexing.filters.parser import parse_filter
from embedlib.indexing.sinks.opening import open_sink
from embedlib.testing import check_sink, fake_embedder
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from embedlib_qdrant.upserts import PointEncoder
from tests.waiting import WAIT_SECONDS

messages = pytest.importorskip("qdrant_client.grpc", reason="needs the extra qdrant")

SECRET = "s3cret-key"


def ignore(_: object) -> None:
    pass


SPARSE = SparseModel(model="check/sparse", fingerprint="folder:4567", dim=100)


def begin(make_sink: Callable[..., Any], *arguments: Any, **changes: Any) -> Any:
    sink = make_sink(*arguments)
    sink.begin(replace(TARGET, **changes), ignore)
    return sink


def stored_ids(stub: Any) -> list[str]:
    records, _ = stub.local.scroll("docs", limit=10_000)
    return sorted(str(record.id) for record in records if "page_content" in record.payload)


def test_the_stub_and_the_sink_agree(make_sink: Callable[..., Any]) -> None:
    check_sink(make_sink)


def test_a_request_holds_the_rows_in_the_official_types(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    rows = make_rows(300)
    rows[0] = replace(rows[0], metadata={"i": 2**62, "f": 0.5, "n": None, "l": [1, {"x": "ü"}]})
    vectors = make_vectors(rows)
    begin(make_sink).write(rows, vectors)
    # Several are on their way at once, and any may arrive first.
    upserts = sorted(sent_upserts(stub), key=lambda upsert: -len(upsert.points))
    assert [len(upsert.points) for upsert in upserts] == [256, 44]
    points = [point for upsert in upserts for point in upsert.points]
    assert [point.id.uuid for point in points] == [str(row.id) for row in rows]
    sent = np.array([list(point.vectors.vector.dense.data) for point in points], np.float32)
    assert (sent == vectors).all()
    again = messages.UpsertPoints.FromString(upserts[0].SerializeToString())
    assert again == upserts[0]
    (record,) = stub.local.retrieve("docs", [str(rows[0].id)])
    own = {"source_id": rows[0].source_id, "chunk": 0, "digest": rows[0].digest.hex()}
    assert record.payload == {
        "page_content": rows[0].text,
        "metadata": rows[0].metadata,
        "_embedlib": own,
    }


@pytest.mark.parametrize("name", ["", "text"])
def test_a_request_holds_both_vectors_in_the_official_types(name: str) -> None:
    rows, weights = make_rows(2), [{7: 1.5, 3: 0.5}, {}]
    encoder = PointEncoder(6, name, is_named=True)
    (request,) = encoder.requests("docs", rows, make_vectors(rows), [], weights)
    points = messages.UpsertPoints.FromString(request).points
    for point, vector, expected in zip(points, make_vectors(rows), weights, strict=True):
        held = point.vectors.vectors.vectors
        sparse = held["sparse"].sparse
        assert set(held) == {name, "sparse"}
        assert list(held[name].dense.data) == vector.tolist()
        assert dict(zip(sparse.indices, sparse.values, strict=True)) == expected


def test_metadata_that_is_not_json_is_one_bad_row() -> None:
    rows, bad_rows = make_rows(2), list[BadRow]()
    rows[0] = replace(rows[0], metadata={"bad": object()})
    (request,) = PointEncoder(6, "").requests("docs", rows, make_vectors(rows), bad_rows)
    points = messages.UpsertPoints.FromString(request).points
    assert [point.id.uuid for point in points] == [str(rows[1].id)]
    (bad,) = bad_rows
    assert bad.reason.startswith("has metadata that Qdrant cannot store: ")


def sent_upserts(stub: Any) -> list[Any]:
    return [request for method, request in stub.requests if method == "Upsert"]


def test_memory_does_not_grow_with_the_texts_that_were_sent() -> None:
    """Objects of protobuf keep what they were filled with, also after it was replaced."""
    encoder = PointEncoder(8, "")
    (row,) = make_rows(1)
    vectors = np.zeros((1, 8), np.float32)

    def send(num_requests: int) -> int:
        for number in range(num_requests):
            rows = [replace(row, text=f"{number}" * (4 << 20))]
            assert len(list(encoder.requests("docs", rows, vectors, []))) == 1
        return psutil.Process().memory_info().rss

    before = send(5)
    assert send(20) < before + (40 << 20)


def test_a_sink_that_was_closed_may_write_vectors_of_another_model(
    make_sink: Callable[..., Any],
) -> None:
    sink, rows = begin(make_sink), make_rows(3)
    sink.write(rows, make_vectors(rows))
    sink.close()
    sink.begin(replace(TARGET, dim=4, fingerprint="folder:4567", recreate=True), ignore)
    vectors = np.eye(3, 4, dtype=np.float32)
    sink.write(rows, vectors)
    assert [sink.search(vector, 1)[0].id for vector in vectors] == [row.id for row in rows]


def test_rows_are_awaited_where_they_are_read(make_sink: Callable[..., Any], stub: Any) -> None:
    rows = make_rows(2500)
    sink = begin(make_sink)
    sink.write(rows, make_vectors(rows))
    assert [upsert.wait for upsert in sent_upserts(stub)] == [False] * 10
    sink.digests([uuid4()])
    assert stub.count("Upsert") == 10
    sink.digests([rows[7].id])  # the server applies requests in their order
    *written, repeated = sent_upserts(stub)
    # Several are on their way at once: the last one sent need not be the last to arrive.
    (last,) = [sent for sent in written if sent.points[0].id == repeated.points[0].id]
    assert (last.points, repeated.wait) == (repeated.points, True)
    assert repeated.points[-1].id.uuid == str(rows[-1].id)
    list(sink.scan())
    assert stub.count("Upsert") == 11
    assert stored_ids(stub) == sorted(str(row.id) for row in rows)


@pytest.mark.parametrize(
    "read",
    [
        lambda sink, _: sink.inspect(),
        lambda sink, _: list(sink.scan()),
        lambda sink, _: sink.search(np.ones(6, np.float32), 1),
        lambda sink, rows: sink.write_metadata(rows),
        lambda sink, rows: sink.delete([uuid4()]),
        lambda sink, _: sink.save_position("here"),
        lambda sink, _: sink.finish(),
    ],
)
def test_everything_that_reads_awaits_what_was_written(
    make_sink: Callable[..., Any], stub: Any, read: Callable[..., Any]
) -> None:
    sink = begin(make_sink)
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    num_requests = len(stub.requests)
    read(sink, rows)
    method, upsert = stub.requests[num_requests]
    assert (method, upsert.wait) == ("Upsert", True)


def change_between(stub: Any, *changes: Callable[[Any], None]) -> None:
    """Let a load change rows after the server has filtered and before it reads their payload."""
    left, answer = list(changes), stub._Query

    def torn(request: Any, context: Any) -> Any:
        response = answer(request, context)
        if left:
            left.pop(0)(response.result)
        return response

    stub._Query = torn


def other_tenant(points: Any) -> None:
    for point in points[:2]:
        point.payload["metadata"].struct_value.fields["tenant"].string_value = "b"


def removed(points: Any) -> None:
    del points[:2]


def load_tenant(make_sink: Callable[..., Any], stub: Any) -> Any:
    rows = [replace(row, metadata={"tenant": "a"}) for row in make_rows(30)]
    sink = begin(make_sink, full_text="simple")
    sink.write(rows, make_vectors(rows))
    sink.finish()
    stub.requests.clear()
    return sink


TENANT = parse_filter("tenant = 'a'")


@pytest.mark.parametrize(
    ("changes", "num_hits", "num_requests"),
    [
        ([], 10, 1),
        ([other_tenant], 10, 2),
        ([removed], 10, 2),
        ([other_tenant] * 2, 10, 3),
        ([other_tenant] * 4, 8, 3),
    ],
)
def test_a_row_that_changes_during_a_search_passes_no_filter_that_it_fails(
    make_sink: Callable[..., Any],
    stub: Any,
    changes: list[Callable[[Any], None]],
    num_hits: int,
    num_requests: int,
) -> None:
    sink = load_tenant(make_sink, stub)
    change_between(stub, *changes)
    hits = sink.search_where(np.ones(6, np.float32), 10, TENANT)
    assert {hit.metadata["tenant"] for hit in hits} == {"a"}
    assert len(hits) == num_hits
    # A graph may have led past rows that pass.
    exact = [request.params.exact for method, request in stub.requests if method == "Query"]
    assert exact == [False, True, True][:num_requests]


def test_a_short_answer_stands_where_a_server_refuses_an_exact_search(
    make_sink: Callable[..., Any], stub: Any, aborting: Callable[..., Any]
) -> None:
    """As in strict mode, with search_allow_exact = false."""
    sink = load_tenant(make_sink, stub)
    sink.close()  # a search alone does not wait for a server that is slow
    stub.fail("Query", ignore, aborting("INVALID_ARGUMENT", "Exact search disabled!"))
    assert len(sink.search_where(np.ones(6, np.float32), 100, TENANT)) == 30
    assert stub.count("Query") == 2
    for code, error in (("DEADLINE_EXCEEDED", UnreachableSinkError), ("INTERNAL", SinkError)):
        stub.fail("Query", ignore, aborting(code))
        with pytest.raises(error):
            sink.search_where(np.ones(6, np.float32), 100, TENANT)


def test_rows_that_go_during_a_search_make_no_short_answer(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    sink = load_tenant(make_sink, stub)
    change_between(stub, removed)
    assert len(sink.search(np.ones(6, np.float32), 10)) == 10
    (first, second) = [request for method, request in stub.requests if method == "Query"]
    assert first == second  # no exact one, which a server in strict mode may refuse
    stub.requests.clear()
    assert len(sink.search(np.ones(6, np.float32), 100)) == 30  # all that there are
    assert stub.count("Query") == 2


def test_a_ranking_by_words_is_asked_again_only_where_a_row_has_changed(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    sink = load_tenant(make_sink, stub)
    few = sink.search_text("text", 100, TENANT)
    assert len(few) == 30
    assert stub.count("Query") == 1
    change_between(stub, other_tenant)
    assert sink.search_text("text", 100, TENANT) == few
    assert stub.count("Query") == 3


def test_the_index_of_another_language_is_dropped(make_sink: Callable[..., Any], stub: Any) -> None:
    """It would stay else, since there is an index."""
    for language, num_dropped in (("simple", 0), ("english", 1), ("english", 1)):
        sink = begin(make_sink, full_text=language)
        sink.finish()
        sink.close()
        assert stub.count("DeleteFieldIndex") == num_dropped


def test_not_too_many_rows_are_logged_and_not_applied(
    make_sink: Callable[..., Any], stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib_qdrant.server._CHECKPOINT_ROWS", 600)
    sink = begin(make_sink)
    rows = make_rows(900)
    for start in range(0, 900, 300):
        sink.write(rows[start : start + 300], make_vectors(rows[start : start + 300]))
    waits = [upsert.wait for upsert in sent_upserts(stub)]
    assert waits == [False] * 4 + [True] + [False] * 2


def test_with_several_shards_every_request_is_awaited(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    rows = make_rows(600)
    sink = begin(make_sink, "?shards=2")
    sink.write(rows, make_vectors(rows))
    sink.digests([rows[0].id])
    assert [upsert.wait for upsert in sent_upserts(stub)] == [True] * 3


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"]
)
@pytest.mark.parametrize("is_lost", [False, True], ids=["refused", "answer lost"])
def test_a_failure_that_passes_is_repeated_and_rows_are_there_once(
    make_sink: Callable[..., Any],
    stub: Any,
    waits: list[float],
    aborting: Callable[..., Any],
    code: str,
    is_lost: bool,
) -> None:
    told: list[str] = []
    sink = make_sink()
    sink.begin(TARGET, told.append)
    rows = make_rows(200)
    inject = stub.lose_answer if is_lost else stub.fail
    inject("Upsert", *[aborting(code, "later\nplease")] * 3)
    sink.write(rows, make_vectors(rows))
    assert waits == [0.5, 1.0, 2.0]
    assert told[0] == f"{sink.name}: {code} later please; trying again in 0.5 s (1/8)"
    assert stub.count("Upsert") == 4
    assert stored_ids(stub) == sorted(str(row.id) for row in rows)
    assert len(list(sink.scan())) == 200


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("CollectionExists", lambda sink, row: sink.inspect()),
        ("Get", lambda sink, row: sink.digests([row.id])),
        ("Scroll", lambda sink, row: list(sink.scan())),
        ("Delete", lambda sink, row: sink.delete([row.id])),
        ("UpdateBatch", lambda sink, row: sink.write_metadata([row])),
        ("Count", lambda sink, row: sink.inspect()),
        ("Query", lambda sink, row: sink.search(np.ones(6, np.float32), 1)),
        ("Update", lambda sink, row: sink.finish()),
    ],
)
def test_every_request_is_repeated(
    make_sink: Callable[..., Any],
    stub: Any,
    waits: list[float],
    aborting: Callable[..., Any],
    method: str,
    action: Callable[[Any, Any], Any],
) -> None:
    sink = begin(make_sink)
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    stub.fail(method, aborting("UNAVAILABLE"))
    stub.lose_answer(method, aborting("UNAVAILABLE"))
    action(sink, rows[0])
    assert waits[:2] == [0.5, 1.0]


def test_the_server_says_how_long_to_wait(
    make_sink: Callable[..., Any], stub: Any, waits: list[float], aborting: Callable[..., Any]
) -> None:
    sink = begin(make_sink)
    stub.fail("Upsert", aborting("RESOURCE_EXHAUSTED", "slow down", retry_after=7))
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    assert waits == [7.0]
    stub.fail("Upsert", aborting("UNAVAILABLE", retry_after="Fri, 31 Dec 2027 23:59:59 GMT"))
    sink.write(rows, make_vectors(rows))
    assert waits == [7.0, 0.5]


@pytest.mark.parametrize(
    "code",
    [
        *("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED"),
        *("INTERNAL", "UNIMPLEMENTED", "UNKNOWN"),
    ],
)
def test_a_failure_that_does_not_pass_is_not_repeated(
    make_sink: Callable[..., Any],
    stub: Any,
    waits: list[float],
    aborting: Callable[..., Any],
    code: str,
) -> None:
    sink = begin(make_sink)
    stub.fail("Upsert", aborting(code, "no\nand never"))
    rows = make_rows(2)
    with pytest.raises(SinkError, match=f"{code} no and never") as caught:
        sink.write(rows, make_vectors(rows))
    assert ("QDRANT_API_KEY" in str(caught.value)) == (
        code in ("PERMISSION_DENIED", "UNAUTHENTICATED")
    )
    assert (waits, stub.count("Upsert")) == ([], 1)


@pytest.mark.parametrize(
    "said",
    [
        "INTERNAL Received RST_STREAM with error code 2",
        "UNKNOWN Stream removed",
        "INTERNAL Service: 0 of 0 read operations failed",
        "INTERNAL Service: The replica set for shard 0 does not have enough active replicas",
        "INTERNAL Service: Tonic status error: status: Unavailable, message: refused",
    ],
)
def test_a_stream_cut_by_a_proxy_or_a_node_that_died_is_repeated(
    make_sink: Callable[..., Any],
    stub: Any,
    waits: list[float],
    aborting: Callable[..., Any],
    said: str,
) -> None:
    sink = begin(make_sink)
    stub.fail("Upsert", aborting(*said.split(" ", 1)))
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    assert waits == [0.5]


def test_a_request_that_exceeds_a_rate_limit_by_itself_is_not_repeated(
    make_sink: Callable[..., Any], stub: Any, waits: list[float], aborting: Callable[..., Any]
) -> None:
    sink = begin(make_sink)
    details = "Rate limiting exceeded: request larger than rate limiter capacity, please split it"
    stub.fail("Upsert", aborting("RESOURCE_EXHAUSTED", details))
    rows = make_rows(2)
    with pytest.raises(SinkError, match="larger than rate limiter capacity"):
        sink.write(rows, make_vectors(rows))
    stub.fail("Scroll", aborting("RESOURCE_EXHAUSTED", details, retry_after=1))
    with pytest.raises(SinkError, match="larger than rate limiter capacity"):
        list(sink.scan())
    assert waits == []


def test_retries_end(
    make_sink: Callable[..., Any], stub: Any, waits: list[float], aborting: Callable[..., Any]
) -> None:
    sink = begin(make_sink)
    stub.fail("Upsert", *[aborting("UNAVAILABLE")] * 9)
    rows = make_rows(2)
    told = "failed 9 times: UNAVAILABLE stub; written rows are kept"
    with pytest.raises(UnreachableSinkError, match=told):
        sink.write(rows, make_vectors(rows))
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_search_gives_up_soon_and_the_next_one_asks_again(
    make_sink: Callable[..., Any], stub: Any, waits: list[float], aborting: Callable[..., Any]
) -> None:
    sink, rows = begin(make_sink), make_rows(2)
    sink.write(rows, make_vectors(rows))
    sink.close()
    sink.hold(sink.inspect())  # it does not look for its rows elsewhere
    question = make_vectors(rows)[1]
    assert sink.search(question, 1)[0].id == rows[1].id
    stub.fail("Query", *[aborting("UNAVAILABLE")] * 4)
    told = "failed 4 times: UNAVAILABLE stub; try again later$"
    with pytest.raises(UnreachableSinkError, match=told):
        sink.search(question, 1)
    assert waits == [0.5, 1, 2]
    for slow in (aborting("DEADLINE_EXCEEDED"), aborting("RESOURCE_EXHAUSTED", retry_after=7)):
        stub.fail("Query", slow)
        with pytest.raises(UnreachableSinkError, match=r"failed 1 time: [A-Z_]+ .*stub.*; try"):
            sink.search(question, 1)
    assert waits == [0.5, 1, 2]
    assert sink.search(question, 1)[0].id == rows[1].id


def test_a_server_that_never_answered_is_given_up_sooner(
    make_sink: Callable[..., Any], stub: Any, waits: list[float], aborting: Callable[..., Any]
) -> None:
    stub.fail("CollectionExists", *[aborting("UNAVAILABLE")] * 4)
    told = r"failed 4 times: UNAVAILABLE stub; check .* is the one of gRPC \(6334\).*TLS$"
    with pytest.raises(UnreachableSinkError, match=told):
        make_sink().inspect()
    assert waits == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("details", "told"),
    [
        ("stub", "UNAUTHENTICATED stub; the API key is read"),
        (
            "Received http2 header with status: 401",
            "the port answers HTTP, not gRPC; .*; if it is the right port, the API key is read",
        ),
    ],
)
def test_a_refused_key_may_be_a_wrong_port(
    make_sink: Callable[..., Any], stub: Any, aborting: Callable[..., Any], details: str, told: str
) -> None:
    sink = make_sink()
    stub.fail("CollectionExists", aborting("UNAUTHENTICATED", details))
    with pytest.raises(SinkError, match=f"^{sink.name}: {told}"):
        sink.inspect()


@pytest.mark.parametrize("is_lost", [False, True], ids=["request torn", "answer torn"])
def test_a_torn_connection_is_made_again(
    make_sink: Callable[..., Any], stub: Any, proxy: Any, waits: list[float], is_lost: bool
) -> None:
    def tear(context: Any) -> None:
        proxy.cut()
        # `abort` ends the call here. On a busy machine its answer may still pass before the cut.
        context.abort(messages_code("UNAVAILABLE"), "torn")

    sink = begin(make_sink, "", proxy.port)
    (stub.lose_answer if is_lost else stub.fail)("Upsert", tear)
    rows = make_rows(5)
    sink.write(rows, make_vectors(rows))
    assert stored_ids(stub) == sorted(str(row.id) for row in rows)
    assert stub.count("Upsert") == 2
    assert proxy.num_connections >= 2
    assert len(waits) >= 1


def messages_code(name: str) -> Any:
    import grpc

    return grpc.StatusCode[name]


def test_the_api_key_is_sent_and_never_printed(
    make_sink: Callable[..., Any],
    stub: Any,
    aborting: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    told: list[str] = []
    sink = make_sink()
    sink.begin(TARGET, told.append)
    rows = make_rows(2)
    stub.fail("Upsert", aborting("UNAVAILABLE"), aborting("PERMISSION_DENIED", "key refused"))
    with pytest.raises(SinkError) as caught:
        sink.write(rows, make_vectors(rows))
    assert set(stub.api_keys) == {SECRET}
    assert "the API key is sent unencrypted" in told[0]
    for text in (*told, str(caught.value), repr(caught.value), sink.name, repr(sink)):
        assert SECRET not in text


@pytest.mark.parametrize(
    "url",
    [
        f"qdrant://:{SECRET}@localhost/docs",
        f"qdrant://{SECRET}@localhost/docs",
        f"qdrant+https://user:{SECRET}@localhost:6334/docs",
        f"qdrant://localhost/docs?api_key={SECRET}",
        f"qdrant+https://localhost/docs?api-key={SECRET}",
    ],
)
def test_an_api_key_in_the_url_is_refused_and_not_printed(url: str) -> None:
    with pytest.raises(SinkError, match=r"QDRANT_API_KEY|has no option") as caught:
        open_sink(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "qdrant:",
        "qdrant://",
        "qdrant://host",
        "qdrant://host:x/docs",
        "qdrant:///docs",
        "qdrant://h/a/b",
    ],
)
def test_a_wrong_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SinkError, match="such as qdrant://localhost:6334/documents"):
        open_sink(url)


def test_an_address_of_ipv6_keeps_its_brackets() -> None:
    sink = open_sink("qdrant://[::1]:7000/docs")
    connection = vars(sink)["_connection"]
    assert (connection.host, connection.port) == ("[::1]", 7000)
    assert sink.name == "qdrant://[::1]:7000/docs"
    assert vars(open_sink("qdrant://h/docs"))["_connection"].port == 6334  # the one of gRPC


def test_an_https_url_is_encrypted(make_sink: Callable[..., Any]) -> None:
    sink = open_sink("qdrant+https://example.org:443/docs?shards=2")
    assert sink.name == "qdrant+https://example.org:443/docs"
    assert vars(sink)["_connection"].is_encrypted
    assert not vars(make_sink())["_connection"].is_encrypted


def test_a_sink_that_was_closed_in_the_middle_may_be_looked_at(
    make_sink: Callable[..., Any],
) -> None:
    sink, rows = begin(make_sink), make_rows(3)
    sink.write(rows, make_vectors(rows))
    sink.close()
    assert sink.inspect().num_rows == 3


def test_a_sink_closes_both_connections(
    make_sink: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begin(make_sink)
    sink.write(make_rows(1), make_vectors(make_rows(1)))
    connection = vars(vars(sink)["_connection"])
    closings = []
    for name in ("_client", "_channel"):
        closings.append(Mock(wraps=connection[name].close))
        monkeypatch.setattr(connection[name], "close", closings[-1])
    sink.close()
    assert [closing.call_count for closing in closings] == [1, 1]


def test_the_collection_is_made_as_the_url_says(make_sink: Callable[..., Any], stub: Any) -> None:
    options = "?m=8&ef_construct=32&on_disk=1&quantization=scalar&shards=3"
    sink = begin(make_sink, f"{options}&replicas=2&write_consistency=2")
    (create,) = [
        request
        for method, request in stub.requests
        if isinstance(request, messages.CreateCollection)
    ]
    assert (create.hnsw_config.m, create.hnsw_config.ef_construct) == (0, 32)
    assert create.vectors_config.params.on_disk
    assert create.hnsw_config.on_disk
    assert create.quantization_config.scalar.quantile == pytest.approx(0.99)
    assert create.quantization_config.scalar.always_ram
    assert (create.shard_number, create.replication_factor) == (3, 2)
    assert create.write_consistency_factor == 2
    assert stub.indexed_fields == []
    sink.finish()
    assert stub.indexed_fields == ["_embedlib.source_id"]
    methods = [method for method, _ in stub.requests]
    pausing, building = (number for number, name in enumerate(methods) if name == "Update")
    assert pausing < methods.index("CreateFieldIndex") < building  # before the graph


def test_the_graph_is_switched_on_at_the_end_also_after_a_kill(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    rows = make_rows(4)
    killed = begin(make_sink, "?m=8")
    killed.write(rows, make_vectors(rows))
    assert (stub.m, stub.thresholds) == ({"docs": 0}, {"docs": 0})
    assert "the load was not finished" in killed.inspect().index
    killed.close()
    sink = begin(make_sink)
    sink.finish()
    assert (stub.m, stub.thresholds) == ({"docs": 8}, {"docs": 10_000})
    assert sink.inspect().index.startswith("none needed, exact scan: the server builds one when")
    assert stub.count("Update") == 2
    assert set(stub.local.get_collection("docs").config.metadata) == {"embedlib"}
    sink.finish()
    assert stub.count("Update") == 2
    sink.close()
    begin(make_sink)  # what it loads gets into the graph as it comes
    assert stub.thresholds == {"docs": 10_000}


def test_a_graph_that_somebody_has_changed_since_is_kept(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    for m in (16, 32):
        sink = begin(make_sink)
        sink.finish()
        assert stub.m == {"docs": m}
        sink.close()
        stub.m["docs"] = 32


def test_a_threshold_that_somebody_has_set_since_is_kept(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    sink = begin(make_sink)
    stub.thresholds["docs"] = 5
    sink.finish()
    assert stub.thresholds == {"docs": 5}


def test_finish_waits_until_the_collection_is_green_and_tells_how_far_it_is(
    make_sink: Callable[..., Any], stub: Any, waits: list[float]
) -> None:
    told: list[str] = []
    sink = make_sink()
    sink.begin(TARGET, told.append)
    rows = make_rows(4)
    sink.write(rows, make_vectors(rows))
    # The first look is the one for m.
    stub.statuses += ["Green", "Green", "Grey", "Yellow", "Yellow", "Green"]
    sink.finish()
    assert waits == [1.0] * 5  # green, grey, yellow, yellow, green and once more green
    assert stub.count("Update") == 2 + 1  # begin, finish, and a grey one waits until it is asked
    assert told == [f"{sink.name}: building the index, 0 vectors are in it"]
    waits.clear()
    sink.finish()
    assert waits == []


def test_a_server_that_may_not_optimize_is_not_waited_for(
    make_sink: Callable[..., Any], stub: Any, waits: list[float]
) -> None:
    told: list[str] = []
    sink = make_sink()
    sink.begin(TARGET, told.append)
    stub.num_optimizers = 0
    stub.statuses += ["Green", "Yellow"]
    sink.finish()
    assert told == [f"{sink.name}: no index is built while max_optimization_threads is 0"]
    stub.num_optimizers = 1
    stub.statuses += ["Green", "Yellow"]
    sink.finish()
    assert waits == [1.0]


def test_a_failed_optimizer_is_an_error(make_sink: Callable[..., Any], stub: Any) -> None:
    sink = begin(make_sink)
    stub.statuses += ["Green", "Red"]
    with pytest.raises(SinkError, match="the server's optimizer failed"):
        sink.finish()


def test_a_collection_that_is_removed_during_its_load_is_one_line(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    sink = begin(make_sink)
    stub.local.delete_collection("docs")
    with pytest.raises(SinkError, match="Collection docs not found") as caught:
        sink.finish()
    assert "\n" not in str(caught.value)


def test_the_name_of_a_field_with_an_index_may_have_a_comma(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    begin(make_sink, '?payload_index="City, State".a:keyword,year:float').finish()
    fields = ["_embedlib.source_id", 'metadata."City, State".a', "metadata.year"]
    assert stub.indexed_fields == fields


@pytest.mark.parametrize("recreate", [False, True])
def test_a_collection_of_others_is_left_alone(
    make_sink: Callable[..., Any], stub: Any, recreate: bool
) -> None:
    from qdrant_client import models

    stub.local.create_collection(
        "docs", models.VectorParams(size=6, distance=models.Distance.COSINE), metadata={"x": 1}
    )
    stub.m["docs"] = 16
    stub.thresholds["docs"] = 10_000
    with pytest.raises(SinkError, match="was not created by embedlib"):
        begin(make_sink, recreate=recreate)
    with pytest.raises(SinkError, match="was not created by embedlib"):
        make_sink().inspect()
    assert {method for method, _ in stub.requests} == {"ListAliases", "CollectionExists", "Get"}


def test_an_older_server_is_refused_before_anything_is_made(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    stub.version = "1.15.4"
    with pytest.raises(SinkError, match=r"Qdrant 1\.15\.4; .*needs 1\.16"):
        begin(make_sink)
    assert stub.count("Create") == 0


def test_a_lost_answer_to_create_does_no_harm(
    make_sink: Callable[..., Any], stub: Any, aborting: Callable[..., Any]
) -> None:
    stub.lose_answer("Create", aborting("DEADLINE_EXCEEDED"))
    begin(make_sink)
    assert stub.count("Create") == 2
    assert make_sink().inspect().num_rows == 0


def test_a_collection_that_cannot_be_made_is_an_error(
    make_sink: Callable[..., Any], stub: Any, aborting: Callable[..., Any]
) -> None:
    stub.fail("Create", aborting("INVALID_ARGUMENT", "bad name"))
    with pytest.raises(SinkError, match="INVALID_ARGUMENT bad name"):
        begin(make_sink)


def test_a_command_prints_no_log_lines_of_grpc(stub: Any) -> None:
    url = f"qdrant+https://127.0.0.1:{stub.port}/docs"
    command = [sys.executable, "-m", "embedlib", "status", url]
    environment = {name: text for name, text in os.environ.items() if name != "GRPC_VERBOSITY"}
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=WAIT_SECONDS
    )
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"Error: {url}: the port does not use TLS")


@pytest.mark.parametrize("method", ["write", "write_metadata"])
def test_a_number_that_qdrant_cannot_store_is_one_bad_row(
    make_sink: Callable[..., Any], stub: Any, method: str
) -> None:
    sink = begin(make_sink)
    rows = make_rows(600)
    sink.write(rows[300:], make_vectors(rows[300:]))
    big = {"a": [{"n": 2**63}], "fits": 2**63 - 1, "also": -(2**63)}
    rows[301] = replace(rows[301], metadata=big, digest=b"x" * 24)
    rows[3] = replace(rows[3], metadata=big)
    rows[302] = replace(rows[302], metadata={"new": True})
    arguments = (rows, make_vectors(rows)) if method == "write" else (rows,)
    with pytest.raises(UnstorableRowsError, match=r"cannot store [12] of these rows") as caught:
        getattr(sink, method)(*arguments)
    assert "\n" not in str(caught.value)
    bad = caught.value.bad_rows[-1]
    assert (bad.id, bad.place) == (rows[301].source_id, f"{rows[301].source_id!r}, chunk 1")
    assert "the number 9223372036854775808 in metadata 'a.0.n'" in bad.reason
    (changed,) = stub.local.retrieve("docs", [str(rows[302].id)])
    assert changed.payload["metadata"] == {"new": True}
    (kept,) = stub.local.retrieve("docs", [str(rows[301].id)])
    assert kept.payload["metadata"]["page"] == 301
    if method == "write":
        assert stored_ids(stub) == sorted(str(row.id) for row in rows if row is not rows[3])


def in_one_another(num: int, name: str) -> dict[str, Any]:
    """Return metadata of as many dicts or lists under one key."""
    value: Any = 1
    for _ in range(num):
        value = {"a": value} if name == "dicts" else [value]
    return {"deep": value}


@pytest.mark.parametrize("method", ["write", "write_metadata"])
@pytest.mark.parametrize(("name", "most"), [("dicts", 29), ("lists", 43)])
def test_metadata_that_the_server_cannot_decode_is_one_bad_row(
    make_sink: Callable[..., Any], stub: Any, method: str, name: str, most: int
) -> None:
    sink = begin(make_sink)
    rows = make_rows(3)
    sink.write(rows, make_vectors(rows))
    rows[0] = replace(rows[0], metadata=in_one_another(most, name))
    rows[1] = replace(rows[1], metadata=in_one_another(most + 1, name))
    rows[2] = replace(rows[2], metadata=in_one_another(300, name))
    arguments = (rows, make_vectors(rows)) if method == "write" else (rows,)
    with pytest.raises(UnstorableRowsError, match="cannot store 2 of these rows") as caught:
        getattr(sink, method)(*arguments)
    for bad in caught.value.bad_rows:
        assert bad.reason.startswith("has metadata 'deep' nested too deeply, and Qdrant stores up")
    sink.close()
    found = stub.local.retrieve("docs", [str(row.id) for row in rows])
    stored = {point.id: point.payload["metadata"] for point in found}
    assert stored[str(rows[0].id)] == rows[0].metadata
    assert [stored[str(row.id)]["page"] for row in rows[1:]] == [1, 2]


def test_a_load_counts_it_and_goes_on(make_sink: Callable[..., Any], stub: Any) -> None:
    documents = [Document(id=f"d{n}", text=f"text {n}", metadata={"n": n}) for n in range(50)]
    documents[7] = replace(documents[7], metadata={"n": 12345678901234567890})
    told: list[str] = []
    with fake_embedder() as embedder:
        report, again = (
            embedlib.index(documents, make_sink(), embedder=embedder, chunk=False, tell=told.append)
            for _ in range(2)
        )
    assert (report.num_bad, report.num_embedded, report.num_rows) == (1, 49, 49)
    assert (again.num_bad, again.num_embedded, again.num_rows) == (1, 0, 49)  # it alone is tried
    line, same = told
    assert line == same
    assert line.startswith("skipped: 'd7', chunk 0: has the number 12345678901234567890 in")
    assert len(stored_ids(stub)) == 49


@pytest.mark.parametrize(
    "name",
    [
        *(".", "..", "%20", " a", "a%20", "a%0Ab", "a%00", "a%7F", "a%E2%80%A8b"),
        *("a%2Fb", "a:b", "a%3Fb", "a%2Ab", "%3Ca", 'a"', "a%7Cb", "a%5Cb", "b" * 256, "ä" * 128),
    ],
)
def test_a_name_that_no_collection_can_have_is_refused(name: str) -> None:
    with pytest.raises(SinkError) as caught:
        open_sink(f"qdrant://localhost/{name}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "ä", "...", ".hidden", "b" * 255, "👩‍💻", "a%25b", "a#b"])
def test_a_name_that_a_server_takes_is_taken(name: str) -> None:
    sink: Any = open_sink(f"qdrant://localhost/{name}")
    assert sink.collection == unquote(name)


def test_a_port_of_rest_is_recognized_at_once(
    make_sink: Callable[..., Any], waits: list[float]
) -> None:
    class Rest(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Rest) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SinkError, match=r"answers HTTP/1, not gRPC; 6333 .* usually 6334$"):
            make_sink(port=server.server_port).inspect()
        server.shutdown()
    assert waits == []


def test_tls_on_a_port_without_it_is_recognized_at_once(stub: Any, waits: list[float]) -> None:
    sink: Any = open_sink(f"qdrant+https://127.0.0.1:{stub.port}/docs")
    sink.sleep = waits.append
    with pytest.raises(SinkError, match="the port does not use TLS; write qdrant://"):
        sink.inspect()
    sink.close()
    assert waits == []


def test_points_of_others_are_not_ours(make_sink: Callable[..., Any], stub: Any) -> None:
    from qdrant_client import models

    sink = begin(make_sink)
    rows = make_rows(3)
    sink.write(rows, make_vectors(rows))
    stub.local.upsert("docs", [models.PointStruct(id=7, vector=[1.0] * 6, payload={"a": 1})])
    assert len(list(sink.scan())) == 3
    assert sink.inspect().num_rows == 3
    assert len(sink.search(np.ones(6, np.float32), 10)) == 3


def test_shards_of_a_source_may_be_written_at_the_same_time(
    make_sink: Callable[..., Any],
) -> None:
    first = begin(make_sink, shard="1/2")
    second = begin(make_sink, shard="2/2")
    with pytest.raises(SinkError, match="is being written by process"):
        begin(make_sink, shard="2/2")
    rows = make_rows(4)
    first.write(rows[:2], make_vectors(rows[:2]))
    second.write(rows[2:], make_vectors(rows[2:]))
    first.finish()
    second.finish()
    assert second.inspect().num_rows == 4


def test_metadata_of_rows_that_are_not_stored_is_not_sent(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    sink = begin(make_sink)
    rows = make_rows(4)
    sink.write(rows[:2], make_vectors(rows[:2]))
    sink.write_metadata(rows)
    (batch,) = [request for method, request in stub.requests if method == "UpdateBatch"]
    assert len(batch.operations) == 2
    sink.write_metadata(rows[2:])
    assert stub.count("UpdateBatch") == 1


def test_langchain_opens_what_was_written(make_sink: Callable[..., Any], stub: Any) -> None:
    qdrant_client = pytest.importorskip("qdrant_client")
    store_module = pytest.importorskip("langchain_qdrant")
    embeddings_module = pytest.importorskip("langchain_core.embeddings")
    sink = begin(make_sink)
    rows = make_rows(3)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    client = qdrant_client.QdrantClient(
        host="127.0.0.1", grpc_port=stub.port, prefer_grpc=True, check_compatibility=False
    )
    store = store_module.QdrantVectorStore(
        client, "docs", embeddings_module.DeterministicFakeEmbedding(size=6)
    )
    found = store.similarity_search_by_vector(make_vectors(rows)[1].tolist(), k=1)
    assert found[0].page_content == rows[1].text
    assert found[0].metadata["page"] == 1
    client.close()


def test_a_write_may_not_wait_for_more_replicas_than_there_are(
    make_sink: Callable[..., Any], stub: Any
) -> None:
    with pytest.raises(SinkError, match=r"write_consistency=3 is more than replicas=2; give both"):
        begin(make_sink, "?write_consistency=3&replicas=2")
    assert stub.count("Create") == 0


@pytest.mark.parametrize(
    ("options", "sparse", "message"),
    [
        ("?write_consistency=2", None, "write_consistency=2 is more than replicas=1"),
        ("?vector=sparse", SPARSE, "vector=sparse is the name of the sparse vectors; give the"),
    ],
)
def test_what_cannot_be_created_drops_nothing(
    make_sink: Callable[..., Any], stub: Any, options: str, sparse: Any, message: str
) -> None:
    sink = begin(make_sink)
    rows = make_rows(4)
    sink.write(rows, make_vectors(rows))
    sink.close()
    with pytest.raises(SinkError, match=message):
        begin(make_sink, options, recreate=True, sparse=sparse)
    assert len(stored_ids(stub)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("replicas=0", "replicas=0: it must be a whole number from 1 to 999999999"),
        ("vector=", "vector = ''; it must be a name"),
        ("vector=%20a", "vector = ' a'; it must be a name, without blanks at its ends"),
        ("payload_index=lang", "payload_index=lang: it must be FIELD:KIND"),
        ("payload_index=lang:word", "payload_index=lang:word: it must be FIELD:KIND"),
        ("payload_index=", "payload_index=: it must be FIELD:KIND"),
        ('payload_index="a,b:keyword', 'payload_index="a,b:keyword: it must be FIELD:KIND'),
        ("payload_index=my%20field:keyword", "my field:keyword: .* in double quotes if its name"),
        ("snapshot=maybe", "snapshot=maybe: it must be true or false"),
    ],
)
def test_a_wrong_option_is_refused(options: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        open_sink(f"qdrant://localhost/docs?{options}")


def test_a_token_for_one_collection_may_not_list_aliases(
    make_sink: Callable[..., Any], stub: Any, aborting: Callable[..., Any]
) -> None:
    stub.fail("ListAliases", aborting("PERMISSION_DENIED"))
    assert begin(make_sink).collection == "docs"
