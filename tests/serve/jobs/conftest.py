"""Servers that keep jobs, jobs without a server, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from embedlib.serve import ServeOptions
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.batches import BatchRow
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.requests import RequestRow
from embedlib.serve.jobs.spans import WriteSpan, write_nowhere
from embedlib.serve.jobs.tools import Clock
from tests.serve.conftest import Client, MakeClient
from tests.waiting import WAIT_SECONDS

T = TypeVar("T")


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds; it may be a coroutine function."""
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(0)


class FakeClock(Clock):
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        object.__setattr__(self, "time", 1_000_000.0)
        object.__setattr__(self, "waiting", [])
        super().__init__(now=lambda: self.time, sleep=self._sleep)

    time: float
    waiting: list[tuple[float, asyncio.Future[None]]]

    async def _sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((self.time + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        object.__setattr__(self, "time", self.time + seconds)
        for at, future in self.waiting:
            if at <= self.time and not future.done():
                future.set_result(None)
        self.waiting[:] = [(at, future) for at, future in self.waiting if not future.done()]


def ok(body: bytes, **facts: Any) -> Answer:
    """The answer of a request that is answered with itself."""
    return Answer(status=200, body=body, model="m", num_tokens=len(body), **facts)


def error(status: int, kind: Any, **facts: Any) -> Answer:
    """The answer of a request that is refused."""
    body = json.dumps({"error": {"message": kind}}).encode()
    return Answer(status=status, body=body, error=HTTPError(status, str(kind), kind, **facts))


async def echo(path: str, body: bytes, request_id: str) -> Answer:
    return ok(body)


def input_line(custom_id: str, **fields: Any) -> bytes:
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"input": custom_id},
    }
    return json.dumps({**line, **fields}).encode() + b"\n"


def input_of(count: int) -> bytes:
    return b"".join(input_line(f"r{index}") for index in range(count))


def batch_row(file_id: str, **fields: Any) -> BatchRow:
    facts = {
        "id": "batch_1",
        "status": "validating",
        "endpoint": "/v1/embeddings",
        "input_file_id": file_id,
        "completion_window": "24h",
        "metadata": None,
        "output_seconds": 3600,
        "created_at": 1_000_000,
        "expires_at": 1_086_400,
        "output_file_id": "file-out",
        "error_file_id": "file-err",
    }
    return BatchRow(**{**facts, **fields})


def request_row(request_id: str, now: float = 1_000_000.0, **fields: Any) -> RequestRow:
    facts = {
        "id": request_id,
        "status": "QUEUED",
        "path": "/",
        "num_bytes": 2,
        "priority": 0,
        "created_at": now,
        "status_at": now,
        "queue_until": now + 600,
        "not_before": now,
        "max_attempts": 3,
        "delay_ms": 1000,
        "max_delay_ms": 5000,
        "webhook": None,
        "webhook_status": "NO_WEBHOOK_PROVIDED",
    }
    return RequestRow(**{**facts, **fields})


async def add_file(jobs: Jobs, content: bytes) -> str:
    async with jobs.upload() as upload:
        await upload.write(content)
        row = await upload.finish(filename="in.jsonl", seconds=3600)
    return row.id


async def content_of(jobs: Jobs, file_id: str) -> bytes:
    _, parts = await jobs.read_file(file_id)
    return b"".join([part async for part in parts])


async def lines_of(jobs: Jobs, file_id: str) -> list[Any]:
    return [json.loads(line) for line in (await content_of(jobs, file_id)).splitlines()]


async def ended_batch(jobs: Jobs, batch_id: str = "batch_1") -> BatchRow:
    async def has_ended() -> bool:
        return (await jobs.batches.get(batch_id)).ended_at is not None

    await until(has_ended)
    return await jobs.batches.get(batch_id)


async def request_that(jobs: Jobs, request_id: str, *states: str) -> RequestRow:
    async def is_there() -> bool:
        return (await jobs.requests.get(request_id)).status in states

    await until(is_there)
    return await jobs.requests.get(request_id)


def run(work: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, WAIT_SECONDS)

    return asyncio.run(limited())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_jobs(tmp_path: Path, clock: FakeClock) -> Callable[..., Jobs]:
    """Return a function that opens jobs in one folder; who opens them closes them."""

    def make(
        answer: Any = echo,
        sender: Any = None,
        write_span: WriteSpan = write_nowhere,
        **options: Any,
    ) -> Jobs:
        found = ServeOptions(data_dir=str(tmp_path / "jobs"), **options)
        return Jobs(found, answer, clock=clock, sender=sender, write_span=write_span)

    return make


@pytest.fixture
def keeper(make_client: MakeClient, tmp_path: Path) -> Client:
    """A server that keeps jobs."""
    return make_client(data_dir=str(tmp_path / "data"))


@pytest.fixture
def upload(keeper: Client) -> Callable[[bytes], str]:
    """Return a function that uploads a file and returns its id."""

    def upload(content: bytes) -> str:
        answer = keeper.send(
            "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}
        )
        assert answer.status_code == 200, answer.text
        file_id: str = answer.json()["id"]
        return file_id

    return upload
