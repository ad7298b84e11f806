"""What was accepted survives: crashes between any two writes, full disks, ends and new starts."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib import Document, index
from embedlib.errors import ConfigError
from embedlib.serve import ServeOptions, create_app
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs import database
from embedlib.serve.jobs.answers import Answer
from embedlib.serve.jobs.batches import BatchStore
from embedlib.serve.jobs.database import open_database
from embedlib.serve.jobs.folder import FREE_BYTES, DataFolder, told
from embedlib.serve.jobs.jobs import Jobs
from embedlib.serve.jobs.requests import RequestStore
from embedlib.serve.jobs.thread import StoreThread
from embedlib.testing import FakeSink, FakeStore, fake_embedder
from tests.serve.conftest import Client, MakeClient
from tests.serve.jobs.conftest import (
    FakeClock,
    add_file,
    batch_row,
    echo,
    ended_batch,
    input_of,
    lines_of,
    ok,
    request_row,
    request_that,
    run,
    until,
)
from tests.serve.jobs.test_batches import content, create, wait
from tests.serve.jobs.test_requests import state
from tests.waiting import WAIT_SECONDS

MakeJobs = Callable[..., Jobs]


def open_jobs(folder: Path, answer: Any = echo, **options: Any) -> Jobs:
    found = ServeOptions(data_dir=str(folder), **options)
    return Jobs(found, answer, clock=FakeClock())


class Crash:
    """Copies the folder before and after every commit, as a killed process would leave it."""

    def __init__(self, folder: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.copies = folder, copies
        self.num_copies = 0
        apply, append = StoreThread._apply, DataFolder.append

        def apply_watched(thread: StoreThread, works: Any) -> Any:
            self.copy()
            outcomes = apply(thread, works)
            self.copy()
            return outcomes

        def append_watched(found: DataFolder, *arguments: Any) -> None:
            append(found, *arguments)
            self.copy()  # written, and not committed

        monkeypatch.setattr(StoreThread, "_apply", apply_watched)
        monkeypatch.setattr(DataFolder, "append", append_watched)

    def copy(self) -> None:
        shutil.copytree(self.folder, self.copies / str(self.num_copies))
        self.num_copies += 1


def test_a_batch_goes_on_after_a_crash_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every state in which the folder ever was on disk, the same output is reached."""
    monkeypatch.setattr("embedlib.serve.jobs.batch_run.MAX_LINES", 4)
    copies = tmp_path / "copies"

    async def finish(jobs: Jobs) -> dict[str, list[Any]]:
        jobs.start()
        await ended_batch(jobs)
        await request_that(jobs, "r", "SUCCEEDED", "FAILED")
        found = {"output": await lines_of(jobs, "file-out")}
        found["errors"] = await lines_of(jobs, "file-err")
        row = await jobs.batches.get("batch_1")
        found["counts"] = [row.num_total, row.num_completed, row.num_failed, row.num_lines]
        found["result"] = [(await jobs.result("r"))[1]]
        await jobs.close()
        return found

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        if body.endswith(b'3"}'):
            return Answer(status=400, body=b'{"error":{}}', error=HTTPError(400, "?"))
        return ok(body)

    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs", answer)
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(9))))
        await jobs.add_request(request_row("r"), b"[]")
        with monkeypatch.context() as patched:
            crash = Crash(tmp_path / "jobs", copies, patched)
            right = await finish(jobs)
        assert right["counts"] == [9, 8, 1, 9]
        assert crash.num_copies > 12
        for place in range(crash.num_copies):
            assert await finish(open_jobs(copies / str(place), answer)) == right, place

    run(work())


@settings(max_examples=10)
@given(st.data())
def test_whatever_a_killed_server_left_behind_an_output_is_right(data: Any) -> None:
    """More than was committed may be in a file: a part of a line, or other lines."""
    import tempfile

    num_lines = data.draw(st.integers(1, 9))
    garbage = data.draw(st.binary(max_size=40))

    async def work(folder: Path) -> None:
        stop = data.draw(st.integers(0, num_lines))
        seen = 0

        async def answer(path: str, body: bytes, request_id: str) -> Answer:
            nonlocal seen
            seen += 1
            if seen > stop:
                await asyncio.Event().wait()
            return ok(body)

        jobs = open_jobs(folder, answer)
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(num_lines))))
        jobs.start()
        await until(lambda: seen >= min(stop + 1, num_lines))
        await jobs.close()
        for name in ("file-out", "file-err"):
            path = folder / "files" / name
            if path.exists() or name == "file-out":
                with path.open("ab") as stream:
                    stream.write(garbage)
        (folder / "files" / "file-half-uploaded").write_bytes(b"x")
        (folder / "files" / "a folder").mkdir()
        again = open_jobs(folder)
        assert not (folder / "files" / "file-half-uploaded").exists()
        again.start()
        row = await ended_batch(again)
        assert (row.status, row.num_completed) == ("completed", num_lines)
        found = await lines_of(again, "file-out")
        assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(num_lines)]
        await again.close()

    with tempfile.TemporaryDirectory() as folder:
        run(work(Path(folder)))


@pytest.mark.parametrize("left", [b"", None], ids=["cut", "removed"])
def test_a_batch_whose_output_is_gone_fails(
    left: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of what was lost would be filled with zeros."""
    monkeypatch.setattr("embedlib.serve.jobs.batch_run.MAX_LINES", 1)
    output = tmp_path / "jobs" / "files" / "file-out"

    async def answer(path: str, body: bytes, request_id: str) -> Answer:
        if b"r1" in body:
            output.unlink()
            if left is not None:
                output.write_bytes(left)
        return ok(body)

    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs", answer)
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(2))))
        jobs.start()
        row = await ended_batch(jobs)
        assert (row.status, row.num_completed, row.output_bytes) == ("failed", 1, 0)
        assert not output.exists()
        await jobs.close()

    run(work())


def test_nothing_is_acknowledged_that_is_not_on_disk(tmp_path: Path) -> None:
    """A copy of the folder, taken when the answer is there, has what was accepted."""

    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        file_id = await add_file(jobs, input_of(1))
        await jobs.add_batch(batch_row(file_id))
        await asyncio.gather(
            *(jobs.add_request(request_row(f"r{place}"), b"{}") for place in range(50))
        )
        await jobs.cancel_batch("batch_1")
        shutil.copytree(tmp_path / "jobs", tmp_path / "copy")
        copy = open_jobs(tmp_path / "copy")
        assert (await copy.files.get(file_id)).num_bytes == len(input_of(1))
        assert (await copy.batches.get("batch_1")).status == "cancelling"
        await copy.count()
        assert copy.metrics.now["async", "queued"] == 50
        await copy.close()
        await jobs.close()

    run(work())


def test_commits_are_durable_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0
    apply = StoreThread._apply

    def counted(thread: StoreThread, works: Any) -> Any:
        nonlocal commits
        commits += 1
        return apply(thread, works)

    monkeypatch.setattr(StoreThread, "_apply", counted)

    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        execute = jobs._tools.thread._connection.execute
        assert execute("PRAGMA synchronous").fetchone()[0] == 2
        assert execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert execute("PRAGMA journal_size_limit").fetchone()[0] == 64 << 20
        rows = [request_row(f"r{place}") for place in range(200)]
        await asyncio.gather(*(jobs.add_request(row, b"{}") for row in rows))
        await jobs.close()

    run(work())
    assert commits < 20


def test_one_write_that_fails_leaves_the_others_of_its_commit(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        rows = [request_row("a"), request_row("a"), request_row("b")]
        found = await asyncio.gather(
            *(jobs.add_request(row, b"{}") for row in rows), return_exceptions=True
        )
        assert isinstance(found[1], sqlite3.IntegrityError)
        assert found[0] is found[2] is None

        def add_and_fail() -> None:
            jobs._tools.requests.insert(request_row("c"), body=b"{}")
            raise KeyError("half of it was written")

        with pytest.raises(KeyError):
            await jobs._tools.thread.write(add_and_fail)
        await jobs.count()
        assert jobs.metrics.now["async", "queued"] == 2
        await jobs.close()

    run(work())


def test_a_write_whose_client_leaves_is_done_as_the_others_of_its_commit(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        may_commit = threading.Event()
        jobs._tools.thread._executor.submit(may_commit.wait)
        left, stays = (
            asyncio.create_task(jobs.add_request(request_row(name), b"{}")) for name in "ab"
        )
        await until(lambda: len(jobs._tools.thread._waiting) == 2)
        left.cancel()
        await asyncio.wait({left})
        may_commit.set()
        await asyncio.wait_for(stays, WAIT_SECONDS)
        await jobs.count()
        assert jobs.metrics.now["async", "queued"] == 2
        await jobs.close()

    run(work())


def test_what_is_written_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes, and the name of its file."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))

    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        names = jobs._tools.folder.file(".").stat().st_ino
        path = jobs._tools.folder.file(await add_file(jobs, b"x"))
        assert synced == [path.stat().st_ino, names]
        synced.clear()
        for size in (0, 1):
            jobs._tools.folder.append("file-out", size, b"x")
        output = jobs._tools.folder.file("file-out").stat().st_ino
        assert synced == [output, names, output]
        await jobs.close()

    run(work())


def test_the_bytes_that_come_count_before_they_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        jobs = open_jobs(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=FREE_BYTES + 10))
        await add_file(jobs, b"x" * 10)
        await jobs.add_request(request_row("fits"), b"x" * 10)
        for add in (add_file(jobs, b"x" * 11), jobs.add_request(request_row("r"), b"x" * 11)):
            with pytest.raises(HTTPError, match="is full"):
                await add
        await jobs.close()

    run(work())
    assert "is full" in str(told(OSError(errno.EDQUOT, "Disk quota exceeded")))


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        num_open = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ConfigError, match="is used by another server") as caught:
            create_app(
                {"a": fake_embedder()}, options=ServeOptions(data_dir=str(tmp_path / "jobs"))
            )
        assert "\n" not in str(caught.value)
        assert len(os.listdir("/proc/self/fd")) == num_open
        await jobs.close()
        await open_jobs(tmp_path / "jobs").close()  # given back

    run(work())


def test_the_database_is_for_its_user_alone(make_jobs: MakeJobs, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o755)  # as an administrator or systemd makes it
    before = os.umask(0)
    try:
        jobs = make_jobs()
        other = DataFolder(tmp_path / "above" / "other")
    finally:
        os.umask(before)

    other.close()
    assert other.path.stat().st_mode & 0o077 == 0

    async def use() -> None:
        await add_file(jobs, b"a\n")
        modes = {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir()}
        assert set(modes.values()) == {0}, modes
        assert "jobs.sqlite3-wal" in modes
        await jobs.close()

    run(use())


def test_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"cannot be used: .*give another --data-dir"):
        open_jobs(tmp_path / "file")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "jobs.sqlite3").write_bytes(b"no database" * 100)
    for _ in range(2):  # the lock is given back
        with pytest.raises(ConfigError, match=r"jobs\.sqlite3 cannot be used: .*; give another"):
            open_jobs(tmp_path / "damaged")
    with monkeypatch.context() as patched:
        patched.setattr(database, "is_full", lambda _: True)
        with pytest.raises(ConfigError, match=r"jobs\.sqlite3 cannot be used: .*; give it room"):
            open_jobs(tmp_path / "damaged")
    run(open_jobs(tmp_path / "lost").close())
    (tmp_path / "lost" / "files" / "file-1").write_bytes(b"x")
    (tmp_path / "lost" / "jobs.sqlite3").unlink()
    with pytest.raises(ConfigError, match=r"is missing, and .* has contents of jobs; put it back"):
        open_jobs(tmp_path / "lost")
    assert (tmp_path / "lost" / "files" / "file-1").exists()
    run(open_jobs(tmp_path / "newer").close())
    with closing(sqlite3.connect(tmp_path / "newer" / "jobs.sqlite3")) as connection:
        connection.execute("PRAGMA user_version=9")
    with pytest.raises(ConfigError, match="has the format 9, this embedlib reads 5"):
        open_jobs(tmp_path / "newer")


def full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(*arguments: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_full_disk_refuses_what_comes(
    keeper: Client, upload: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = upload(input_of(1))
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}

    def check() -> None:
        answer = keeper.send("POST", "/v1/batches", body)
        assert answer.status_code == 507
        assert answer.json()["error"]["code"] == "disk_full"
        assert "--data-dir is full" in answer.json()["error"]["message"]
        answer = keeper.send("POST", "/async_predict", {"model_input": {"input": "a"}})
        assert (answer.status_code, set(answer.json())) == (507, {"error"})
        sent = keeper.send(
            "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("f", b"x" * 100)}
        )
        assert (sent.status_code, sent.json()["error"]["code"]) == (507, "disk_full")

    with monkeypatch.context() as patched:  # less is free than is kept free
        patched.setattr("embedlib.serve.jobs.folder.FREE_BYTES", 1 << 60)
        check()
    with monkeypatch.context() as patched:  # the system says so
        patched.setattr(DataFolder, "check_room", full)
        check()
    with monkeypatch.context() as patched:
        patched.setattr(DataFolder, "check_room", broken)
        answer = keeper.send("POST", "/v1/batches", body)
        assert answer.status_code == 507
        assert "--data-dir failed" in answer.json()["error"]["message"]
        assert answer.json()["error"]["message"].endswith("accepted: Input/output error")
    assert len(keeper.send("GET", "/v1/files").json()["data"]) == 1
    assert keeper.send("GET", "/async_requests").json()["data"] == []
    keeper.post("/v1/batches", body)


def test_a_folder_that_was_removed_refuses_what_comes(
    keeper: Client, upload: Callable[[bytes], str], tmp_path: Path
) -> None:
    body = {"input_file_id": upload(input_of(1)), "endpoint": "/v1/embeddings"}
    body["completion_window"] = "24h"
    [database] = tmp_path.glob("**/jobs.sqlite3")
    database.parent.rename(tmp_path / "away")
    for is_made_again in (False, True):
        if is_made_again:  # by a service that lost its volume
            database.parent.mkdir()
        answer = keeper.send("POST", "/v1/batches", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
        assert "the database in --data-dir was removed" in answer.json()["error"]["message"]
        answer = keeper.send("POST", "/async_predict", {"model_input": {"input": "a"}})
        assert answer.status_code == 507
    database.parent.rmdir()
    (tmp_path / "away").rename(database.parent)
    keeper.post("/v1/batches", body)


def test_sqlite_without_room_is_a_full_disk(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = open_jobs(tmp_path / "jobs")
        connection = jobs._tools.thread._connection
        size = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={size}")
        with pytest.raises(HTTPError, match="--data-dir is full") as caught:
            await jobs.add_request(request_row("r"), b"x" * 1_000_000)
        assert caught.value.status == 507
        connection.execute(f"PRAGMA max_page_count={1 << 30}")
        await jobs.add_request(request_row("r"), b"x" * 1_000_000)
        assert (await jobs.requests.get("r")).status == "QUEUED"
        await jobs.close()

    run(work())


def test_a_start_that_the_disk_refuses_is_one_line_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    options, store = ServeOptions(data_dir=str(tmp_path / "jobs")), FakeStore()
    with fake_embedder() as embedder:
        index([Document(id="a", text="a")], FakeSink(store), embedder=embedder)
    num_open = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(RequestStore, "recover", fail)
        with pytest.raises(ConfigError, match="the disk of --data-dir is full") as caught:
            create_app(["m"], options=options, search={"docs": FakeSink(store)})
    assert len(os.listdir("/proc/self/fd")) == num_open, caught  # which leads to its frames
    names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if name.startswith("embedlib-serve-search")] == []
    run(open_jobs(tmp_path / "jobs").close())


def test_jobs_wait_for_a_full_disk_and_lose_nothing(
    make_jobs: MakeJobs,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    num_refused = 0

    def refuse(*_: Any) -> None:
        nonlocal num_refused
        num_refused += 1
        full()

    async def work() -> None:
        jobs = make_jobs()
        await jobs.add_batch(batch_row(await add_file(jobs, input_of(5))))
        with monkeypatch.context() as patched:
            patched.setattr(DataFolder, "append", refuse)
            jobs.start()

            async def is_refused_again() -> bool:
                clock.advance(5.0)
                return num_refused > 3

            await until(is_refused_again)
            assert jobs.metrics.num_blocked == 1
            assert "embedlib_jobs_blocked 1" in [*jobs.metrics.render()]
            assert (await jobs.batches.get("batch_1")).ended_at is None

        async def has_ended() -> bool:
            clock.advance(5.0)
            return (await jobs.batches.get("batch_1")).ended_at is not None

        await until(has_ended)
        assert "embedlib_jobs_blocked 0" in [*jobs.metrics.render()]
        found = await lines_of(jobs, "file-out")
        assert [line["custom_id"] for line in found] == [f"r{index}" for index in range(5)]
        await jobs.close()

    run(work())
    [message] = caplog.messages  # once, however long it lasts
    assert message.startswith("jobs wait for the disk of --data-dir: [Errno 28] No space left")


def test_a_server_that_drains_leaves_its_jobs_to_the_next(
    make_client: MakeClient, engine: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path / "data")
    first = make_client({"embed": fake_embedder(engine)}, data_dir=folder)
    engine.hold()
    sent = first.send(
        "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("f", input_of(300))}
    )
    batch_id = create(first, sent.json()["id"])["id"]

    async def end() -> str:
        async with first.http() as http:
            await until(lambda: engine.batches)
            first.application.drain()
            answer = await http.post("/async_predict", json={"model_input": {"input": "abc"}})
            assert answer.status_code == 202  # accepted, for the next start
            engine.release()
            await first.application.close()
            request_id: str = answer.json()["request_id"]
            return request_id

    request_id = first.run(end())
    second = make_client({"embed": fake_embedder()}, data_dir=folder)
    batch = wait(second, batch_id)
    assert state(second, request_id)["status"] == "SUCCEEDED"
    assert batch["request_counts"] == {"total": 300, "completed": 300, "failed": 0}
    ids = [line["custom_id"] for line in content(second, batch["output_file_id"])]
    assert ids == [f"r{index}" for index in range(300)]


def test_jobs_are_counted_from_the_start(keeper: Client, upload: Callable[[bytes], str]) -> None:
    before = keeper.send("GET", "/metrics").text
    assert 'embedlib_jobs{kind="batch",state="queued"} 0' in before
    assert 'embedlib_webhook_deliveries_total{outcome="delivered"} 0' in before
    wait(keeper, create(keeper, upload(input_of(3)))["id"])
    after = keeper.send("GET", "/metrics").text
    assert 'embedlib_jobs_ended_total{kind="batch",state="done"} 1' in after
    assert 'embedlib_batch_lines_total{state="done"} 3' in after
    assert 'embedlib_texts_total{model="embed",lane="bulk"} 3' in after
    names = {line.rpartition(" ")[0] for line in before.splitlines()}
    assert names == {line.rpartition(" ")[0] for line in after.splitlines()}


@pytest.mark.parametrize("error", [sqlite3.OperationalError, sqlite3.DatabaseError])
def test_a_disk_that_fails_takes_no_other_metric(
    keeper: Client, error: type[sqlite3.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error("disk I/O error")

    before = keeper.send("GET", "/metrics").text
    monkeypatch.setattr(BatchStore, "count", fail)
    after = keeper.send("GET", "/metrics")
    assert after.status_code == 200
    names = {line.rpartition(" ")[0] for line in before.splitlines()}
    assert names == {line.rpartition(" ")[0] for line in after.text.splitlines()}


def test_a_commit_that_cannot_be_undone_keeps_nobody_waiting() -> None:
    def execute(statement: str) -> None:
        if statement in ("COMMIT", "ROLLBACK"):
            raise sqlite3.OperationalError("disk I/O error")

    thread = StoreThread(Mock(in_transaction=True, execute=execute))

    async def write() -> None:
        await asyncio.wait_for(thread.write(lambda: None), WAIT_SECONDS)

    with pytest.raises(HTTPError, match="disk I/O error"):
        asyncio.run(write())
    thread.close()


def test_a_commit_that_fails_is_undone_for_all_and_the_next_one_is_made(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "jobs")
    failures = [sqlite3.OperationalError("disk I/O error")]

    def execute(statement: str, *values: Any) -> Any:
        if statement == "COMMIT" and failures:
            raise failures.pop()
        return connection.execute(statement, *values)

    thread = StoreThread(Mock(in_transaction=True, execute=execute))
    store = RequestStore(connection)

    def write(name: str) -> Awaitable[None]:
        return thread.write(lambda: store.insert(request_row(name), body=b"{}"))

    async def work() -> None:
        may_commit = threading.Event()
        thread._executor.submit(may_commit.wait)
        both = asyncio.gather(write("a"), write("b"), return_exceptions=True)
        await until(lambda: len(thread._waiting) == 2)
        may_commit.set()
        assert [str(error) for error in await both] == [
            "the disk of --data-dir failed, nothing was accepted: disk I/O error"
        ] * 2
        await write("c")
        assert await thread.run(store.count) == {"QUEUED": 1}

    run(work())
    thread.close()
    connection.close()
