from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib.bench.worker import ContestantCalls
from embedlib.measuring.child import serve
from embedlib.measuring.process import ContestantFailedError
from embedlib.vectors.arrays import Vectors

MS = 1e-3


class FakeClock:
    """Time passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeContestant:
    """Takes `seconds_per_text`, more the further `batch_size` is from its best."""

    packages: tuple[str, ...] = ("pytest", "not-a-package")

    def __init__(
        self,
        clock: FakeClock,
        *,
        seconds_per_text: float = 1 * MS,
        best_batch_size: int | None = None,
        offset: float = 0.0,
    ) -> None:
        self.clock = clock
        self.seconds_per_text = seconds_per_text
        self.best_batch_size = best_batch_size
        self.offset = offset
        self.events: list[tuple[Any, ...]] = []
        self.num_tokens = 0

    def import_library(self) -> None:
        self.clock.now += 100

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        is_cold = not (cache_dir / "filled").exists()
        self.events.append(("load", folder.name, is_cold, threads, options))
        self.clock.now += 8 if is_cold else 2

    def fill_cache(self, cache_dir: Path) -> None:
        (cache_dir / "filled").touch()

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        self.events.append(("encode", len(texts), batch_size))
        penalty = 0 if batch_size == self.best_batch_size else 1
        self.clock.now += len(texts) * self.seconds_per_text * (1 + penalty)
        self.num_tokens += sum(map(len, texts))
        return np.array([[len(text), self.offset] for text in texts], np.float32)

    def query(self, text: str) -> Vectors:
        self.events.append(("query", text))
        self.clock.now += self.seconds_per_text
        self.num_tokens += len(text)
        return np.array([len(text), self.offset], np.float32)

    def precision(self) -> str:
        return "float32"

    def memory(self) -> dict[str, float]:
        return {"peak": 3.0, "anonymous": 1.0}

    def stats(self) -> dict[str, float]:
        return {
            "num_tokens": self.num_tokens,
            "num_truncated": 0,
            "padding_share": 0.25,
            "engine_idle_share": 0.125,
        }


def exchange(calls: object, requests: Sequence[str]) -> list[dict[str, Any]]:
    """Send lines through the protocol and return the replies."""
    replies = io.StringIO()
    serve(calls, io.StringIO("".join(f"{line}\n" for line in requests)), replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


class FakeProcess:
    """A contestant in this process, spoken to in the same lines as a child."""

    def __init__(self, name: str, calls: object, age_s: float, log: list[str]) -> None:
        self.name = name
        self.calls = calls
        self.age_s = age_s
        self.log = log

    def __enter__(self) -> FakeProcess:
        self.log.append(f"{self.name} starts")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.log.append(f"{self.name} ends")

    def call(self, name: str, **arguments: Any) -> Any:
        self.log.append(f"{self.name} {name}")
        [reply] = exchange(self.calls, [json.dumps({"call": name, "arguments": arguments})])
        if "error" in reply:
            raise ContestantFailedError(self.name, reply["error"])
        return reply["result"]


class FakeSgemm:
    """Finds rates that rise from round to round; memory is read at 1 GB/s."""

    def __init__(self) -> None:
        self.rounds = itertools.count(1)

    def measure(self, shapes: list[list[int]], seconds: float) -> dict[str, Any]:
        number = next(self.rounds)
        return {"float32": {"numpy": number * 1e9, "torch": number * 2e9}}

    def read(self, seconds: float) -> float:
        return 1e9


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_fake(clock: FakeClock) -> Callable[..., FakeContestant]:
    """Return a function that makes fake contestants on one clock."""
    return lambda **options: FakeContestant(clock, **options)


@pytest.fixture
def calls(clock: FakeClock) -> Callable[[FakeContestant], ContestantCalls]:
    """Return a function that puts the protocol's calls around a fake."""
    return lambda fake: ContestantCalls(fake, clock)


@pytest.fixture
def serve_lines() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that asks calls by name, through the protocol."""

    def ask(calls: object, *requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        lines = [json.dumps({"call": name, "arguments": rest}) for name, rest in requests]
        return exchange(calls, lines)

    return ask


class Course:
    """Starts fakes in the place of child processes and writes down what happens."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.log: list[str] = []
        self.threads: list[tuple[str, int, int | None]] = []
        self.fakes: dict[str, FakeContestant] = {}
        self.broken: dict[str, set[str]] = {}
        """Calls that fail, by contestant."""
        self.lacking: dict[str, tuple[str, ...]] = {}
        """Modules that are not installed, by contestant."""
        self.sgemm = FakeSgemm()

    def start(self, name: str, threads: int, library_threads: int | None) -> FakeProcess:
        self.threads.append((name, threads, library_threads))
        if name == "sgemm":
            return FakeProcess(name, self.sgemm, 0, self.log)
        calls: Any = FakeCalls(self.fakes[name], self.clock)
        calls.lacking = self.lacking.get(name, ())
        for broken in self.broken.get(name, ()):
            setattr(calls, broken, None)  # not callable: an error like any other
        return FakeProcess(name, calls, len(self.threads), self.log)


class FakeCalls(ContestantCalls):
    """Beside a bulk job, queries take 20 ms and slow it down by a quarter."""

    lacking: tuple[str, ...] = ()

    def missing(self, peer: str) -> list[str]:
        return list(self.lacking)

    def mixed(
        self, seconds: float, interval_s: float, batch_size: int | None
    ) -> dict[str, list[float]]:
        return {
            "without_s": [3.0, 3.0, 3.0],
            "with_s": [4.0, 4.0],
            "latencies_ms": [10.0, 20.0, 30.0],
        }


@pytest.fixture
def course(clock: FakeClock) -> Course:
    """Return a course with embedlib and two peers of half and a quarter of its speed."""
    course = Course(clock)
    course.fakes = {
        "embedlib": FakeContestant(clock, seconds_per_text=1 * MS),
        "embedlib-float32": FakeContestant(clock, seconds_per_text=1.5 * MS),
        "sentence-transformers": FakeContestant(
            clock, seconds_per_text=2 * MS, best_batch_size=16, offset=0.5
        ),
        "sentence-transformers-openvino": FakeContestant(
            clock, seconds_per_text=4 * MS, best_batch_size=64, offset=0.25
        ),
    }
    return course
