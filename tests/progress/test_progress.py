"""How far some work has come: on a terminal, in a log, and on a clock that the test moves."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

import pytest

from embedlib.progress.phases import Progress
from embedlib.progress.screens import Bar, Log, Reading, duration, open_screen, terminal_columns


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Work whose rows are done when the test says so."""

    done = 0
    total: int | None = None
    note = ""

    def read(self) -> Reading:
        return Reading(done=self.done, total=self.total, note=self.note)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def in_log(out: TextIO, clock: Clock) -> Progress:
    return Progress(Log(out, clock), clock)


def on_terminal(out: TextIO, clock: Clock, delay: float = 0.0) -> Progress:
    return Progress(Bar(out, 80, delay), clock)


def test_the_clock_of_a_bar_ticks_while_nothing_is_finished(
    out: io.StringIO, clock: Clock, work: Work
) -> None:
    work.total = 500
    progress = on_terminal(out, clock)
    progress.watch("Encoding", "texts", work.read)
    for now, done in ((1.0, 0), (2.0, 0), (33.0, 250)):
        clock.now, work.done = now, done
        progress.tick()
    lines = out.getvalue().split("\r")
    assert [line[: line.index("|")] for line in lines] == ["Encoding:   0%"] * 2 + [
        "Encoding:  50%"
    ]
    assert "0/500 [00:01<?, ? texts/s]" in lines[0]
    assert "0/500 [00:02<?, ? texts/s]" in lines[1]
    assert "250/500 [00:33<00:31,  8.06 texts/s]" in lines[2]  # of the last half minute
    assert max(map(len, lines)) < 80


def test_a_log_gets_a_line_every_ten_seconds_and_none_in_the_first_ten(
    out: io.StringIO, clock: Clock, work: Work
) -> None:
    progress = in_log(out, clock)
    progress.watch("Indexing", "docs", work.read)
    for second in range(1, 10):
        clock.now = float(second)
        progress.tick()
    assert out.getvalue() == ""
    for now, done, total in ((10.0, 1000, None), (19.5, 1500, None), (20.0, 2000, 9000)):
        clock.now, work.done, work.total, work.note = now, done, total, "3 unchanged"
        progress.tick()
    assert out.getvalue().splitlines() == [
        "Indexing: 1,000 docs in 10 s, 100.0 docs/s, 3 unchanged",
        "Indexing: 2,000 of 9,000 docs in 20 s, 100.0 docs/s, 70 s left, 3 unchanged",
    ]
    with progress:
        pass
    assert out.getvalue().count("\n") == 2  # the end adds none


def test_a_log_says_each_minute_once(out: io.StringIO, clock: Clock) -> None:
    progress = in_log(out, clock)
    progress.watch("measuring")
    for seconds in range(80, 200, 10):
        clock.now = float(seconds)
        progress.tick()
    assert out.getvalue().splitlines() == [
        "measuring: 80 s",
        "measuring: 2 min",
        "measuring: 3 min",
    ]


def test_the_next_phase_keeps_what_was_counted_and_drops_a_mere_clock(
    out: io.StringIO, clock: Clock, work: Work
) -> None:
    with on_terminal(out, clock) as progress:
        progress.watch("Loading")
        clock.now = 61.0
        progress.tick()
        progress.watch("Encoding", "texts", work.read)
        work.done = 7
        progress.say("a notice")
    shown = out.getvalue()
    assert shown.startswith("Loading [01:01]\r" + " " * 15)
    assert "a notice\n" in shown
    assert shown.endswith("Encoding: 7 texts [00:00, ? texts/s]\n")


def test_a_line_goes_above_the_bar(out: io.StringIO, clock: Clock) -> None:
    progress = on_terminal(out, clock)
    progress.watch("Loading the model")
    progress.tick()
    progress.say("short")
    assert out.getvalue() == (
        "Loading the model [00:00]\rshort" + " " * 20 + "\nLoading the model [00:00]"
    )


def test_a_terminal_obeys_no_name_in_a_line(out: io.StringIO, clock: Clock) -> None:
    in_log(out, clock).say("a\x1b[31m\nb.csv: told")
    assert out.getvalue() == "a\\x1b[31m\\nb.csv: told\n"


def test_slow_work_has_seconds_per_unit(out: io.StringIO, clock: Clock, work: Work) -> None:
    progress = on_terminal(out, clock)
    progress.watch("Indexing", "docs", work.read)
    clock.now, work.done = 5.0, 2
    progress.tick()
    assert "2 docs [00:05,  2.50s/docs]" in out.getvalue()


def test_a_bar_may_wait_before_it_appears(out: io.StringIO, clock: Clock, work: Work) -> None:
    with on_terminal(out, clock, delay=2.0) as progress:
        progress.watch("Encoding", "texts", work.read)
        clock.now = 1.9
        progress.tick()
    assert out.getvalue() == ""


def test_bytes_are_megabytes(out: io.StringIO, clock: Clock, work: Work) -> None:
    work.done, work.total = 1_500_000, 3_000_000
    for progress in (in_log(out, clock), on_terminal(out, clock)):
        clock.now = 0.0
        progress.watch("Compiling", "B", work.read)
        clock.now = 10.0
        progress.tick()
    line, bar = out.getvalue().splitlines()
    assert line == "Compiling: 1.5 MB of 3.0 MB in 10 s, 0.1 MB/s, 10 s left"
    assert "1.50M/3.00M [00:10<00:10, 150kB/s]" in bar


def test_the_rate_is_that_of_the_last_half_minute(
    out: io.StringIO, clock: Clock, work: Work
) -> None:
    progress = in_log(out, clock)
    progress.watch("Indexing", "docs", work.read)
    for now, done in ((10.0, 10_000), (40.0, 10_030), (80.0, 10_070)):
        clock.now, work.done = now, done
        progress.tick()
    assert out.getvalue().splitlines()[-1] == "Indexing: 10,070 docs in 80 s, 1.0 docs/s"


def test_the_work_goes_on_when_nobody_can_watch(clock: Clock) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with in_log(Full(), clock) as progress:
        progress.say("lost")
        progress.watch("Loading")
        clock.now = 10.0
        progress.tick()


def test_a_stream_that_can_only_be_written_to_is_a_log(clock: Clock) -> None:
    class Logger:
        def __init__(self) -> None:
            self.written: list[str] = []

        def write(self, text: str) -> None:
            self.written.append(text)

    logger = Logger()
    screen = open_screen(cast(TextIO, logger), clock)
    assert isinstance(screen, Log)
    with Progress(screen, clock) as progress:
        progress.say("told")
        progress.watch("Loading")
    assert logger.written == ["told\n"]


def test_the_thread_has_a_name_and_ends(out: io.StringIO, clock: Clock) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    with on_terminal(out, clock):
        assert "embedlib-progress" in names()
    assert "embedlib-progress" not in names()
    with Progress(None):
        assert "embedlib-progress" not in names()


def test_work_goes_on_where_no_thread_can_be_started_to_watch_it(
    out: io.StringIO, clock: Clock, limit_threads: Callable[[int], list[str]]
) -> None:
    limit_threads(0)
    with on_terminal(out, clock) as progress:
        progress.watch("Encoding", "texts", lambda: Reading(done=3, total=3))
    assert "Encoding" in out.getvalue()


@contextmanager
def pseudo_terminal(columns: int) -> Iterator[TextIO]:
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as stream:
        yield stream


@pytest.mark.parametrize(("columns", "kind"), [(0, Log), (80, Bar)])
def test_a_terminal_without_columns_is_a_log(columns: int, kind: type) -> None:
    with pseudo_terminal(columns) as stream:
        assert terminal_columns(stream) == columns
        assert isinstance(open_screen(stream), kind)


def test_other_streams(out: io.StringIO) -> None:
    class Stand(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Notebook(io.StringIO):
        __module__ = "ipykernel.iostream"

    assert isinstance(open_screen(out), Log)
    assert isinstance(open_screen(Stand()), Log)
    assert isinstance(open_screen(Notebook()), Bar)
    assert open_screen(None) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (5400.0, "1.5 h")]
)
def test_a_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
