"""Lanes, admission, deadlines, keys, health and metrics, with engines that the test holds."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import json
import logging
import math
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from click.testing import CliRunner

from embedlib.cli import main
from embedlib.engines.base import Lane
from embedlib.errors import (
    ClosedError,
    CloseTimeoutError,
    ConfigError,
    EngineBuildError,
    EngineRunError,
    QueueFullError,
)
from embedlib.serve import ServeOptions, app, create_app
from embedlib.serve.app import Application
from embedlib.serve.dialects import search
from embedlib.serve.dialects.dialect import OPENAI
from embedlib.serve.errors import ClientGoneError, HTTPError, describe
from embedlib.serve.hosts import check_host
from embedlib.serve.http.server import _own_socket
from embedlib.serve.keys import Keys, read_keys
from embedlib.serve.logs.access_log import AccessLog
from embedlib.serve.logs.fault_log import fault_log
from embedlib.serve.models import catalog
from embedlib.serve.models.admission import Admission, Load
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.estimate import Rate, TokenEstimate
from embedlib.serve.models.sessions import pipeline_of
from embedlib.serve.requests.asgi import DIRECT
from embedlib.serve.requests.deadline import seconds_left
from embedlib.serve.requests.endable import Endable
from embedlib.serve.routes import ROUTES
from embedlib.testing import FakeEngine, fake_embedder
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import until
from tests.waiting import WAIT_SECONDS


def test_one_text_is_a_query_and_lists_are_bulk(client: Client, engine: FakeEngine) -> None:
    for body, headers, lane in (
        ({"input": "a"}, {}, Lane.QUERY),
        ({"input": ["a", "b"]}, {}, Lane.BULK),
        ({"input": ["a", "b"], "input_type": "query"}, {}, Lane.QUERY),
        ({"input": "a", "input_type": "document"}, {}, Lane.BULK),
        ({"input": "a", "lane": "bulk"}, {}, Lane.BULK),
        ({"input": ["a", "b"]}, {"x-embedlib-lane": "query"}, Lane.QUERY),
    ):
        client.post("/v1/embeddings", body, headers=headers)
        assert engine.batches[-1].lane is lane, body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": "q", "documents": ["a", "b"]}),
        ("/rerank", {"query": "q", "texts": ["a", "b"]}),
        ("/score", {"text_1": ["p", "q"], "text_2": ["a", "b"]}),
    ],
)
def test_the_lane_of_a_ranking_is_that_of_its_query_and_documents(
    make_client: MakeClient, engine: FakeEngine, path: str, body: Any
) -> None:
    client = make_client({"embed": fake_embedder(engine)})
    for lane in Lane:
        for more, headers in (({}, {"x-embedlib-lane": lane.value}), ({"lane": lane.value}, {})):
            engine.batches.clear()
            client.post(path, body | more, headers=headers)
            assert {batch.lane for batch in engine.batches} == {lane}
    client.post(path, body)
    assert engine.batches[-1].lane is Lane.BULK


def test_a_query_overtakes_bulk(client: Client, engine: FakeEngine) -> None:
    async def work() -> None:
        async with client.http() as http:
            engine.hold()
            bulk = asyncio.ensure_future(http.post("/v1/embeddings", json={"input": ["a"] * 400}))
            await until(lambda: len(engine.batches) == 2)
            query = asyncio.ensure_future(http.post("/v1/embeddings", json={"input": "q"}))
            await until(lambda: len(engine.batches) == 3)
            assert engine.batches[2].lane is Lane.QUERY
            engine.release()
            assert (await query).status_code == (await bulk).status_code == 200

    client.run(work())


def test_bulk_waits_at_the_door_and_then_is_told_to_come_again(
    make_client: MakeClient, engine: FakeEngine
) -> None:
    client = make_client(max_bulk_texts=4, max_waiting_requests=1)
    door = client.application.catalog.find("embed", "embed").admission

    async def work() -> None:
        async with client.http() as http:

            def send(num_texts: int) -> asyncio.Future[Any]:
                return asyncio.ensure_future(
                    http.post("/v1/embeddings", json={"input": ["a"] * num_texts})
                )

            engine.hold()
            inside = send(3)
            await until(lambda: door.inside[Lane.BULK] == 3)
            waiting = send(2)
            await until(lambda: door.waiting_texts == 2)
            refused = await send(2)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"  # the rate is not known yet
            assert refused.headers["retry-after-ms"] == "1000"
            assert refused.json()["error"]["code"] == "overloaded"
            engine.release()
            assert (await inside).status_code == (await waiting).status_code == 200
            assert door.inside == {Lane.QUERY: 0, Lane.BULK: 0}
            assert door.waiting_texts == door.waiting_tokens == 0
            assert door.tokens_inside == {Lane.QUERY: 0, Lane.BULK: 0}

    client.run(work())


def test_queries_have_a_bound_of_their_own(make_client: MakeClient, engine: FakeEngine) -> None:
    client = make_client(max_query_texts=1)

    async def work() -> None:
        async with client.http() as http:
            engine.hold()
            first = asyncio.ensure_future(http.post("/embed", json={"inputs": "a"}))
            await until(lambda: engine.batches)
            second = await http.post("/embed", json={"inputs": "b"})
            assert (second.status_code, second.json()["error_type"]) == (429, "Overloaded")
            engine.release()
            assert (await first).status_code == 200

    client.run(work())


@asynccontextmanager
async def inside(door: Admission, num_texts: int) -> AsyncIterator[None]:
    """Hold a place of the bulk lane."""
    load = Load(num_texts, 5 * num_texts)
    await door.take(Lane.BULK, load)
    try:
        yield
    finally:
        door.give_back(Lane.BULK, load)


def test_a_place_is_given_back_by_who_leaves_the_queue() -> None:
    async def work() -> None:
        door = Admission(ServeOptions(max_bulk_texts=1), lambda: 0.0)

        async def enter() -> None:
            async with inside(door, 1):
                await asyncio.Event().wait()

        tasks = [asyncio.ensure_future(enter()) for _ in range(3)]
        await until(lambda: door.waiting_texts == 2)
        assert door.queued(Lane.BULK) == Load(3, 15)
        tasks[1].cancel()
        await until(lambda: door.waiting_texts == 1)
        tasks[0].cancel()
        await until(lambda: door.waiting_texts == 0)
        assert (door.inside[Lane.BULK], door.waiting_texts) == (1, 0)
        assert (door.tokens_inside[Lane.BULK], door.waiting_tokens) == (5, 0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert door.inside[Lane.BULK] == door.tokens_inside[Lane.BULK] == 0

    asyncio.run(work())


def test_one_who_was_let_in_and_left_at_once_lets_the_next_in() -> None:
    async def work() -> None:
        door = Admission(ServeOptions(max_bulk_texts=1), lambda: 0.0)
        leave = asyncio.Event()

        async def enter() -> None:
            async with inside(door, 1):
                await leave.wait()

        first, second, third = (asyncio.ensure_future(enter()) for _ in range(3))
        await until(lambda: door.waiting_texts == 2)
        leave.set()
        await until(lambda: first.done())
        second.cancel()  # its turn may have come, and its task has not run yet
        await asyncio.gather(second, third, return_exceptions=True)
        assert (door.inside[Lane.BULK], door.waiting_texts) == (0, 0)

    asyncio.run(work())


@pytest.mark.parametrize("bounds", [{"max_bulk_texts": 3}, {"max_queued_tokens": 15}])
def test_who_reaches_a_bound_enters(bounds: dict[str, int]) -> None:
    async def work() -> None:
        door = Admission(ServeOptions(max_wait_seconds=0.001, **bounds), lambda: 0.0)
        async with inside(door, 2), inside(door, 1):
            with pytest.raises(HTTPError, match="come again"):
                await door.take(Lane.BULK, Load(1, 1))

    asyncio.run(work())


def test_bulk_waits_only_so_long() -> None:
    async def work() -> None:
        door = Admission(ServeOptions(max_bulk_texts=1, max_wait_seconds=0.001), lambda: 2.0)
        async with inside(door, 1):
            with pytest.raises(HTTPError, match="come again") as caught:
                await door.take(Lane.BULK, Load(1, 3))
        assert caught.value.status == 429
        assert caught.value.retry_seconds == (5 + 3) / 2  # tokens by the measured rate

    asyncio.run(work())


def test_bulk_comes_again_while_too_much_is_unread() -> None:
    async def work() -> None:
        door = Admission(ServeOptions(max_unread_bytes=10), lambda: 0.0)
        door.unread.num_bytes = 10
        async with inside(door, 1):
            door.unread.num_bytes = 11
            with pytest.raises(HTTPError, match="have not read 11 bytes") as caught:
                await door.take(Lane.BULK, Load(1, 3))
            await door.take(Lane.QUERY, Load(1, 3))
        assert (caught.value.status, caught.value.retry_seconds) == (429, 1)
        assert door.inside == {Lane.BULK: 0, Lane.QUERY: 1}

    asyncio.run(work())


def test_what_is_unread_is_counted_for_all_models(make_client: MakeClient) -> None:
    client = make_client({name: fake_embedder() for name in "ab"})
    client.application.unread.num_bytes = (1 << 30) + 1
    for model in "ab":
        texts = {"model": model, "input": ["c"] * 100}
        assert client.refuse("/v1/embeddings", texts)[0] == 429
        client.post("/v1/embeddings", {"model": model, "input": "c"})


def test_tokens_are_counted_at_the_door(make_client: MakeClient, engine: FakeEngine) -> None:
    client = make_client({"embed": fake_embedder(engine)}, max_queued_tokens=40)
    model = client.application.catalog.find("embed", "embed")
    for _ in range(20):  # a token of this model is a character
        client.post("/v1/embeddings", {"input": ["a" * 30, "b" * 30]})
    load = model.estimate.load_of(["c" * 20] * 3, 60)
    assert load.texts == 3
    assert 60 <= load.tokens <= 63

    async def work() -> None:
        async with client.http() as http:

            def send(*texts: str) -> asyncio.Future[Any]:
                return asyncio.ensure_future(
                    http.post("/v1/embeddings", json={"input": list(texts)})
                )

            engine.hold()
            inside = send("a" * 30, "b")
            await until(lambda: model.admission.inside[Lane.BULK] == 2)
            waiting = send("c" * 10, "d")  # few texts, but more tokens than there is place for
            await until(lambda: model.admission.waiting_texts == 2)
            page = (await http.get("/metrics")).text
            [queued] = re.findall(r'queued_tokens{model="embed",lane="bulk"} (\d+)', page)
            assert 40 <= int(queued) <= 47
            engine.release()
            assert (await inside).status_code == (await waiting).status_code == 200

    client.run(work())


def test_the_rate_is_that_of_late() -> None:
    rate = Rate()
    assert rate.at(3, 0.03) == 0.0  # the first batch takes long
    assert rate.at(1000, 1.25) == 800
    assert rate.at(1200, 1.5) == 800
    assert rate.at(101_000, 2.25) == 100_000
    assert rate.at(111_000, 7.25) == 2000  # queries
    assert rate.at(211_000, 8.25) == 100_000


def test_a_model_tells_seconds_when_it_has_computed_for_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = client.application.catalog.find("embed", "embed")
    client.post("/v1/embeddings", {"input": "a"})
    model.admission.tokens_inside.update({Lane.QUERY: 200, Lane.BULK: 800})
    assert model.admission.seconds_of_work == 0.0
    monkeypatch.setattr(catalog, "computed", lambda session: (500, 2.0))
    assert model.admission.seconds_of_work == pytest.approx(4.0)
    model.admission.tokens_inside.update(dict.fromkeys(Lane, 0))


def test_the_load_is_what_waits_for_an_answer(client: Client, engine: FakeEngine) -> None:
    async def work() -> None:
        async with client.http() as http:
            engine.hold()
            waiting = asyncio.ensure_future(http.post("/embed", json={"inputs": "a"}))
            await until(lambda: engine.batches)
            assert (await http.get("/load")).json() == {"server_load": 1}
            engine.release()
            await waiting
            assert (await http.get("/load")).json() == {"server_load": 0}

    client.run(work())


def test_token_ids_are_counted_as_they_are() -> None:
    estimate = TokenEstimate()
    assert estimate.load_of([[1, 2, 3], [4]], 4) == Load(2, 4)
    estimate.learn([[1, 2, 3]], 3, 3)
    assert estimate.load_of(["a" * 8], 8) == Load(1, 3)  # as before any text
    estimate.learn([("q", "d" * 95)], 96, 99)
    assert estimate.load_of([("q", "abc")], 4) == Load(1, 5)


def test_a_deadline_drops_the_texts(client: Client, engine: FakeEngine) -> None:
    engine.hold()
    answer = client.send(
        "POST", "/v1/embeddings", {"input": ["a"] * 400}, headers={"request-timeout-ms": "20"}
    )
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    engine.release()
    client.post("/v1/embeddings", {"input": "b"})
    num_texts = sum(batch.num_seqs for batch in engine.batches)
    assert num_texts < 400  # those in flight were computed, the others dropped


def test_the_earliest_deadline_counts() -> None:
    assert seconds_left({}, 100.0) is None
    assert seconds_left({"request-timeout-ms": "1500"}, 100.0) == 1.5
    both = {"request-timeout-ms": "5000", "request-deadline-ms": "101000"}
    assert seconds_left(both, 100.0) == pytest.approx(1.0)
    assert seconds_left({"x-stainless-read-timeout": "2"}, 100.0) == 2
    assert seconds_left({"request-deadline-ms": "99000"}, 100.0) == 0
    assert seconds_left({"request-deadline-ms": "1"}, 1e9) is None  # the clocks differ
    for wrong in ("", "soon", "nan", "inf", "-1"):
        assert seconds_left({"request-timeout-ms": wrong}, 100.0) is None


class Connection:
    """A connection whose server offers more than messages; no body is there yet."""

    def __init__(self) -> None:
        self.gone = asyncio.get_running_loop().create_future()

    def take_body(self) -> None:
        return None

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("tells", [False, True], ids=["by receive", "by the connection"])
def test_a_client_that_leaves_costs_nothing_more(
    client: Client, engine: FakeEngine, tells: bool
) -> None:
    application = client.application
    application._log = log = Mock(AccessLog)
    body = b'{"input": [' + b",".join([b'"abc"'] * 500) + b"]}"
    messages = iter([{"type": "http.request", "body": body}])
    gone = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> Any:
        for message in messages:
            return message
        assert not tells, "a task watches a connection that tells"
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def work() -> None:
        engine.hold()
        connection = Connection()
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "headers": [],
            "client": None,
            "extensions": {DIRECT: {"connection": connection}} if tells else {},
        }
        answering = asyncio.ensure_future(application(scope, receive, send))
        await until(lambda: len(engine.batches) == 2)
        gone.set()
        connection.gone.set_result(None)
        await answering
        engine.release()

    client.run(work())
    assert sent == []
    [line] = log.write.call_args.args
    assert (line.status, line.model, line.bytes_in) == (499, "embed", len(body))
    client.post("/v1/embeddings", {"input": "b"})
    assert sum(batch.num_seqs for batch in engine.batches) < 500
    assert application.metrics.failures["gone"] == 1


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer k2"},
        {"authorization": "bearer Bearer k2"},
        {"authorization": "Api-Key k2"},
        {"x-api-key": "k2"},
        {"api-key": "k2"},
        {"authorization": "Bearer k2 "},
        {"authorization": " \tBearer \tk2\t "},
        {"x-api-key": " k2 "},
    ],
)
def test_keys_in_every_spelling(make_client: MakeClient, header: dict[str, str]) -> None:
    client = make_client(api_keys=("k1", " k2\t"))
    assert client.send("POST", "/embed", {"inputs": "a"}, headers=header).status_code == 200


def test_a_missing_or_wrong_key(make_client: MakeClient) -> None:
    client = make_client(api_keys=("secret",))
    for headers, words in (({}, "is missing"), ({"authorization": "Bearer secre"}, "is wrong")):
        answer = client.send("POST", "/v1/embeddings", {"input": "a"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert words in answer.json()["error"]["message"]
        assert "secret" not in answer.text
    for path in ("/health", "/ready", "/metrics", "/ping", "/openapi.json"):
        assert client.send("GET", path).status_code == 200


@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "input"), ("/v1/rerank", "query")])
def test_an_error_is_told_where_voyages_client_reads_it(
    make_client: MakeClient, path: str, field: str
) -> None:
    """Else it takes a wrong key and 429 for a bug of the server, and does not come again."""
    client = make_client(api_keys=("right",))
    for key, status, param in (("right", 400, field), ("wrong", 401, None)):
        answer = client.send("POST", path, {}, headers={"authorization": f"Bearer {key}"})
        error = answer.json()
        assert (answer.status_code, error["error"]["param"]) == (status, param)
        assert error["detail"] == error["error"]["message"]


def test_a_key_of_any_characters(make_client: MakeClient) -> None:
    """curl sends UTF-8, Python's http.client Latin-1."""
    client = make_client(api_keys=("schlüssel", "ключ"))
    for key, encoding in (("schlüssel", "utf-8"), ("schlüssel", "latin-1"), ("ключ", "utf-8")):
        sent: Any = {"authorization": b"Bearer " + key.encode(encoding)}
        assert client.send("GET", "/v1/models", headers=sent).status_code == 200


def test_a_key_behind_many_schemes_costs_no_more_than_one() -> None:
    class Counted(str):
        num_copies = 0

        def partition(self, separator: str, /) -> Any:
            Counted.num_copies += 1
            first, between, rest = super().partition(separator)
            return first, between, Counted(rest)

        def lstrip(self, chars: str | None = None, /) -> str:
            return Counted(super().lstrip(chars))

    with pytest.raises(HTTPError, match="is wrong"):
        Keys(["k"]).check({"authorization": Counted("bearer " * 1000 + "k")})
    assert Counted.num_copies == 2


def test_the_description_asks_for_a_key_where_one_is_needed(make_client: MakeClient) -> None:
    for keys, wanted in (((), []), (("k",), [{"key": []}])):
        paths = make_client(api_keys=keys).send("GET", "/openapi.json").json()["paths"]
        assert paths["/v1/embeddings"]["post"]["security"] == wanted
        assert ("401" in paths["/v1/embeddings"]["post"]["responses"]) is bool(keys)
        assert paths["/health"]["get"]["security"] == []


def test_who_may_be_reached_by_anybody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlib.serve.http.server.serve", lambda *_: None)
    for host, keys, is_warned in (
        ("127.0.0.1", "", False),
        ("0.0.0.0", "", True),
        ("0.0.0.0", "k1,k2", False),
    ):
        monkeypatch.setenv("EMBEDLIB_API_KEYS", keys)
        command = ["serve", "model", "--host", host]
        told = CliRunner().invoke(main, command, catch_exceptions=False).stderr
        assert (f"Warning: anybody who reaches http://{host}:8080 may use it" in told) is is_warned


def test_pages_of_other_origins_are_not_let_in(client: Client) -> None:
    origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    asked = client.send("OPTIONS", "/v1/embeddings", headers=origin)
    assert asked.status_code == 405
    sent = client.send("POST", "/v1/embeddings", {"input": "a"}, headers=origin)
    for answer in (asked, sent):
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain;charset=UTF-8", "multipart/form-data; boundary=x", ""),
        "Application/X-WWW-Form-Urlencoded",
    ],
)
def test_what_a_page_of_another_site_sends_unasked_is_refused(
    kind: str, client: Client, engine: FakeEngine
) -> None:
    """Browsers ask before they send JSON or a key to another site, and here get no permission."""

    def status(site: str, kind: str, **headers: str) -> int:
        sent = {"sec-fetch-site": site, "content-type": kind, **headers}
        return client.send("POST", "/embed", b'{"inputs": "a"}', headers=sent).status_code

    before = len(engine.batches)
    assert status("cross-site", kind) == 403
    assert len(engine.batches) == before
    assert status("same-origin", kind) == 200
    assert status("cross-site", "application/json") == 200
    assert status("cross-site", kind, authorization="Bearer k") == 200
    assert status("cross-site", kind, **{"x-api-key": "k"}) == 200
    page = client.send("GET", "/ui", headers={"sec-fetch-site": "cross-site"})  # a link to it
    assert page.status_code == 200


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nk1\n\n k2 \n")
    assert read_keys(path) == ("k1", "k2")
    path.write_text("k1\n  # indented\n", encoding="utf-8-sig")
    assert read_keys(path) == ("k1",)
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="has no API key"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "other")
    Keys(()).check({})


def test_the_header_host() -> None:
    for host in ("localhost:80", "127.0.0.1", "[::1]:8080", "LOCALHOST"):
        check_host("POST", host, ("localhost", "127.0.0.1", "::1"))
    with pytest.raises(HTTPError, match=r"evil\.example' is not served here") as refused:
        check_host("GET", "evil.example", ("localhost",))
    assert OPENAI.respond(refused.value).status == 421
    check_host("POST", "evil.example", None)
    check_host("POST", "api.example", ("API.example",))
    for address in ("10.1.2.3:8080", "127.0.0.1", "[fd00::1]:8080"):  # probes of Kubernetes, Docker
        for method in ("GET", "HEAD"):
            check_host(method, address, ("api.example",))
        with pytest.raises(HTTPError, match="is not served here"):  # a page may send it
            check_host("POST", address, ("api.example",))
    with pytest.raises(HTTPError, match="is not served here"):
        check_host("GET", "10.1.2.3.example", ("api.example",))


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ((), ("localhost", "127.0.0.1", "::1", "127.0.0.1")),
        (
            ("--allow-host", "api.example"),
            ("localhost", "127.0.0.1", "::1", "127.0.0.1", "api.example"),
        ),
        (("--host", "0.0.0.0"), None),
        (("--host", "0.0.0.0", "--allow-host", "api.example"), ("api.example",)),
    ],
)
def test_an_allowed_host_is_added_to_those_of_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], allowed: tuple[str, ...] | None
) -> None:
    served: list[Application] = []
    monkeypatch.setattr(
        "embedlib.serve.http.server.serve", lambda application, *_: served.append(application)
    )
    assert CliRunner().invoke(main, ["serve", "model", *given]).exit_code == 0
    assert served[0].options.allowed_hosts == allowed


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        (("--name", "a=m", "--name", "b=m"), "", "--name 'b=m': m is 'a' already"),
        (("n", "m"), "", "m is there twice; give it once"),
        ((), " , ", "EMBEDLIB_API_KEYS is set and has no API key; unset it, or write one"),
    ],
)
def test_what_would_be_dropped_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], keys: str, message: str
) -> None:
    monkeypatch.setenv("EMBEDLIB_API_KEYS", keys)
    done = CliRunner().invoke(main, ["serve", "m", *given])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_server_listens_before_its_models_are_loaded() -> None:
    application = create_app({"a": fake_embedder(), "b": "no/such-model-folder"})
    broken = application.catalog.find("b", "embed")
    client = Client(application)
    assert client.send("GET", "/health").status_code == 200
    assert client.send("GET", "/ready").status_code == 503
    status, error = client.refuse("/v1/embeddings", {"input": "a", "model": "a"})
    assert status == 503
    assert "is loading" in error["error"]["message"]

    def fail(tell: Any) -> Any:
        raise ConfigError("there is no such model")

    broken.load = fail
    client.start()
    assert client.post("/v1/embeddings", {"input": "a", "model": "a"})
    status, error = client.refuse("/v1/embeddings", {"input": "a", "model": "b"})
    assert (status, error["error"]["message"]) == (
        503,
        "b could not be loaded: there is no such model",
    )
    ready = client.send("GET", "/ready")
    assert ready.status_code == 503
    assert ready.json()["models"] == {"a": "ready", "b": "there is no such model"}
    client.close()


def test_a_model_that_cannot_be_loaded_takes_no_requests_of_other_tasks(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    folder = shutil.copytree(tiny_folder("bert-reranker"), tmp_path / "reranker")
    (folder / "model.safetensors").unlink()
    client = Client(create_app({"rank": str(folder), "embed": fake_embedder()}))
    asked: list[tuple[str, Any]] = [
        ("/embed", {"inputs": "a"}),
        ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}),
    ]
    for path, body in asked:  # before any is loaded: one of them may be meant
        answer = client.send("POST", path, body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    client.start()
    for path, body in asked:
        client.post(path, body)
    status, error = client.refuse("/rerank", {"query": "a", "documents": ["b"]})
    assert (status, error["error"]["message"].partition(":")[0]) == (
        503,
        "rank could not be loaded",
    )
    client.close()


def test_a_model_whose_files_cannot_be_read_may_be_the_one_that_is_meant(tmp_path: Path) -> None:
    client = Client(create_app({"lost": str(tmp_path / "nowhere"), "embed": fake_embedder()}))
    client.start()
    client.post("/v1/embeddings", {"input": "a", "model": "embed"})
    asked: list[tuple[str, Any]] = [
        ("/embed", {"inputs": "a"}),  # its vectors may have been those of the other
        ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
    ]
    for path, body in asked:
        status, error = client.refuse(path, body)
        assert status == 503
        assert "lost could not be loaded: no model folder" in str(error)
    client.close()


def test_a_lone_model_that_cannot_be_loaded_is_logged_where_its_server_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(create_app({"lost": str(tmp_path / "nowhere")}))
    client.start()
    client.close()
    [message] = caplog.messages
    assert message.startswith("lost: no model folder")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (MemoryError(), "broken could not be loaded: MemoryError"),
        (AssertionError(), "broken could not be loaded: AssertionError"),
        (GeneratorExit("a panic"), "RuntimeError: GeneratorExit: a panic"),
    ],
)
def test_a_model_whose_load_has_a_bug_is_told(error: BaseException, reason: str) -> None:
    def load(tell: Any) -> Any:
        raise error

    application = Application([ServedModel("broken", load, ServeOptions())], ServeOptions())
    client = Client(application)
    client.start()
    status, answer = client.refuse("/v1/embeddings", {"input": "a"})
    assert status == 503
    assert reason in answer["error"]["message"]
    told = client.send("GET", "/v1/models/broken").json()
    assert told["state"] == "failed"
    assert told["error"] in reason
    assert "task" not in told
    assert application.failure is not None
    client.close()


def test_a_model_that_is_loaded_after_the_end_is_closed() -> None:
    goes_on, embedder = threading.Event(), fake_embedder()
    application = create_app({"late": embedder})
    application.end_server = Mock()
    served = application.catalog.find("late", "embed")
    served.load = lambda tell: goes_on.wait() and embedder
    client = Client(application)

    async def end() -> None:
        await application.start()
        await until(lambda: application.catalog.is_loading)
        await application.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "LOAD_SECONDS", 0.0)
        client.run(end())
    assert application.catalog.is_loading
    assert served.session is None
    goes_on.set()
    client.run(application.catalog.close())  # waits for the load
    assert not application.catalog.is_loading
    client.close()
    with pytest.raises(ClosedError):
        embedder.encode("a")


def test_a_body_in_many_parts_keeps_one_timer() -> None:
    async def work() -> None:
        with Endable() as block:
            for _ in range(100):
                block.end_after(60, Mock()).cancel()
            assert len(block._timers) == 1

    asyncio.run(work())


def test_a_block_that_was_ended_does_not_wait_for_the_garbage_collector() -> None:
    async def end() -> None:
        with Endable() as block:
            block.end(ClientGoneError())
            await asyncio.Event().wait()

    async def work() -> list[Any]:
        with suppress(ClientGoneError):
            await end()
        return [each for each in gc.get_objects() if isinstance(each, ClientGoneError)]

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(work()) == []
    finally:
        gc.enable()


def test_a_model_that_cannot_be_closed_keeps_no_other_open() -> None:
    first, second = fake_embedder(), fake_embedder()
    stream = io.StringIO()
    application = create_app({"first": first, "second": second}, log=AccessLog(stream))
    client = Client(application)
    client.start()
    client.send("GET", "/health")

    def close() -> None:
        raise CloseTimeoutError("a batch has not ended")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "close", close)
        with pytest.raises(CloseTimeoutError):
            client.run(application.close())
    assert "/health" in stream.getvalue()
    with pytest.raises(ClosedError):
        second.encode("a")
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("embedlib-serve")]
    client.close()


def test_a_client_that_leaves_with_the_last_step_ends_nothing_more() -> None:
    async def work() -> str:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.set_result(None)
        with Endable() as block:
            block.end_without_client(Mock(gone=gone), Mock())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "answered"

    assert asyncio.run(work()) == "answered"


def test_a_server_that_drains_is_not_ready_and_serves_on(client: Client) -> None:
    assert client.send("GET", "/ready").json()["status"] == "ready"
    client.application.drain()
    assert client.send("GET", "/ready").json()["status"] == "draining"
    assert client.send("GET", "/ready").status_code == 503
    client.post("/embed", {"inputs": "a"})


def test_what_is_cut_off_at_the_end_is_told_to_come_again(
    client: Client, engine: FakeEngine
) -> None:
    async def work() -> httpx.Response:
        async with client.http() as http:
            sent = asyncio.create_task(http.post("/embed", json={"inputs": "a"}))
            await until(lambda: engine.batches)
            client.application.drain()
            sent.cancel()  # as uvicorn does when `timeout_graceful_shutdown` is over
            return await sent

    engine.hold()
    answer = client.run(work())
    assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy")


def test_a_lost_gpu_fails_the_probe_that_restarts_the_process(
    client: Client, engine: FakeEngine
) -> None:
    assert client.send("GET", "/health").json()["status"] == "ok"
    engine.lost = "the GPU is lost (an error); restart the process"  # type: ignore[attr-defined]
    for path in ("/health", "/ping", "/"):
        answer = client.send("GET", path)
        assert answer.status_code == 503
        assert answer.json()["status"] == "lost"
        assert answer.json()["models"] == {"embed": engine.lost}  # type: ignore[attr-defined]
    answer = client.send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"]["embed"] == engine.lost  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", ["add", "next_batch"])
def test_a_model_whose_thread_has_met_a_bug_fails_the_probe_that_restarts_the_process(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise IndexError("list index out of range")

    client = make_client({"bug": fake_embedder(), "other": fake_embedder()})
    thread = pipeline_of(client.application.catalog.find("bug", "embed").open())._manager
    monkeypatch.setattr(thread._scheduler, step, fail)
    status, _ = client.refuse("/embed", {"inputs": "a", "model": "bug"})
    assert status >= 500
    assert client.send("POST", "/embed", {"inputs": "a", "model": "bug"}).status_code == 503
    assert client.send("POST", "/embed", {"inputs": "a", "model": "other"}).status_code == 200
    why = "this model has stopped: list index out of range; restart the process"
    for path, code in (("/health", 503), ("/ready", 503)):
        answer = client.send("GET", path)
        assert answer.status_code == code
        assert answer.json()["models"]["bug"] == why


def test_what_is_refused_does_not_wait_for_the_garbage_collector(client: Client) -> None:
    """A server seldom calls it, and an error leads to the frames that have the body."""
    asked: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
        ({"inputs": 1}, {}),
        ({"inputs": ["b" * 40, "a"], "truncate": False}, {}),
        ({"inputs": "a", "model": "rank"}, {}),
        ({"inputs": "a"}, {"request-timeout-ms": "0"}),
    )
    gc.collect()
    gc.disable()
    try:
        for body, headers in asked:
            client.refuse("/embed", body, headers=headers)
            left = [each for each in gc.get_objects() if isinstance(each, HTTPError)]
            assert left == [], body
    finally:
        gc.enable()


def test_failures_are_counted_by_their_reason(client: Client, engine: FakeEngine) -> None:
    client.refuse("/embed", {"inputs": "a"}, headers={"request-timeout-ms": "0"})
    engine.fail_next(EngineRunError("failed"))
    client.refuse("/embed", {"inputs": "a"})
    metrics = client.send("GET", "/metrics").text
    for reason, count in (("timeout", 1), ("failed", 1), ("unavailable", 0)):
        assert f'embedlib_failures_total{{reason="{reason}"}} {count}' in metrics


def test_a_unix_socket_is_taken_from_nobody(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with _own_socket(path) as sockets:
        assert sockets is not None
        with pytest.raises(ConfigError, match="is listened on by another"), _own_socket(path):
            pass
        sockets[0].close()  # killed, say: the next one takes its place
        with _own_socket(path):
            pass
    assert not path.exists()
    with _own_socket(path), socket.socket(socket.AF_UNIX) as other:
        path.unlink()
        other.bind(str(path))
    assert path.exists(), "it is another server's"


def test_metrics_are_there_from_the_start(client: Client) -> None:
    before = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="query"} 0' in before
    client.post("/v1/embeddings", {"input": ["a", "b" * 40]})
    client.refuse("/v1/embeddings", {})
    after = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="bulk"} 2' in after
    assert 'embedlib_truncated_total{model="embed",lane="bulk"} 1' in after
    assert 'embedlib_failures_total{reason="invalid"} 1' in after
    assert 'embedlib_duration_seconds_count{model="embed",lane="bulk"} 1' in after
    for line in ("te_request_success 1", "te_request_count 2", "te_embed_count 2"):
        assert f"\n{line}\n" in after
    [seconds] = re.findall(r"embedlib_duration_seconds_sum{model=.embed.,lane=.bulk.} (.*)", after)
    assert f"te_request_duration_sum {seconds}" in after
    names = {line.rpartition(" ")[0] for line in before.splitlines()}
    assert client.send("GET", "/ui/").status_code == 308
    later = client.send("GET", "/metrics").text
    assert 'embedlib_responses_total{status="3xx"} 1' in later
    for text in (after, later):
        assert names == {line.rpartition(" ")[0] for line in text.splitlines()}


def test_the_name_of_a_model_is_quoted_in_metrics(make_client: MakeClient) -> None:
    page = make_client({'a"\\\n': fake_embedder()}).send("GET", "/metrics").text
    assert 'embedlib_requests_total{model="a\\"\\\\\\n",lane="query"} 0\n' in page


def test_an_engine_that_fails_is_no_bug_of_the_server(client: Client, engine: FakeEngine) -> None:
    engine.fail_next(EngineRunError("the engine has failed"))
    status, error = client.refuse("/v1/embeddings", {"input": "a"})
    assert status == 500
    assert error["error"]["message"].endswith("the engine has failed")
    engine.fail_next(EngineRunError("the engine has failed"))
    status, error = client.refuse("/embed", {"inputs": "a"})
    assert (status, error["error_type"]) == (424, "Backend")


def test_an_id_of_a_request_that_is_none_is_replaced(client: Client) -> None:
    for given, is_kept in (("r" * 128, True), ("r" * 129, False), ("a\tb", False)):
        answer = client.send("GET", "/health", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is is_kept


def test_a_bug_is_logged_and_its_text_not_told(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(ServedModel, "open", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.send("POST", "/embed", {"inputs": "a"}, headers={"x-request-id": "r7"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] == "r7"
    assert "request r7" in caplog.text


def test_a_line_for_each_request_without_its_texts(engine: FakeEngine, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as stream:
        options = ServeOptions(data_dir=str(tmp_path / "data"))
        models = {"embed": fake_embedder(engine)}
        application = create_app(models, log=AccessLog(stream), options=options)
        client = Client(application)
        client.start()
        body = b'{"input": "hidden"}'
        client.send("POST", "/v1/embeddings?key=abc", body, headers={"x-api-key": "k"})
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"hidden" * 1000)}}
        assert client.send("POST", "/v1/files", **form).status_code == 200
        client.send("GET", "/" + "p" * 300, headers={"user-agent": "u" * 300})
        client.close()
        stream.seek(0)
        [line, upload, long] = stream.read().splitlines()
    told = json.loads(long)
    assert (len(told["route"]), len(told["user_agent"]), "error" in told) == (200, 200, False)
    assert json.loads(line)["bytes_in"] == len(body)
    assert json.loads(upload)["bytes_in"] > 6000
    assert "hidden" not in upload
    assert "hidden" not in line
    assert '"k"' not in line
    assert '"status":200' in line
    assert '"lane":"query"' in line
    assert '"tokens":6' in line


def test_a_stream_of_few_letters_gets_every_line() -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, "ascii")
    log = AccessLog(stream)
    log.write({"route": "/\xe9\u20ac\n"})
    log.close(WAIT_SECONDS)
    assert content.getvalue() == b'{"route": "/\\u00e9\\u20ac\\n"}\n'


def test_lines_are_dropped_and_counted_while_their_reader_stalls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embedlib.serve.logs.line_writer.MAX_LINES", 2)
    has_begun, may_go_on = threading.Event(), threading.Event()

    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            has_begun.set()
            assert may_go_on.wait(WAIT_SECONDS)
            return super().write(text)

    stream = Stalled()
    log = AccessLog(stream)
    log.write({"n": 0})
    assert has_begun.wait(WAIT_SECONDS)
    for number in range(1, 6):
        log.write({"n": number})
    may_go_on.set()
    log.close(WAIT_SECONDS)
    lines = stream.getvalue().splitlines()
    assert lines == ['{"n":0}', '{"n":1}', '{"n":2}', '{"dropped_lines":3}']


def test_lines_that_a_full_disk_has_refused_are_told_when_it_has_room() -> None:
    class Full(io.StringIO):
        """Takes nothing at first."""

        num_refused = 0

        def flush(self) -> None:
            if self.num_refused < 2:
                self.num_refused += 1
                self.truncate(self.seek(0))
                refused.release()
                raise OSError(errno.ENOSPC, "No space left on device")

    refused = threading.Semaphore(0)
    stream = Full()
    log = AccessLog(stream)
    for number in range(2):
        log.write({"n": number})
        assert refused.acquire(timeout=WAIT_SECONDS)
    log.write({"n": 2})
    log.close(WAIT_SECONDS)
    assert stream.getvalue().splitlines() == ['{"n":2}', '{"dropped_lines":2}']


@pytest.mark.parametrize("step", ["wait", "clear"])
def test_the_end_of_a_log_is_seen_at_whatever_moment_it_comes(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Here right behind the time in which lines are gathered, or a step later."""
    stream = io.StringIO()
    log = AccessLog(stream)
    event = log._closed if step == "wait" else log._has_lines
    take_step = getattr(event, step)

    def close_first(*seconds: float) -> bool:
        log._closed.set()
        log._has_lines.set()
        return step == "clear" and take_step()

    turns = Mock(side_effect=[True])  # a second one would wait for ever
    monkeypatch.setattr(event, step, close_first)
    monkeypatch.setattr(log._has_lines, "wait", turns)
    log.write({"n": 0})
    assert log._thread is not None
    log._thread.join(WAIT_SECONDS)
    assert stream.getvalue() == '{"n":0}\n'
    assert turns.call_count == 1


def test_a_line_whose_thread_cannot_be_started_is_written_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stream = io.StringIO()
    log = AccessLog(stream)
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", refuse)
        with pytest.raises(EngineBuildError, match="no more threads can be started"):
            log.write({"n": 0})
    log.write({"n": 1})
    log.close(WAIT_SECONDS)
    assert stream.getvalue().splitlines() == ['{"n":0}', '{"n":1}']


def test_the_access_log_of_a_process_without_a_standard_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    log = AccessLog()
    log.write({"n": 0})
    log.close(WAIT_SECONDS)


def test_faults_are_written_with_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with fault_log():
        logging.getLogger("embedlib").info("a step")
        try:
            raise KeyError("a bug")
        except KeyError:
            logging.getLogger("embedlib").exception("request %s", "r7")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "request r7"
    assert lines[-1] == "KeyError: 'a bug'"
    assert logging.getLogger().handlers == []


def test_a_fault_that_cannot_be_written_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, limit_threads: Callable[[int], list[str]]
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    limit_threads(0)
    with fault_log():
        logging.getLogger("embedlib").warning("%d", "no number")
        logging.getLogger("embedlib").warning("no thread can be started for this")


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_texts = 0; it must be 1 or more"):
        ServeOptions(max_texts=0)
    with pytest.raises(ConfigError, match="body_seconds = 'soon'"):
        ServeOptions(body_seconds="soon")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="api_keys: it must be a tuple"):
        ServeOptions(api_keys=("",))
    with pytest.raises(ConfigError, match="there is no model to serve"):
        create_app([])
    with pytest.raises(ConfigError, match=r"a model is called './\\udcff'; give it a name"):
        create_app(["./\udcff"])  # a folder whose name is not UTF-8; no answer could tell it
    [served] = create_app({"m": "./\udcff"}).catalog
    assert served.source == "./?"


def test_a_model_that_does_not_answer_is_not_ready(
    client: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.serve.operations.ANSWER_SECONDS", 0.01)
    engine.hold()
    answer = client.send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"]["embed"] == "it has not answered within 0.01 seconds"
    monkeypatch.undo()
    engine.release()
    assert client.send("GET", "/ready").status_code == 200


def test_silent_models_are_asked_at_once(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    all_asked = asyncio.Event()

    async def why_silent(model: ServedModel) -> str:
        asked.append(model.name)
        if len(asked) == 2:
            all_asked.set()
        await asyncio.wait_for(all_asked.wait(), WAIT_SECONDS)
        return "it is silent" if model.name == "b" else ""

    monkeypatch.setattr("embedlib.serve.operations._why_silent", why_silent)
    answer = make_client({name: fake_embedder() for name in "ab"}).send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"] == {"a": "ready", "b": "it is silent"}


def test_a_model_that_answered_lately_is_asked_nothing(
    client: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.serve.operations.CANARY_SECONDS", math.inf)
    client.post("/v1/embeddings", {"input": "a"})
    for _ in range(2):
        assert client.send("GET", "/ready").status_code == 200
    assert len(engine.batches) == 1
    monkeypatch.setattr("embedlib.serve.operations.CANARY_SECONDS", 0.0)
    assert client.send("GET", "/ready").status_code == 200
    assert len(engine.batches) == 2


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (QueueFullError("4,096 queries wait"), 429, "4,096 queries wait"),
        (MemoryError(), 429, "the server is out of memory; send fewer texts"),
        (ClosedError("the model was closed"), 503, "the model was closed"),
    ],
)
def test_what_passes_says_when_to_come_again(error: Exception, status: int, words: str) -> None:
    answer = describe(error, "input")
    assert (answer.status, answer.message) == (status, words)
    assert "retry-after" in dict(answer.headers())


def test_nobody_is_told_to_come_again_at_once() -> None:
    headers = dict(HTTPError.overloaded("a moment", 0.001).headers())
    assert headers == {"retry-after": "1", "retry-after-ms": "50"}


def test_ready_tells_why_a_model_does_not_answer(client: Client, engine: FakeEngine) -> None:
    engine.fail_next(EngineRunError("out of memory"))
    answer = client.send("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["models"]["embed"].endswith("out of memory")
    assert client.send("GET", "/ready").status_code == 200


def test_routes_of_jobs_are_described_where_there_are_jobs(client: Client) -> None:
    paths = client.send("GET", "/openapi.json").json()["paths"]
    assert "/v1/embeddings" in paths
    assert "/v1/batches" not in paths


def test_every_route_of_the_description_is_there(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(data_dir=str(tmp_path / "jobs"))
    description = client.send("GET", "/openapi.json").json()
    found = [(path, method) for path, item in description["paths"].items() for method in item]
    assert len(found) == len(ROUTES) - len(search.ROUTES)  # there is nothing to search
    for path, method in found:
        operation = description["paths"][path][method]
        asked = re.sub(r"\{(name|id)\}", "x", path)
        assert {each["name"] for each in operation["parameters"] if each["in"] == "path"} == set(
            re.findall(r"\{(\w+)\}", path)
        )
        answer = client.send(method.upper(), asked, b"{}" if method != "get" else None)
        is_openai = "/v1/" in path and path != "/v1/embed"  # which is Cohere's
        code = answer.json()["error"]["code"] if is_openai and answer.is_error else ""
        assert code != "no_route", path
        assert answer.status_code != 405, path
        statuses = set(operation["responses"])
        assert str(answer.status_code) in statuses, (path, method, answer.status_code)
