"""Jobs on threads: all run, an error is raised to the caller, and no thread is left."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from embedlib.models.compiled.jobs import CompileJob, run_jobs
from embedlib.models.weights.file_hashes import ReportBytes
from tests.waiting import WAIT_SECONDS

MANY = 3_000_000
"""More reports than a job can make before another job's error stops it."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def ignore(num_bytes: int) -> None:
    pass


@pytest.mark.parametrize("num_threads", [1, 2, 64])
def test_all_are_done_and_told(num_threads: int) -> None:
    done: list[int] = []
    told: list[int] = []
    names: set[str] = set()

    def job(number: int) -> CompileJob:
        def work(report: ReportBytes) -> None:
            names.add(threading.current_thread().name)
            report(number)
            done.append(number)

        return work

    run_jobs([job(number) for number in range(50)], num_threads, told.append)
    assert sorted(done) == sorted(told) == list(range(50))
    if num_threads == 1:
        assert done == list(range(50))
    assert all(name.startswith("embedlib-compile") for name in names)
    assert len(names) <= min(num_threads, 4)


def test_they_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=WAIT_SECONDS)
    run_jobs([lambda report: both.wait()] * 2, 2, ignore)


def test_one_is_heard_at_a_time() -> None:
    met, both = list[int](), threading.Barrier(2)

    def hear(num_bytes: int) -> None:
        with suppress(threading.BrokenBarrierError):
            met.append(both.wait(0.1))

    run_jobs([lambda report: report(1)] * 2, 2, hear)
    assert met == []


def test_an_error_is_told_and_ends_the_others() -> None:
    is_running = threading.Event()
    num_started = []
    survived = []

    def long(report: ReportBytes) -> None:
        is_running.set()
        for _ in range(MANY):
            report(1)
        survived.append(1)

    def broken(report: ReportBytes) -> None:
        assert is_running.wait(WAIT_SECONDS)
        raise ValueError("the tensor is broken")

    def later(report: ReportBytes) -> None:
        num_started.append(1)

    with pytest.raises(ValueError, match="the tensor is broken"):
        run_jobs([long, broken, later, later, later], 2, ignore)
    assert len(num_started) < 3
    assert survived == []


@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_error_of_who_hears_ends_all(num_threads: int) -> None:
    def hear(num_bytes: int) -> None:
        raise OSError("no longer interested")

    survived = []

    def long(report: ReportBytes) -> None:
        for _ in range(MANY):
            report(1)
        survived.append(1)

    with pytest.raises(OSError, match="no longer interested"):
        run_jobs([long] * 3, num_threads, hear)
    assert survived == []


def test_ctrl_c_ends_all() -> None:
    program = f"""
    import signal, threading
    from embedlib.models.compiled.jobs import run_jobs
    survived = []
    def interrupted(report):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        for _ in range({MANY}):
            report(1)
        survived.append(1)
    # What a shell starts with & ignores the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_jobs([lambda report: None, interrupted], 1, lambda num_bytes: None)
    except KeyboardInterrupt:
        print("interrupted", survived)
    """
    # In a separate process: the signal would interrupt the test run.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted []\n", "")
