"""Lanes, and who may enter a model now, with engines that the test holds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from embedlib.engines.base import Lane
from embedlib.serve import ServeOptions
from embedlib.serve.errors import HTTPError
from embedlib.serve.models import catalog
from embedlib.serve.models.admission import Admission, Load
from embedlib.serve.models.estimate import Rate, TokenEstimate, count_chars
from embedlib.testing import FakeEngine, fake_embedder
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import until


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


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    async def work() -> None:
        door = Admission(ServeOptions(max_bulk_texts=4), lambda: 0.0)
        most, large, small = Load(3, 9), Load(4, 12), Load(1, 3)
        await door.take(Lane.BULK, most)
        first = asyncio.create_task(door.take(Lane.BULK, large))
        await until(lambda: door.waiting_texts == 4)
        second = asyncio.create_task(door.take(Lane.BULK, small))  # there is a place for it
        await until(lambda: door.waiting_texts == 5 or second.done())
        assert not second.done()
        door.give_back(Lane.BULK, most)
        await first
        assert not second.done()
        door.give_back(Lane.BULK, large)
        await second

    asyncio.run(work())


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


def test_texts_of_few_characters_are_no_measure_of_others() -> None:
    """Special tokens and prompts would make a question as large as all that a model works on."""
    estimate = TokenEstimate()
    estimate.learn([""] * 1000, 0, 2000)
    assert estimate.load_of(["a" * 8], 8) == Load(1, 3)  # as before any text
    estimate.learn(["a"] * 10, 10, 10_000)
    assert estimate.load_of(["a" * 14], 14) == Load(1, 1 + 1 + 40)


def test_both_texts_of_a_pair_are_counted() -> None:
    assert count_chars([("ab", "c"), ("", "de")]) == 5
    assert count_chars(["ab", "c"]) == count_chars([[7, 8], [9]]) == 3
