"""The process beside the work stops while the program computes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from embedlib.session.giving_way import GivingWay
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the system does not tell a process's state"
)
SLEEP = "import sys; sys.stdin.read()"


def state(pid: int) -> str:
    """Return "T" of a process that is stopped, "" of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_until(is_reached: object, pid: int, states: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while (state(pid) or "X") not in states:
        assert time.monotonic() < end, f"{is_reached}: {state(pid)}"
        time.sleep(0.01)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", SLEEP], stdin=subprocess.PIPE, text=True) as made:
        yield made
        made.kill()


class Clock:
    """Processor time that a test sets the rate of."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._used, self._at = 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self._used += self.rate * (now - self._at)
        self._at = now
        return self._used


def test_it_stops_while_the_program_computes_and_goes_on(process: subprocess.Popen[str]) -> None:
    clock = Clock()
    giving_way = GivingWay(process, 2, used_seconds=clock, look_seconds=0.01)
    clock.rate = 1.9
    wait_until("busy", process.pid, "T")
    clock.rate = 0.1  # some queries
    wait_until("idle", process.pid, "SR")
    giving_way.close()


def test_it_is_never_stopped_for_ever(process: subprocess.Popen[str]) -> None:
    """It may hold a lock."""
    clock = Clock()
    clock.rate = 2.0
    giving_way = GivingWay(process, 2, used_seconds=clock, look_seconds=0.05)
    for expected in ("T", "SR", "T", "SR"):
        wait_until("busy", process.pid, expected)
    giving_way.close()


def test_it_can_be_ended_while_it_is_stopped(process: subprocess.Popen[str]) -> None:
    clock = Clock()
    clock.rate = 2.0
    giving_way = GivingWay(process, 2, used_seconds=clock, look_seconds=0.01)
    wait_until("busy", process.pid, "T")
    giving_way.close()
    process.kill()
    assert process.wait(WAIT_SECONDS) == -9


def test_looking_ends_with_the_process(process: subprocess.Popen[str]) -> None:
    giving_way = GivingWay(process, 2, look_seconds=0.01)
    process.kill()
    process.wait(WAIT_SECONDS)
    giving_way._thread.join(WAIT_SECONDS)
    assert not giving_way._thread.is_alive()
    giving_way.close()


def test_it_may_be_closed_on_its_own_thread(process: subprocess.Popen[str]) -> None:
    """The garbage collector runs there, too, and may call the `close` of who holds a model."""
    is_made, is_closed = threading.Event(), threading.Event()

    def used_seconds() -> float:
        if is_made.is_set():
            giving_way.close()
            is_closed.set()
        return 0.0

    giving_way = GivingWay(process, 2, used_seconds=used_seconds, look_seconds=0.01)
    is_made.set()
    assert is_closed.wait(WAIT_SECONDS)
    giving_way.close()
    assert not giving_way._thread.is_alive()


def test_a_stopped_process_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """Nobody would ever let it go on."""
    program = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import os, sys; os.setpgid(0, 0); "
        "print(1, flush=True); sys.stdin.read()'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "child.send_signal(signal.SIGSTOP)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until("stopped", child, "T")
        os.kill(parent.pid, 9)
        parent.wait(WAIT_SECONDS)
    wait_until("ended", child, "ZX")


PROGRAM = """
import signal, sys
from embedlib.session import preparing
wait = (
    "import embedlib.fidelity.preparing_process as p, time; "
    "p.prepare = lambda task: print('measures', flush=True) or time.sleep(600); "
)
preparing.START = preparing.START.replace("main(sys.stdin", f"{wait}main(sys.stdin")
task = preparing.Task(model="", precisions=(), is_background=True, options={})
child = preparing._start(task)
assert child.stdout.readline() == "measures\\n"
child.send_signal(signal.SIGSTOP)
print(child.pid, flush=True)
sys.stdin.read()
"""
REAPER = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]], **pipes)
child = int(program.stdout.readline())
print(child, flush=True)
sys.stdin.readline()
program.kill()
program.wait()
print(os.waitpid(child, 0)[0], flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_so_it_does_where_its_new_parent_is_in_the_same_session() -> None:
    """As the first process of a container is; the group is no orphan and gets no hangup signal."""
    with subprocess.Popen(
        [sys.executable, "-c", REAPER, PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reaper:
        assert reaper.stdout is not None
        child = int(reaper.stdout.readline())
        wait_until("stopped", child, "T")
        try:
            told, _ = reaper.communicate("\n", WAIT_SECONDS)
        finally:
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
    assert told == f"{child}\n"
