"""What is told of the work of jobs: runs, attempts, and the request that made them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.spans import JobSpan
from embedlib.serve.jobs.webhook import DeliveryError
from tests.serve.jobs.conftest import (
    FakeClock,
    add_file,
    batch_row,
    ended_batch,
    error,
    input_of,
    ok,
    request_row,
    request_that,
    run,
    until,
)

MakeJobs = Callable[..., Jobs]
MADE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Refusing:
    """A sender whose first delivery fails."""

    def __init__(self) -> None:
        self.num_sent = 0

    async def send(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        self.num_sent += 1
        if self.num_sent == 1:
            raise DeliveryError("it was answered with 500", may_retry=True)


def test_each_run_and_each_delivery_is_told(make_jobs: MakeJobs, clock: FakeClock) -> None:
    spans: list[JobSpan] = []
    answers = [error(500, "failed"), ok(b"{}")]

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        clock.advance(2.0)
        return answers.pop(0)

    async def work() -> None:
        jobs = make_jobs(
            answer, sender=Refusing(), write_span=spans.append, webhook_hosts=("hooks.example",)
        )
        jobs.start()
        row = request_row(
            "r",
            path="/embed",
            webhook="https://hooks.example/secret?token=t",
            webhook_status="PENDING",
            traceparent=MADE,
        )
        await jobs.add_request(row, b"{}")

        async def is_delivered() -> bool:
            clock.advance(1.0)
            return (await jobs.requests.get("r")).webhook_status == "SUCCEEDED"

        await until(is_delivered)
        await jobs.close()

    run(work())
    told = [(span.kind, span.state, span.error) for span in spans]
    assert told == [
        ("async_request", "QUEUED", "failed"),
        ("async_request", "SUCCEEDED", ""),
        ("webhook", "PENDING", "failed"),
        ("webhook", "SUCCEEDED", ""),
    ]
    assert {(span.job_id, span.traceparent) for span in spans} == {("r", MADE)}
    assert spans[0].ended - spans[0].started == 2.0
    assert spans[1].attributes["http.response.status_code"] == 200
    assert spans[1].attributes["http.route"] == "/embed"
    assert spans[1].attributes["gen_ai.request.model"] == "m"
    assert "gen_ai.request.model" not in spans[0].attributes
    assert spans[3].attributes == {"server.address": "hooks.example", "embedlib.attempt": 2}
    assert "secret" not in str(spans)


def test_a_batch_has_a_span_for_each_start_of_the_server(make_jobs: MakeJobs) -> None:
    spans: list[JobSpan] = []

    async def first() -> None:
        gate = asyncio.Event()
        num_answered = 0

        async def answer(path: str, body: bytes, request_id: str) -> Answer:
            nonlocal num_answered
            num_answered += 1
            if num_answered > 2:
                await gate.wait()
            return ok(body)

        jobs = make_jobs(answer, write_span=spans.append)
        file_id = await add_file(jobs, input_of(4))
        await jobs.add_batch(batch_row(file_id, traceparent=MADE))
        jobs.start()
        await until(lambda: jobs.metrics.lines["done"] == 2)
        await jobs.close()

    async def second() -> None:
        jobs = make_jobs(write_span=spans.append)
        jobs.start()
        await ended_batch(jobs)
        await jobs.close()

    run(first())
    run(second())
    assert [(span.kind, span.state) for span in spans] == [("batch", "stopped"), ("batch", "done")]
    assert [span.attributes["embedlib.lines_completed"] for span in spans] == [2, 2]
    assert {span.traceparent for span in spans} == {MADE}


def test_a_batch_that_is_wrong_has_failed(make_jobs: MakeJobs) -> None:
    spans: list[JobSpan] = []

    async def work() -> None:
        jobs = make_jobs(write_span=spans.append)
        await jobs.add_batch(batch_row(await add_file(jobs, b"{}\n")))
        jobs.start()
        await ended_batch(jobs)
        await jobs.add_request(request_row("r"), b"{}")
        await request_that(jobs, "r", "SUCCEEDED")
        assert jobs.metrics.ended["batch", "failed"] == 1
        await jobs.close()

    run(work())
    assert [(span.state, span.error) for span in spans] == [("failed", "failed"), ("SUCCEEDED", "")]
