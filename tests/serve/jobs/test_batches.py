"""Batches: from the upload to the output, in order and within bounds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.engines.base import Lane
from embedlib.serve.background import Background
from embedlib.serve.dialects.baseten import PATHS
from embedlib.serve.dialects.batches import ENDPOINTS, describe_batch
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs import batch_run
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.batches import BatchStore, Progress
from embedlib.serve.jobs.database import open_database
from embedlib.serve.jobs.files import FileRow, FileStore
from embedlib.serve.jobs.folder import DataFolder
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.lines import SLICE_BYTES, SLICE_LINES, Checker, read_lines
from embedlib.serve.jobs.spans import JobSpan
from embedlib.serve.jobs.worker import MAX_BATCHES, MAX_OPEN
from embedlib.serve.routes import COMPUTING
from embedlib.testing import FakeEngine, fake_vector
from tests.serve.conftest import Client
from tests.serve.jobs.conftest import (
    FakeClock,
    add_file,
    batch_row,
    echo,
    ended_batch,
    error,
    input_line,
    input_of,
    lines_of,
    ok,
    run,
    until,
)

MakeJobs = Callable[..., Jobs]


def create(client: Client, file_id: str, **fields: Any) -> Any:
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return client.post("/v1/batches", {**body, **fields})


def wait(client: Client, batch_id: str) -> Any:
    async def work() -> Any:
        async with client.http() as http:
            while True:
                batch = (await http.get(f"/v1/batches/{batch_id}")).json()
                if batch["status"] in ("completed", "failed", "expired", "cancelled"):
                    return batch

    return client.run(work())


def content(client: Client, file_id: str) -> list[Any]:
    answer = client.send("GET", f"/v1/files/{file_id}/content")
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.content.splitlines()]


def test_a_file_of_requests_becomes_a_file_of_answers(
    keeper: Client, upload: Callable[[bytes], str], engine: FakeEngine
) -> None:
    lines = [
        input_line("a", body={"input": "abc", "lane": "query"}),
        b"\r\n",
        input_line("wrong", body={"input": "abc", "dimensions": 99}),
        input_line("b", body={"input": ["x", "yz"], "model": "embed"}),
        input_line("none", body={"input": "a", "model": "rank"}),
        input_line("bytes", body={"input": "a", "encoding_format": "bytes"}).rstrip(b"\n"),
    ]
    file_id = upload(b"\xef\xbb\xbf" + b"".join(lines))
    batch = create(keeper, file_id, metadata={"of": "me"})
    assert batch["status"] == "validating"
    assert batch["object"] == "batch"
    done = wait(keeper, batch["id"])
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
    assert done["metadata"] == {"of": "me"}
    assert done["model"] == "embed"
    assert done["usage"]["total_tokens"] == 7  # of all that was computed
    first, second = content(keeper, done["output_file_id"])
    assert first["custom_id"] == "a"
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    [entry] = first["response"]["body"]["data"]
    assert entry["embedding"] == fake_vector(list(b"abc")).tolist()
    assert [row["index"] for row in second["response"]["body"]["data"]] == [0, 1]
    errors = content(keeper, done["error_file_id"])
    assert [line["custom_id"] for line in errors] == ["wrong", "none", "bytes"]
    assert errors[0]["response"]["status_code"] == 400
    assert errors[0]["response"]["body"]["error"]["param"] == "dimensions"
    assert "use float or base64" in errors[2]["response"]["body"]["error"]["message"]
    assert {each.lane for each in engine.batches} == {Lane.BULK}  # no line goes ahead
    assert len({line["id"] for line in [first, second, *errors]}) == 5
    body = {"endpoint": "/v1/embeddings", "completion_window": "24h"}
    _, refused = keeper.refuse("/v1/batches", {**body, "input_file_id": done["output_file_id"]})
    assert "has the purpose batch_output; upload one with" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "window", "seconds"),
    [
        ({}, 24 * 3600, 7 * 24 * 3600),
        ({"completion_window": "168h"}, 168 * 3600, 7 * 24 * 3600),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 7200}}, 24 * 3600, 7200),
    ],
)
def test_times_of_a_batch_are_those_that_are_asked_for(
    keeper: Client, upload: Callable[[bytes], str], fields: Any, window: int, seconds: int
) -> None:
    batch = create(keeper, upload(input_of(1)), **fields)
    assert batch["expires_at"] - batch["created_at"] == window
    done = wait(keeper, batch["id"])
    output = keeper.send("GET", f"/v1/files/{done['output_file_id']}").json()
    assert output["expires_at"] - output["created_at"] == seconds


def test_outputs_are_files_when_a_batch_has_ended() -> None:
    counts = {"num_total": 9, "num_completed": 2, "num_failed": 1, "num_tokens": 5}
    row = batch_row("file-in", output_bytes=5, error_bytes=6, errors='["e"]', **counts)
    told = describe_batch(row)
    assert (told["output_file_id"], told["error_file_id"]) == (None, None)
    assert told["request_counts"] == {"total": 9, "completed": 2, "failed": 1}
    assert (told["usage"]["input_tokens"], told["usage"]["total_tokens"]) == (5, 5)
    assert told["errors"] == {"object": "list", "data": ["e"]}
    row.ended_at = 9
    told = describe_batch(row)
    assert (told["output_file_id"], told["error_file_id"]) == ("file-out", "file-err")


def test_every_kind_of_model_answers_batches(
    keeper: Client, upload: Callable[[bytes], str]
) -> None:
    for endpoint, body in (
        ("/v1/rerank", {"query": "q", "documents": ["a", "bc"]}),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
        ("/v1/classify", {"input": ["a", "b"]}),
        ("/predict", {"inputs": "a"}),
        ("/embed", {"inputs": ["a"]}),
    ):
        file_id = upload(input_line("a", url=endpoint, body=body))
        done = wait(keeper, create(keeper, file_id, endpoint=endpoint)["id"])
        assert done["request_counts"]["completed"] == 1, endpoint
        [line] = content(keeper, done["output_file_id"])
        direct = keeper.post(endpoint, body)
        if isinstance(direct, dict):
            assert set(line["response"]["body"]) == set(direct)
        else:
            assert line["response"]["body"] == direct


def test_every_endpoint_is_a_route() -> None:
    computing = {route.path for route in COMPUTING if route.method == "POST"}
    assert set(ENDPOINTS) <= computing
    assert set(PATHS) <= computing


def test_a_route_that_is_gone_is_an_answer(keeper: Client) -> None:
    answer = keeper.run(Background((), keeper.application._shared).answer("/old", b"{}", "r"))
    assert (answer.status, answer.kind) == (404, "no_route")
    assert "is not there any more" in str(answer.error)


def test_a_lost_gpu_fails_no_job(keeper: Client, engine: FakeEngine) -> None:
    """They wait for a new start: it would fail all lines of all batches, as fast as they come."""
    answering = Background(COMPUTING, keeper.application._shared)

    def answer(**fields: Any) -> Answer:
        body = json.dumps({"input": "x", **fields}).encode()
        return keeper.run(answering.answer("/v1/embeddings", body, "r"))

    engine.poison(ord("x"))
    assert answer().kind == "failed"
    engine.lost = "the GPU is lost (an error); restart the process"  # type: ignore[attr-defined]
    assert (answer().is_not_loaded, str(answer().error)) == (True, engine.lost)  # type: ignore[attr-defined]
    assert answer(dimensions=99).kind == "invalid"
    assert answer(input="a").kind is None


@pytest.mark.parametrize("body", [{"texts": []}, {"texts": 1}, {"documents": []}])
def test_a_line_is_refused_in_the_words_of_its_route(keeper: Client, body: Any) -> None:
    """Those of `/rerank` depend on the field."""
    body["query"] = "q"
    answering = Background(COMPUTING, keeper.application._shared)
    answer = keeper.run(answering.answer("/rerank", json.dumps(body).encode(), "r"))
    assert (answer.status, json.loads(answer.body)) == keeper.refuse("/rerank", body)


def test_a_query_overtakes_a_batch(
    keeper: Client, upload: Callable[[bytes], str], engine: FakeEngine
) -> None:
    file_id = upload(input_of(300))
    engine.hold()
    batch = create(keeper, file_id)

    async def work() -> None:
        async with keeper.http() as http:
            await until(lambda: len(engine.batches) == 2)
            query = asyncio.ensure_future(http.post("/v1/embeddings", json={"input": "q"}))
            await until(lambda: len(engine.batches) == 3)
            assert engine.batches[2].lane is Lane.QUERY
            engine.release()
            assert (await query).status_code == 200

    keeper.run(work())
    assert wait(keeper, batch["id"])["request_counts"]["completed"] == 300


def test_outputs_are_in_the_order_of_the_input_and_the_window_is_bounded(
    make_jobs: MakeJobs, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "MAX_LINES", 8)
    held: list[asyncio.Future[None]] = []
    most = 0

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        nonlocal most
        held.append(asyncio.get_running_loop().create_future())
        most = max(most, sum(not each.done() for each in held))
        await held[-1]
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        jobs.start()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(40))))
        for _ in range(40):  # the last that began is answered first
            await until(lambda: any(not each.done() for each in held))
            last = next(each for each in reversed(held) if not each.done())
            last.set_result(None)
            await asyncio.sleep(0)
        row = await ended_batch(jobs)
        found = await lines_of(jobs, row.output_file_id)
        assert [line["custom_id"] for line in found] == [f"r{index}" for index in range(40)]
        for _ in range(999):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= 5, "nothing waits for an end that does not come"
        assert len(clock.waiting) < 50, "it looks when it was woken"
        await jobs.close()

    run(work())
    assert most == 8


def test_few_large_lines_are_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes((b"x" * (SLICE_BYTES // 2) + b"\n") * 3)
    first = read_lines(path, 0, 0, SLICE_BYTES)
    assert [line.number for line in first] == [1, 2]
    assert [line.number for line in read_lines(path, first[-1].end, 2, SLICE_BYTES)] == [3]
    path.write_bytes(b"1234\n" * (SLICE_LINES + 1))
    lines = read_lines(path, 0, 0, 4)
    assert (len(lines), lines[-1].data, lines[-1].is_cut) == (SLICE_LINES, b"1234", False)
    assert read_lines(path, 0, 0, 3)[0].is_cut
    path.write_bytes(b"1234")  # the last one may lack its break
    assert not read_lines(path, 0, 0, 4)[0].is_cut


@pytest.mark.parametrize(("limit", "most_of_it"), [("MAX_TEXTS", 10), ("MAX_BYTES", 100)])
def test_large_lines_are_answered_one_by_one(
    make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, limit: str, most_of_it: int
) -> None:
    monkeypatch.setattr(batch_run, limit, most_of_it)
    running = most = 0

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        jobs.start()
        lines = [input_line(f"r{index}", body={"input": ["a"] * 10}) for index in range(5)]
        await jobs.add_batch(batch_row(await add_file(jobs, b"".join(lines))))
        assert (await ended_batch(jobs)).num_completed == 5
        await jobs.close()

    run(work())
    assert most == 1


def test_a_busy_server_makes_lines_wait_and_a_failure_is_tried_again(
    make_jobs: MakeJobs, clock: FakeClock
) -> None:
    answers = {
        "r0": [error(429, "overloaded", retry_seconds=7.0)] * 9,
        "r1": [error(500, "failed")] * 2,
        "r2": [error(500, "failed")] * 9,
        "r3": [error(503, "unavailable")] * 4,
    }

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        name = json.loads(body)["input"]
        return answers[name].pop() if answers[name] else ok(body)

    spans: list[JobSpan] = []
    sleeps: list[float] = []
    sleep = clock.sleep

    async def recorded(seconds: float) -> None:
        sleeps.append(seconds)
        await sleep(seconds)

    object.__setattr__(clock, "sleep", recorded)

    async def work() -> None:
        jobs = make_jobs(answer, write_span=spans.append)
        jobs.start()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(4))))

        async def has_ended() -> bool:
            clock.advance(1.0)
            return (await jobs.batches.get("batch_1")).ended_at is not None

        await until(has_ended)
        row = await jobs.batches.get("batch_1")
        assert (row.num_completed, row.num_failed) == (3, 1)
        [line] = await lines_of(jobs, "file-err")
        assert (line["custom_id"], line["response"]["status_code"]) == ("r2", 500)
        assert len(answers["r2"]) == 6  # three attempts
        assert (sleeps.count(7.0), sleeps.count(2.0), max(sleeps)) == (9, 2, 7.0)
        assert 4.0 not in sleeps
        [span] = spans
        names = ("embedlib.lines_completed", "embedlib.lines_failed")
        assert [span.attributes[name] for name in names] == [3, 1]
        assert span.attributes["gen_ai.usage.input_tokens"] == 3 * len(b'{"input": "r0"}')
        assert jobs.metrics.lines == {"done": 3, "failed": 1}
        await jobs.close()

    run(work())


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_what_was_not_tried_at_the_end_is_told(
    make_jobs: MakeJobs, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(batch_run, "MAX_LINES", 3)
    asked: list[str] = []

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        asked.append(json.loads(body)["input"])
        if asked[-1] not in ("r0", "r1"):
            await asyncio.Event().wait()
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        jobs.start()
        empty = b"\n" * 2 * SLICE_LINES
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(7) + empty)))

        async def has_two() -> bool:
            return (await jobs.batches.get("batch_1")).num_completed == 2

        await until(has_two)
        await until(lambda: len(asked) == 5)
        assert (await jobs.batches.get("batch_1")).status == "in_progress"
        if end == "cancelled":
            assert (await jobs.cancel_batch("batch_1")).status == "cancelling"
        else:
            clock.advance(86_400.0)
        row = await ended_batch(jobs)
        assert row.status == end
        assert getattr(row, f"{end}_at") == int(clock.time)
        assert (row.num_total, row.num_completed, row.num_failed) == (7, 2, 0)
        assert len(await lines_of(jobs, "file-out")) == 2
        refused = await lines_of(jobs, "file-err")
        assert [line["custom_id"] for line in refused] == ["r2", "r3", "r4", "r5", "r6"]
        assert [line["id"] for line in refused] == [f"batch_req_1_{n}" for n in range(3, 8)]
        assert (row.num_lines, len(asked)) == (7, 5)  # none is begun for it
        assert {line["error"]["code"] for line in refused} == {f"batch_{end}"}
        assert jobs.metrics.ended["batch", end] == 1
        await jobs.close()

    run(work())


def test_a_batch_that_never_ran_is_cancelled(make_jobs: MakeJobs) -> None:
    async def work() -> None:
        jobs = make_jobs()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(2))))
        await jobs.cancel_batch("batch_1")
        jobs.start()
        row = await ended_batch(jobs)
        assert (row.status, row.output_bytes, row.error_bytes) == ("cancelled", 0, 0)
        with pytest.raises(Exception, match="is cancelled; there is nothing to cancel"):
            await jobs.cancel_batch("batch_1")
        await jobs.close()

    run(work())


def test_the_end_waits_for_the_lines_that_are_answered(make_jobs: MakeJobs) -> None:
    begun: list[str] = []
    over: list[str] = []

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        begun.append(request_id)
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(99):
                await asyncio.sleep(0)
            over.append(request_id)

    async def work() -> None:
        jobs = make_jobs(answer)
        jobs.start()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(2))))
        await until(lambda: len(begun) == 2)
        await jobs.stop()
        assert sorted(over) == begun
        await jobs.close()

    run(work())


def test_a_batch_is_cancelled_while_its_input_is_checked(
    make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_steps = 0

    def step(checker: Checker) -> bool:
        nonlocal num_steps
        num_steps += 1
        return True

    monkeypatch.setattr(Checker, "step", step)

    async def work() -> None:
        jobs = make_jobs()
        jobs.start()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(1))))
        await until(lambda: num_steps > 1)
        await jobs.cancel_batch("batch_1")
        assert (await ended_batch(jobs)).status == "cancelled"
        await jobs.close()

    run(work())


def test_some_batches_run_at_once_and_the_others_in_their_order(make_jobs: MakeJobs) -> None:
    asked: list[str] = []
    go = asyncio.Event

    async def work() -> None:
        released = go()

        async def answer(path: str, body: bytes, request_id: str) -> Answer:
            asked.append(request_id)
            await released.wait()
            return ok(body)

        jobs = make_jobs(answer)
        file_id = await add_file(jobs, input_of(1))
        for index in range(6):
            await jobs.add_batch(
                batch_row(
                    file_id,
                    id=f"batch_{index}",
                    output_file_id=f"file-o{index}",
                    error_file_id=f"file-e{index}",
                )
            )
        jobs.start()
        await until(lambda: len(asked) == 4)
        await jobs.count()
        assert jobs.metrics.now["batch", "running"] == 4
        assert jobs.metrics.now["batch", "queued"] == 2
        await jobs.cancel_batch("batch_5")  # which takes no place
        assert (await ended_batch(jobs, "batch_5")).status == "cancelled"
        released.set()
        await ended_batch(jobs, "batch_4")
        assert [name.rpartition("_")[0] for name in asked] == [f"batch_{i}" for i in range(5)]
        await jobs.close()

    run(work())


def test_batches_that_only_have_to_end_come_first(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "jobs")) as connection:
        store = BatchStore(connection, Mock(), Mock())
        for name, fields in (
            ("first", {}),
            ("waits", {}),
            ("ended", {"ended_at": 5}),
            ("expired", {"expires_at": 9}),
            ("last", {}),
            ("cancelling", {"status": "cancelling"}),
        ):
            store.insert(batch_row("file-in", id=name, **fields))
        found = store.open(limit=4, now=9.0, but=["waits", "expired"])
        assert [row.id for row in found] == ["expired", "cancelling", "first", "last"]
        assert [row.id for row in store.open(limit=1, now=8.0, but=[])] == ["cancelling"]


def test_batches_end_some_at_once(make_jobs: MakeJobs, clock: FakeClock) -> None:
    """A server that was down for days finds any number of them, each with large lines."""

    async def work() -> None:
        jobs = make_jobs()
        file_id = await add_file(jobs, input_of(1))
        for number in range(MAX_OPEN + 4):
            over = {"status": "in_progress", "in_progress_at": 1, "expires_at": 2}
            ids = {"id": f"b{number}", "error_file_id": f"file-err-{number}"}
            await jobs.add_batch(batch_row(file_id, **over, **ids))
        running: list[int] = []

        async def have_ended() -> bool:
            running.append(len(jobs._worker._batches))
            return not sum((await jobs._tools.read(jobs._tools.batches.count)).values())

        jobs.start()
        await until(have_ended)
        assert max(running) == MAX_OPEN
        assert jobs.metrics.ended["batch", "expired"] == MAX_OPEN + 4
        await jobs.close()

    run(work())


def test_the_row_of_a_batch_from_its_begin_to_its_deletion(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "jobs")
    with closing(folder), closing(open_database(folder.database)) as connection:
        files = FileStore(connection)
        store = BatchStore(connection, folder, files)
        store.insert(batch_row("file-in", owner="ann", output_seconds=60))
        store.insert(batch_row("file-in", id="other"))
        store.cancel("batch_1", 5, "ann")
        assert store.cancel("batch_1", 6, "ann").cancelling_at == 5
        store.begin("batch_1", 3, 7)  # whoever checked it did not know
        row = store.get("batch_1")
        assert (row.status, row.num_total, row.in_progress_at) == ("cancelling", 3, 7)
        for model in ("first", "second"):
            store.save("batch_1", Progress(input_offset=1, num_lines=1, output=b"a\n", model=model))
        for name in ("file-out", "file-err"):
            with folder.file(name).open("ab") as stream:
                stream.write(b"of a killed server")
        assert store.count() == {"cancelling": 1, "validating": 1}
        store.finish("batch_1", "cancelled", 9)
        assert store.count() == {"validating": 1}
        row = store.get("batch_1")
        ended = (row.finalizing_at, row.cancelled_at, row.ended_at)
        assert (row.status, row.model, *ended) == ("cancelled", "first", 9, 9, 9)
        assert folder.file("file-out").read_bytes() == b"a\na\n"
        assert not folder.file("file-err").exists()
        assert files.get("file-out", "ann") == FileRow(
            id="file-out",
            purpose="batch_output",
            filename="batch_1_output.jsonl",
            num_bytes=4,
            created_at=9,
            expires_at=69,
            owner="ann",
        )
        assert [row.id for row in files.page("", after=None, limit=9, is_descending=True).rows] == [
            "file-out"
        ]
        store.delete_ended(8.5)
        assert store.get("batch_1")
        store.delete_ended(9)
        with pytest.raises(HTTPError, match="no batch 'batch_1' here"):
            store.get("batch_1")
        assert store.get("other")


def test_files_that_running_batches_read_or_write_stay(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "jobs")) as connection:
        files = FileStore(connection)
        store = BatchStore(connection, Mock(), files)
        old = {"purpose": "batch", "filename": "f", "num_bytes": 1, "created_at": 1}
        for name in ("read", "free", "new"):
            files.insert(FileRow(id=name, expires_at=6 if name == "new" else 5, **old))
        store.insert(batch_row("read"))
        assert files.ids() == {"read", "free", "new", "file-out", "file-err"}
        assert files.delete_expired(5) == ["free"]
        assert files.ids() == {"read", "new", "file-out", "file-err"}
        store.update("batch_1", ended_at=5)
        assert files.delete_expired(5) == ["read"]
        assert files.ids() == {"new"}


def test_outputs_that_are_gone_are_not_those_of_a_batch_that_fails(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "jobs")
    with closing(folder), closing(open_database(folder.database)) as connection:
        store = BatchStore(connection, folder, FileStore(connection))
        store.insert(batch_row("file-in"))
        lines = Progress(input_offset=1, num_lines=2, output=b"a\n", errors=b"b\n")
        store.save("batch_1", lines)
        folder.file("file-err").unlink()
        store.fail("batch_1", [], 5)
        row = store.get("batch_1")
        assert (row.status, row.output_bytes, row.error_bytes) == ("failed", 2, 0)
        assert (row.failed_at, row.ended_at) == (5, 5)


def test_batches_whose_model_could_not_be_loaded_wait_for_a_new_start(
    make_jobs: MakeJobs,
) -> None:
    """They are not failures of theirs, and hold no place of those whose model is there."""

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        is_lost = request_id.startswith("batch_lost") and not request_id.endswith("_1")
        return error(503, "not_loaded") if is_lost else ok(body)

    async def add(jobs: Jobs, *names: str) -> None:
        for name in names:
            await jobs.add_batch(
                batch_row(
                    await add_file(jobs, input_of(3)),
                    id=f"batch_{name}",
                    output_file_id=f"file-out-{name}",
                    error_file_id=f"file-err-{name}",
                )
            )

    async def work() -> None:
        jobs = make_jobs(answer)
        lost = [f"lost{index}" for index in range(MAX_BATCHES)]
        await add(jobs, *lost, "found")
        jobs.start()
        assert (await ended_batch(jobs, "batch_found")).num_completed == 3

        async def has_one() -> bool:
            return (await jobs.batches.get("batch_lost0")).num_completed == 1

        await until(has_one)
        row = await jobs.batches.get("batch_lost0")
        assert (row.status, row.num_failed) == ("in_progress", 0)
        await jobs.cancel_batch("batch_lost1")
        assert (await ended_batch(jobs, "batch_lost1")).status == "cancelled"
        await jobs.close()
        jobs = make_jobs()  # this one could load it
        jobs.start()
        row = await ended_batch(jobs, "batch_lost0")
        assert (row.status, row.num_completed, row.num_failed) == ("completed", 3, 0)
        lines = await lines_of(jobs, "file-out-lost0")
        assert [line["custom_id"] for line in lines] == ["r0", "r1", "r2"]
        await jobs.close()

    run(work())


def test_a_batch_starts_beside_one_that_runs(make_jobs: MakeJobs) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        if request_id.startswith("batch_first"):
            has_begun.set()
            await may_end.wait()
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        jobs.start()
        for name in ("first", "second"):
            ids = {"output_file_id": f"file-out-{name}", "error_file_id": f"file-err-{name}"}
            await jobs.add_batch(
                batch_row(await add_file(jobs, input_of(1)), id=f"batch_{name}", **ids)
            )
            await has_begun.wait()
        assert (await ended_batch(jobs, "batch_second")).num_completed == 1
        assert (await jobs.batches.get("batch_first")).ended_at is None
        may_end.set()
        assert (await ended_batch(jobs, "batch_first")).num_completed == 1
        await jobs.close()

    run(work())


def test_batches_leave_half_of_the_door_to_others(make_jobs: MakeJobs) -> None:
    running = 0

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        nonlocal running
        running += 1
        await asyncio.Event().wait()
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer, max_waiting_requests=20)
        file_id = await add_file(jobs, input_of(50))
        for place in range(2):
            name = f"batch_{place}"
            await jobs.add_batch(batch_row(file_id, id=name))
        jobs.start()
        await until(lambda: running == 10)
        for _ in range(50):
            await asyncio.sleep(0)
        assert running == 10
        await jobs.close()

    run(work())


def test_a_batch_whose_input_is_gone_fails_and_the_others_run(
    make_jobs: MakeJobs, tmp_path: Any
) -> None:
    async def work() -> None:
        jobs = make_jobs(echo)
        file_id = await add_file(jobs, input_of(1))
        await jobs.add_batch(batch_row(file_id))
        (tmp_path / "jobs" / "files" / file_id).unlink()
        jobs.start()
        row = await ended_batch(jobs)
        assert row.status == "failed"
        assert "the input or output is gone" in (row.errors or "")
        await jobs.close()

    run(work())


def test_an_input_that_was_changed_after_its_check_fails(make_jobs: MakeJobs) -> None:
    async def work() -> None:
        jobs = make_jobs()
        await jobs.add_batch(batch_row(await add_file(jobs, b"{}\n"), in_progress_at=1))
        jobs.start()
        assert (await ended_batch(jobs)).status == "failed"
        await jobs.close()

    run(work())


def test_a_bug_of_one_look_ends_no_others(
    make_jobs: MakeJobs,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    async def work() -> None:
        jobs = make_jobs()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(1))))
        with monkeypatch.context() as patched:
            patched.setattr(BatchStore, "open", fail)
            jobs.start()
            await until(lambda: clock.waiting)
        clock.advance(1.0)
        assert (await ended_batch(jobs)).status == "completed"
        await jobs.close()

    run(work())
    assert caplog.messages == ["a look for jobs that are due"]


def test_a_bug_half_way_leaves_what_was_answered(
    make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_run, "MAX_LINES", 1)

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        if b"r3" in body:
            raise KeyError("a bug")
        return ok(body)

    async def work() -> None:
        jobs = make_jobs(answer)
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(5))))
        jobs.start()
        row = await ended_batch(jobs)
        assert (row.status, row.num_completed) == ("failed", 3)
        assert len(await lines_of(jobs, "file-out")) == 3
        await jobs.close()

    run(work())
    assert "batch batch_1" in caplog.text
    assert "KeyError: 'a bug'" in caplog.text


def test_a_failure_that_cannot_be_written_waits_for_the_next_look(
    make_jobs: MakeJobs, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged database would keep a core busy, and fill the log."""
    num_tried = 0

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        nonlocal num_tried
        num_tried += 1
        raise KeyError("a bug")

    def fail(*_: Any) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    async def work() -> None:
        monkeypatch.setattr(BatchStore, "fail", fail)
        jobs = make_jobs(answer)
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(1))))
        jobs.start()
        await until(lambda: num_tried)
        for _ in range(50):
            await jobs.count()  # time for another look
        assert num_tried == 1
        clock.advance(1.0)
        await until(lambda: num_tried == 2)
        await jobs.close()

    run(work())


def test_a_server_with_a_lower_limit_goes_on(make_jobs: MakeJobs) -> None:
    async def work() -> None:
        jobs = make_jobs()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(3)), in_progress_at=1))
        await jobs.close()
        again = make_jobs(max_body_bytes=10, max_waiting_requests=1)
        again.start()
        assert (await ended_batch(again)).num_completed == 3
        await again.close()

    run(work())


def test_lists_have_cursors(keeper: Client, upload: Callable[[bytes], str]) -> None:
    file_id = upload(input_of(1))
    ids = [create(keeper, file_id)["id"] for _ in range(5)]
    first = keeper.send("GET", "/v1/batches?limit=2").json()
    assert [batch["id"] for batch in first["data"]] == ids[:-3:-1]
    assert first["has_more"] is True
    last = keeper.send("GET", f"/v1/batches?limit=3&after={first['last_id']}").json()
    assert [batch["id"] for batch in last["data"]] == ids[2::-1]
    assert last["has_more"] is False
    assert set(last["data"][0]["request_counts"]) == {"total", "completed", "failed"}
    for query, words in (("limit=0", "limit = '0'"), ("after=none", "after = 'none'")):
        answer = keeper.send("GET", f"/v1/batches?{query}")
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
