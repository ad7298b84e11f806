"""Asynchronous requests: their queue, their retries, their results."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from embedlib.engines.base import Lane
from embedlib.serve.jobs import request_run
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.database import open_database
from embedlib.serve.jobs.deliveries import as_time
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.requests import RequestStore, Result
from embedlib.testing import FakeEngine, fake_vector
from tests.ports import free_port
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import (
    FakeClock,
    add_file,
    batch_row,
    echo,
    error,
    input_of,
    ok,
    request_row,
    request_that,
    run,
    until,
)

MakeJobs = Callable[..., Jobs]


def submit(client: Client, model_input: Any, **fields: Any) -> str:
    answer = client.send("POST", "/async_predict", {"model_input": model_input, **fields})
    assert answer.status_code == 202, answer.text
    request_id: str = answer.json()["request_id"]
    return request_id


def state(client: Client, request_id: str) -> Any:
    """The status of a request when it has ended."""

    async def work() -> Any:
        async with client.http() as http:
            while True:
                found = (await http.get(f"/async_request/{request_id}")).json()
                if found["status"] not in ("QUEUED", "IN_PROGRESS"):
                    return found

    return client.run(work())


def test_a_request_is_answered_as_its_route_answers(keeper: Client, engine: FakeEngine) -> None:
    for model_input, fields, path in (
        ({"input": ["abc"]}, {}, "/v1/embeddings"),
        ({"inputs": "abc"}, {}, "/embed"),
        ({"query": "q", "texts": ["a", "b"]}, {}, "/rerank"),
        ({"query": "q", "documents": ["a", "b"]}, {}, "/rerank"),
        ({"inputs": "abc"}, {"path": "/predict"}, "/predict"),
    ):
        request_id = submit(keeper, model_input, **fields)
        found = state(keeper, request_id)
        assert found["status"] == "SUCCEEDED"
        assert found["webhook_status"] == "NO_WEBHOOK_PROVIDED"
        assert found["created_at"].endswith("Z")
        assert found["errors"] == []
        assert set(found) == {
            *("request_id", "model_id", "deployment_id", "status", "webhook_status"),
            *("created_at", "status_at", "errors"),
        }
        result = keeper.send("GET", f"/async_request/{request_id}/result").json()
        direct = keeper.post(path, model_input)
        if isinstance(direct, dict):
            assert set(result) == set(direct)
        else:
            assert result == direct
    assert engine.batches[0].lane is Lane.BULK
    assert keeper.send("GET", "/async_requests?status=DONE").status_code == 400
    listed = keeper.send("GET", "/async_requests?limit=2&status=SUCCEEDED").json()
    assert (len(listed["data"]), listed["has_more"]) == (2, True)
    assert keeper.send("GET", "/async_queue_status").json()["num_queued_requests"] == 0


def test_what_is_asked_for_is_what_is_kept(keeper: Client) -> None:
    """Without fields it is what Baseten documents."""

    def kept(model_input: Any, **fields: Any) -> tuple[object, ...]:
        request_id = submit(keeper, model_input, **fields)
        found = state(keeper, request_id)
        row = keeper.run(keeper.application._shared.jobs.requests.get(request_id))  # type: ignore[union-attr]
        assert found["status_at"] == as_time(row.status_at)
        assert row.not_before == row.created_at < row.status_at
        seconds = row.queue_until - row.created_at
        retries = row.max_attempts, row.delay_ms, row.max_delay_ms
        return found["model_id"], row.path, row.priority, seconds, *retries

    assert kept({"input": "a"}) == ("embed", "/v1/embeddings", 0, 600, 3, 1000, 5000)
    most = {
        "priority": 2,
        "max_time_in_queue_seconds": 259_200,
        "inference_retry_config": {
            "max_attempts": 10,
            "initial_delay_ms": 10_000,
            "max_delay_ms": 60_000,
        },
    }
    wrong = kept({"documents": []}, **most)
    assert wrong == ("", "/rerank", 2, 259_200, 10, 10_000, 60_000)
    assert kept({"input": "a"}, path="/embed_all")[1] == "/embed_all"


def test_a_request_with_a_webhook_waits_for_its_delivery(
    make_client: MakeClient, tmp_path: Path
) -> None:
    client = make_client(data_dir=str(tmp_path / "data"), webhook_hosts=("127.0.0.1",))
    nobody = f"http://127.0.0.1:{free_port()}/"
    request_id = submit(client, {"input": "a"}, webhook_endpoint=nobody)
    assert state(client, request_id)["webhook_status"] == "PENDING"


def test_a_list_has_20_requests_unless_told_otherwise(keeper: Client) -> None:
    for _ in range(21):
        submit(keeper, {"input": "a"})
    for query, length, has_more in (("", 20, True), ("?limit=100", 21, False)):
        page = keeper.send("GET", f"/async_requests{query}").json()
        ids = [each["request_id"] for each in page["data"]]
        assert (len(ids), page["has_more"]) == (length, has_more)
        assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
    for wrong in ("101", "0", "-1", "1.0", "²", "9" * 5000, ""):
        answer = keeper.send("GET", "/async_requests", params={"limit": wrong})
        assert answer.status_code == 400
        assert "it must be 1 to 100" in answer.json()["error"]


@pytest.mark.parametrize(
    "prefix", ["/production", "/development", "/environments/staging", "/deployment/d3"]
)
def test_vectors_are_those_of_the_route(keeper: Client, prefix: str) -> None:
    sent = keeper.send("POST", f"{prefix}/async_predict", {"model_input": {"input": "abc"}})
    request_id = sent.json()["request_id"]
    state(keeper, request_id)
    result = keeper.send("GET", f"/async_request/{request_id}/result").json()
    assert result["data"][0]["embedding"] == fake_vector(list(b"abc")).tolist()


@pytest.mark.parametrize(
    ("model_input", "code", "status"),
    [
        ({"input": "a", "model": "rank"}, "MODEL_INVALID_INPUT", 400),
        ({"input": "a", "dimensions": 99}, "MODEL_INVALID_INPUT", 400),
        ({}, "MODEL_INVALID_INPUT", 422),
    ],
)
def test_a_wrong_input_fails_at_once(
    keeper: Client, model_input: Any, code: str, status: int
) -> None:
    request_id = submit(keeper, model_input)
    found = state(keeper, request_id)
    assert found["status"] == "FAILED"
    assert found["errors"][0]["code"] == code
    answer = keeper.send("GET", f"/async_request/{request_id}/result")
    assert answer.status_code == status
    assert found["errors"][0]["message"] in answer.json()["error"]


def test_only_a_queued_request_is_cancelled(keeper: Client, engine: FakeEngine) -> None:
    engine.hold()

    async def work() -> None:
        async with keeper.http() as http:
            body = {"model_input": {"input": "abc"}}
            ids = [
                (await http.post("/async_predict", json=body)).json()["request_id"]
                for _ in range(65)
            ]
            found: dict[str, Any] = {}
            while found.get("num_in_progress_requests") != 64:
                found = (await http.get("/async_queue_status")).json()
            told = {"model_id": "", "deployment_id": "", "num_in_progress_requests": 64}
            assert found == {**told, "num_queued_requests": 1}
            last = (await http.delete(f"/async_request/{ids[-1]}")).json()
            first = (await http.delete(f"/async_request/{ids[0]}")).json()
            assert (last["canceled"], first["canceled"]) == (True, False)
            assert "only a QUEUED request can be cancelled" in first["message"]
            assert last["message"] == ""
            metrics = (await http.get("/metrics")).text
            assert 'jobs_ended_total{kind="async",state="cancelled"} 1' in metrics
            found = (await http.get(f"/async_request/{ids[-1]}")).json()
            assert found["status"] == "CANCELED"
            result = await http.get(f"/async_request/{ids[0]}/result")
            assert (result.status_code, "come again" in result.text) == (404, True)
            assert result.headers["retry-after"] == "1"
            result = await http.get(f"/async_request/{ids[-1]}/result")
            assert result.status_code == 404
            assert result.json()["error"] == "the request is CANCELED: there is no result"
            engine.release()

    keeper.run(work())


def test_lower_priorities_go_first(make_jobs: MakeJobs) -> None:
    asked: list[str] = []

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        asked.append(request_id)
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        for place, priority in enumerate((2, 0, 1, 0, 2)):
            await jobs.add_request(request_row(f"r{place}", priority=priority), b"{}")
        jobs.start()
        await until(lambda: len(asked) == 5)
        assert asked == ["r1", "r3", "r2", "r0", "r4"]
        await jobs.close()

    run(work())


def test_attempts_are_counted_and_a_busy_server_is_none(
    make_jobs: MakeJobs, clock: FakeClock
) -> None:
    times: list[float] = []
    start = clock.time
    answers = [
        error(429, "overloaded", retry_seconds=20.0),
        error(500, "failed"),
        error(503, "unavailable"),
        error(500, "failed"),
        error(500, "failed"),
    ]

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        times.append(clock.time - start)
        return answers[len(times) - 1]

    async def work() -> None:
        jobs = make_jobs(answer)
        await jobs.add_request(request_row("r", delay_ms=4000, max_delay_ms=5000), b"{}")
        jobs.start()

        async def has_ended() -> bool:
            clock.advance(0.5)
            return (await jobs.requests.get("r")).ended_at is not None

        await until(has_ended)
        row = await jobs.requests.get("r")
        assert (row.status, row.num_attempts) == ("FAILED", 2)
        assert row.error_code == "MODEL_PREDICT_ERROR"
        waits = [times[place + 1] - times[place] for place in range(4)]
        assert all(wait >= least for wait, least in zip(waits, (20, 4, 1, 5), strict=True))
        assert jobs.metrics.ended["async", "failed"] == 1
        await jobs.close()

    run(work())


@pytest.mark.parametrize(
    ("kind", "seconds", "num_attempts"),
    [
        *(("overloaded", 7.0, 0), ("unavailable", 7.0, 0)),
        ("not_loaded", 30.0, 0),  # it is asked seldom
        *(("failed", 2.0, 1), ("internal", 2.0, 1), ("timeout", 2.0, 1)),
    ],
)
def test_what_passes_is_tried_again(
    make_jobs: MakeJobs, clock: FakeClock, kind: str, seconds: float, num_attempts: int
) -> None:
    answers = [error(503, kind, retry_seconds=7.0)]

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        return answers.pop() if answers else ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        await jobs.add_request(request_row("r", delay_ms=2000), b"{}")
        begun = clock.time
        jobs.start()

        async def is_back() -> bool:
            return not answers and (await jobs.requests.get("r")).status == "QUEUED"

        await until(is_back)
        row = await jobs.requests.get("r")
        assert (row.not_before - begun, row.num_attempts) == (seconds, num_attempts)
        clock.advance(seconds)
        assert (await request_that(jobs, "r", "SUCCEEDED")).num_attempts == num_attempts
        assert jobs.metrics.ended["async", "done"] == 1
        await jobs.close()

    run(work())


def test_the_time_before_an_attempt_doubles() -> None:
    rows = [request_row("r", num_attempts=number) for number in range(4)]
    seconds = [request_run._seconds_to_wait(row, error(500, "failed")) for row in rows]
    assert seconds == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (404, "not_found", "MODEL_DOES_NOT_EXIST"),
        (504, "timeout", "MODEL_PREDICT_TIMEOUT"),
        (500, "failed", "MODEL_PREDICT_ERROR"),
        (500, "internal", "INTERNAL_SERVER_ERROR"),
        (400, "invalid", "MODEL_INVALID_INPUT"),
    ],
)
def test_what_failed_has_the_code_of_baseten(
    make_jobs: MakeJobs, status: int, kind: str, code: str
) -> None:
    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        return error(status, kind)

    async def work() -> None:
        jobs = make_jobs(answer)
        await jobs.add_request(request_row("r", max_attempts=1), b"{}")
        jobs.start()
        row = await request_that(jobs, "r", "FAILED")
        assert (row.http_status, row.error_code, row.error_message) == (status, code, kind)
        await jobs.close()

    run(work())


def test_a_result_that_cannot_be_kept_has_failed(
    make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_run, "MAX_RESULT_BYTES", 2)

    async def work() -> None:
        jobs = make_jobs()
        jobs.start()
        await jobs.add_request(request_row("small"), b"{}")
        await jobs.add_request(request_row("large"), b"[1]")
        assert (await request_that(jobs, "small", "SUCCEEDED", "FAILED")).status == "SUCCEEDED"
        row = await request_that(jobs, "large", "SUCCEEDED", "FAILED")
        assert (row.status, row.http_status) == ("FAILED", 413)
        assert (row.error_message or "").startswith("the result has 3 bytes, the limit is 2; send")
        await jobs.close()

    run(work())


def test_an_end_that_comes_before_the_first_step_leaves_no_coroutine(make_jobs: MakeJobs) -> None:
    async def work() -> None:
        jobs = make_jobs()
        await jobs.add_request(request_row("r"), b"{}")
        await jobs._worker._start_requests()
        await jobs.stop()
        gc.collect()  # which would tell of it
        assert (await jobs.requests.get("r")).status == "IN_PROGRESS"
        await jobs.close()

    run(work())


def test_a_bug_of_one_request_is_logged_and_the_others_run(
    make_jobs: MakeJobs, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        if request_id == "bug":
            raise KeyError("a bug")
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        jobs.start()
        for name in ("bug", "other"):
            await jobs.add_request(request_row(name), b"{}")
        await request_that(jobs, "other", "SUCCEEDED")
        row = await request_that(jobs, "bug", "FAILED")
        assert (row.http_status, row.error_code) == (500, "INTERNAL_SERVER_ERROR")
        assert jobs.metrics.ended["async", "failed"] == 1
        await jobs.close()

    run(work())
    assert "request bug" in caplog.text
    assert "KeyError: 'a bug'" in caplog.text


def test_a_request_that_waits_too_long_expires(make_jobs: MakeJobs, clock: FakeClock) -> None:
    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        return error(429, "overloaded", retry_seconds=30.0)

    async def work() -> None:
        jobs = make_jobs(answer)
        await jobs.add_request(request_row("r", queue_until=clock.time + 100), b"{}")
        jobs.start()
        await until(lambda: len(clock.waiting) > 0)

        async def has_ended() -> bool:
            clock.advance(10.0)
            return (await jobs.requests.get("r")).ended_at is not None

        await until(has_ended)
        row = await jobs.requests.get("r")
        assert (row.status, row.error_code) == ("EXPIRED", "REQUEST_EXPIRED")
        assert "max_time_in_queue_seconds = 100" in (row.error_message or "")
        assert row.ended_at is not None
        assert row.ended_at >= 1_000_100
        await until(lambda: jobs.metrics.ended["async", "expired"] == 1)
        await jobs.close()

    run(work())


def test_results_are_deleted_when_their_time_is_over(
    make_jobs: MakeJobs, clock: FakeClock, tmp_path: Any
) -> None:
    async def work() -> None:
        jobs = make_jobs(echo, keep_jobs_seconds=1000.0)
        clock.advance(1_000_000.0)
        jobs.start()
        await until(lambda: clock.waiting)  # it has looked for what is kept no longer
        clock.advance(-1_000_000.0)  # the machine's is put right
        await jobs.add_request(request_row("r"), b"{}")
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(1)), expires_at=1 << 40))
        async with jobs.upload() as upload:
            await upload.write(b"x")
            row = await upload.finish(filename="f", seconds=1000.0)
        await request_that(jobs, "r", "SUCCEEDED")
        assert (await jobs.result("r"))[1] == b"{}"

        async def is_gone() -> bool:
            clock.advance(20.0)
            return not (await jobs.files.page(after=None, limit=1)).rows

        await until(is_gone)
        with pytest.raises(Exception, match="--keep-jobs-hours"):
            await jobs.requests.get("r")
        assert (await jobs.batches.page(after=None, limit=1)).rows == []
        await until(lambda: not (tmp_path / "jobs" / "files" / row.id).exists())
        assert 1_001_000 <= clock.time < 1_100_000
        await jobs.close()

    run(work())


def test_what_runs_at_once_is_bounded_in_bytes(make_jobs: MakeJobs) -> None:
    running: list[str] = []
    go: list[asyncio.Event] = []

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        running.append(request_id)
        await go[0].wait()
        return ok(b"{}")

    async def work() -> None:
        go.append(asyncio.Event())
        jobs = make_jobs(answer)
        for place in range(5):
            await jobs.add_request(request_row(f"r{place}", num_bytes=24_000_000), b"{}")
        jobs.start()
        await until(lambda: len(running) >= 2)
        assert len(running) == 2  # 64 MiB, and a third would be more: it begins with the next look
        for number in range(3):
            await jobs.add_request(request_row(f"late{number}", num_bytes=24_000_000), b"{}")
            for _ in range(20):
                await jobs.count()
        assert running == ["r0", "r1", "r2"]
        go[0].set()
        await request_that(jobs, "late2", "SUCCEEDED")
        await jobs.close()

    run(work())


@pytest.mark.parametrize(("num_places", "num_running"), [(8, 2), (1, 1)])
def test_requests_leave_three_quarters_of_the_door_to_others(
    make_jobs: MakeJobs, num_places: int, num_running: int
) -> None:
    running: list[str] = []

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        running.append(request_id)
        return await asyncio.get_running_loop().create_future()

    async def work() -> None:
        jobs = make_jobs(answer, max_waiting_requests=num_places)
        for place in range(4):
            await jobs.add_request(request_row(f"r{place}"), b"{}")
        jobs.start()
        await until(lambda: len(running) >= num_running)
        await jobs.add_request(request_row("late"), b"{}")  # another look
        for _ in range(20):
            await jobs.count()
        assert len(running) == num_running
        await jobs.close()

    run(work())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RequestStore]:
    with closing(open_database(tmp_path / "jobs.sqlite3")) as connection:
        yield RequestStore(connection)


def test_the_next_requests_are_those_that_are_due(store: RequestStore) -> None:
    store.insert(request_row("late", 5.0, queue_until=9.0), body=b"{}")
    store.insert(request_row("soon", 5.0, not_before=9.5), body=b"{}")
    for place in range(3):
        store.insert(request_row(f"r{place}", 5.0, num_bytes=4), body=b"{}")
    taken = store.take(max_requests=9, max_bytes=3, now=9.0)
    assert [row.id for row in taken] == ["r0"]  # always one
    assert (store.get("r0").status, store.get("r0").status_at) == ("IN_PROGRESS", 9.0)
    assert [row.id for row in store.take(max_requests=1, max_bytes=99, now=9.0)] == ["r1"]
    assert store.expire(8.9) == 0
    assert store.expire(9.0) == 1
    assert store.get("late").status == "EXPIRED"
    assert store.count() == {"IN_PROGRESS": 2, "QUEUED": 2}


def test_a_request_that_has_ended_stays_as_it_is(store: RequestStore) -> None:
    for name, webhook_status in (("told", "PENDING"), ("plain", "NO_WEBHOOK_PROVIDED")):
        row = request_row(name, webhook="https://a/", webhook_status=webhook_status)
        store.insert(row, body=b"{}")
        store.take(max_requests=1, max_bytes=9, now=1_000_000.0)
        assert not store.cancel(name, 2_000_000.0, "")
        store.end(name, Result("SUCCEEDED", 200, b"[]", "m"), 3.0)
        store.end(name, Result("FAILED", 500, None, "m"), 4.0)
        store.put_back(name, not_before=0.0, num_attempts=9)
        row = store.get(name)
        assert (row.status, row.ended_at, row.num_attempts) == ("SUCCEEDED", 3.0, 0)
        assert (store.blob(name, "body"), store.blob(name, "result")) == (b"", b"[]")
    assert (store.get("told").webhook_at, store.get("plain").webhook_at) == (3.0, None)
    assert store.count_webhooks() == 1
    store.delete_ended(3.0)  # one of them is to be told yet
    left = store.page("", after=None, limit=9, is_descending=False).rows
    assert [row.id for row in left] == ["told"]
    store.give_up_webhook("told", "nobody listens")
    row = store.get("told")
    assert (row.status, row.webhook_status, row.webhook_at) == ("WEBHOOK_FAILED", "FAILED", None)
    assert (row.error_code, row.error_message) == ("WEBHOOK_FAILED", "nobody listens")


@pytest.mark.parametrize(
    ("given", "after"),
    [("PENDING", "CANCELED"), ("NO_WEBHOOK_PROVIDED", "NO_WEBHOOK_PROVIDED")],
)
def test_of_a_request_that_is_cancelled_nothing_is_told(
    store: RequestStore, given: Any, after: str
) -> None:
    store.insert(request_row("r", webhook="https://a/", webhook_status=given), body=b"{}")
    assert store.cancel("r", 3.0, "")
    row = store.get("r")
    assert (row.status, row.webhook_status, row.webhook_at) == ("CANCELED", after, None)


def test_a_failure_is_told_also_where_its_webhook_was_not_delivered(store: RequestStore) -> None:
    store.insert(request_row("r", webhook="https://a/", webhook_status="PENDING"), body=b"{}")
    store.end("r", Result("FAILED", 400, None, "m", "CODE", "a field is wrong"), 3.0)
    store.give_up_webhook("r", "nobody listens")
    row = store.get("r")
    assert (row.status, row.webhook_status, row.error_code) == ("FAILED", "FAILED", "CODE")
    assert row.error_message == "a field is wrong"


def test_webhooks_are_due_in_the_order_of_their_times(store: RequestStore) -> None:
    for place, host in enumerate("abbab"):
        row = request_row(f"r{place}", webhook=f"https://{host}/", webhook_at=9.0 - place)
        store.insert(row, body=b"{}")
    due = partial(store.due, max_per_host=2, max_bytes=99, now=9.0, but=[])
    assert [row.id for row in due(max_requests=9)] == ["r4", "r3", "r2", "r0"]
    assert [row.id for row in due(max_requests=2)] == ["r4", "r3"]


def test_the_room_of_what_was_deleted_is_given_back(make_jobs: MakeJobs, clock: FakeClock) -> None:
    async def work() -> None:
        jobs = make_jobs(keep_jobs_seconds=10.0)
        path = jobs._tools.folder.database

        def size() -> int:
            count = jobs._tools.thread._connection.execute("PRAGMA page_count")
            return int(count.fetchone()[0])

        jobs.start()
        before = await jobs._tools.thread.run(size)
        await jobs.add_request(request_row("r"), b"[" + b"1" * (1 << 20) + b"]")
        await request_that(jobs, "r", "SUCCEEDED")
        assert await jobs._tools.thread.run(size) > before + 200

        async def is_given_back() -> bool:
            clock.advance(20.0)
            return await jobs._tools.thread.run(size) < before + 20

        await until(is_given_back)
        await jobs.close()
        assert path.stat().st_size < 200 * 4096

    run(work())


def test_jobs_do_not_wait_until_room_can_be_given_back(
    make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are moved first, for which a full disk may have no room."""

    def shrink(store: RequestStore) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(RequestStore, "shrink", shrink)

    async def work() -> None:
        jobs = make_jobs()
        jobs.start()
        await jobs.add_request(request_row("r"), b"{}")
        await request_that(jobs, "r", "SUCCEEDED")
        assert jobs._tools.metrics.num_blocked == 0
        await jobs.close()

    run(work())


def test_what_is_kept_no_longer_is_looked_for_once_a_minute(
    make_jobs: MakeJobs, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the server looks for what is due."""
    num_looks = 0

    def shrink(store: RequestStore) -> None:
        nonlocal num_looks
        num_looks += 1

    monkeypatch.setattr(RequestStore, "shrink", shrink)

    async def work() -> None:
        jobs = make_jobs()
        jobs.start()
        for place in range(8):
            await jobs.add_request(request_row(f"r{place}"), b"{}")
            await request_that(jobs, f"r{place}", "SUCCEEDED")
        assert num_looks == 1
        for _ in range(59):
            clock.advance(1.0)
            await until(lambda: clock.waiting)
        assert num_looks == 1
        clock.advance(1.0)
        await until(lambda: num_looks == 2)
        await jobs.close()

    run(work())


def test_a_look_at_the_queue_costs_the_same_however_long_it_is(store: RequestStore) -> None:
    """Otherwise the time for all of a queue grows with the square of its length."""
    store._connection.execute("BEGIN")
    for number in range(2000):
        store.insert(request_row(f"r{number}"), body=b"{}")
        store.insert(request_row(f"w{number}", webhook="https://a/x", webhook_at=number))
    store.insert(request_row("last", webhook="https://b:1?x/", webhook_at=9000))
    store._connection.execute("COMMIT")
    num_steps = 0

    def count() -> None:
        nonlocal num_steps
        num_steps += 1

    store._connection.set_progress_handler(count, 10)
    assert store.expire(1_000_000.0) == 0
    assert len(store.take(max_requests=1, max_bytes=100, now=1_000_000.0)) == 1
    assert num_steps < 100
    due = partial(store.due, max_requests=9, max_per_host=3, max_bytes=1000, but=["w1"])
    assert [row.id for row in due(now=1_000_000.0)] == ["w0", "w2", "last"]
    assert [row.id for row in due(now=1.0)] == ["w0"]
    assert num_steps < 200


def test_what_has_ended_is_not_counted_again_and_again(store: RequestStore) -> None:
    """Metrics ask every few seconds, and results are kept for a week."""
    store._connection.execute("BEGIN")
    for number in range(2000):
        store.insert(request_row(f"e{number}", status="SUCCEEDED", ended_at=1.0))
    store.insert(request_row("queued"))
    store.insert(request_row("running", status="IN_PROGRESS"))
    store._connection.execute("COMMIT")
    num_steps = 0

    def count() -> None:
        nonlocal num_steps
        num_steps += 1

    store._connection.set_progress_handler(count, 10)
    assert store.count() == {"QUEUED": 1, "IN_PROGRESS": 1}
    assert num_steps < 20
