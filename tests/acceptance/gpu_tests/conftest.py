from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib.measuring.child import serve
from embedlib.measuring.process import ContestantFailedError, OverBudgetError
from tests.acceptance.gpu import peers_block, run
from tests.acceptance.gpu.options import GpuOptions
from tests.machines import H200

Line = dict[str, Any]


class FakeClock:
    """Time passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeProcess:
    """Somebody in this process, spoken to in the same lines as a child."""

    def __init__(self, course: Course, number: int, name: str, calls: object) -> None:
        self.course = course
        self.name = name
        self.who = f"{name} {number}"
        self.calls = calls
        self.age_s = float(number)

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.course.log.append(f"{self.who} {'is killed' if exc_info[0] else 'ends'}")

    def call(self, name: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        self.course.log.append(f"{self.who} {name}")
        self.course.timeouts.append(timeout_s)
        if (self.name, name) in self.course.hanging:
            assert timeout_s is not None
            self.course.clock.now += timeout_s
            raise OverBudgetError(self.name, f"{name} took too long")
        replies = io.StringIO()
        request = json.dumps({"call": name, "arguments": arguments})
        serve(self.calls, io.StringIO(f"{request}\n"), replies)
        reply = json.loads(replies.getvalue())
        if "error" in reply:
            raise ContestantFailedError(self.name, reply["error"])
        return reply["result"]


class FakeCalls:
    """Whoever it is: what it is asked takes its time and gives a number known beforehand."""

    def __init__(self, course: Course, name: str, folder: Path) -> None:
        self.course = course
        self.name = name
        self.folder = folder
        self.rate = 0.0
        self.factor = 1.0

    def __getattribute__(self, name: str) -> Any:
        course = object.__getattribute__(self, "course")
        if (object.__getattribute__(self, "name"), name) in course.broken:
            raise RuntimeError(f"no {name} today")
        return object.__getattribute__(self, name)

    def versions(self) -> Line:
        return {"device": "a fake"}

    def products(self, model: str, index: int) -> list[Line]:
        sizes = [[30, 10], [10, 20], [40, 10], [10, 40]][index]
        rates = {"bf16": 500.0, "fp8, one way": 900.0, "fp8, another way": 1000.0}
        few = {"what": "fp8, one way", "shape": [1, *sizes], "tflops": 2000.0}
        return [
            few,
            *({"what": what, "shape": [9, *sizes], "tflops": rates[what]} for what in rates),
        ]

    def copy(self) -> Line:
        return {"what": "copy", "tbytes_per_s": 4.0}

    def sustained(self, model: str, seconds: float) -> Line:
        self.course.clock.now += seconds
        return {"what": "fp8", "is_sustained": True, "shape": [99, 1, 1], "tflops": 800.0}

    def load(self, model: str, **options: Any) -> Line:
        self.course.clock.now += 5
        self.course.loads.append((self.name, model, options))
        chosen = [f"{name}={value}" for name, value in options.items()]
        for missing in self.course.missing.intersection(chosen):
            raise RuntimeError(f"{missing} is not here")
        self.factor = math.prod(self.course.factors.get(option, 1.0) for option in chosen)
        key = options.get("precision") or options.get("quantization") or self.name
        self.rate = self.course.rates.get(f"{key} {options.get('max_num_batched_tokens', '')}", 0)
        self.rate = self.rate or self.course.rates[key]
        return {"seconds": 5.0}

    def prepare(self, lengths: str) -> Line:
        return {"batch_tokens": 7} if self.name != "vllm" else {}

    def bulk(self, lengths: str, seconds: float) -> Line:
        self.course.clock.now += seconds
        rate = self.factor * self.rate
        return {"tokens_per_s": rate, "texts_per_s": rate / 512, "tflops": 870.0}

    def query(self, num_tokens: int, seconds: float, prefix_tokens: int = 0) -> Line:
        self.course.clock.now += seconds
        all_tokens = (prefix_tokens + num_tokens) / self.factor
        return {"num_queries": 9, "p50_ms": all_tokens / 8, "p99_ms": all_tokens}

    encode = query

    def mixed(self, queries_per_s: float, num_tokens: int, seconds: float) -> Line:
        self.course.clock.now += 2 * seconds
        loss = queries_per_s / 1000
        return {"queries_per_s": queries_per_s, "p99_ms": 9.0, "bulk_loss": loss}

    def clients(self, num_clients: int, num_tokens: int, seconds: float) -> Line:
        self.course.clock.now += seconds
        return {"num_clients": num_clients, "p99_ms": 21.0, "num_refused": 0}

    def vectors(
        self,
        path: str,
        lengths: list[int] | None = None,
        folder: str = "",
        prefix_tokens: int = 0,
    ) -> Line:
        angle = 0.1 if self.name == "vllm" or self.factor != 1 else 0.0
        np.save(path, np.array([[3 * np.cos(angle), 3 * np.sin(angle)]] * 2))
        return {"by": "somebody"}

    def checks(self, allowed: float) -> list[Line]:
        return [{"check": "mixes", "found": 0.0, "allowed": 1.0, "passed": True}]

    def compare(self, check: str, path: str, allowed: float) -> Line:
        passed = check not in self.course.wrong
        return {"check": check, "found": 0.5, "allowed": allowed, "passed": passed}

    def find_room(self, model: str, copies: float) -> str:
        return str(self.folder)

    def write(self, folder: str, model: str, num_layers: int | None = None) -> Line:
        return {"seconds": 1.0}

    def first_vector(self, folder: str, cache_dir: str) -> Line:
        self.course.clock.now += 10
        return {"constructor_s": 10.0}


class Course:
    """Starts fakes in the place of child processes and writes down what happens."""

    def __init__(self, clock: FakeClock, folder: Path) -> None:
        self.clock = clock
        self.folder = folder
        self.log: list[str] = []
        self.timeouts: list[float | None] = []
        self.loads: list[tuple[str, str, Line]] = []
        self.paths: list[tuple[str, Path | None]] = []
        self.broken: set[tuple[str, str]] = set()
        self.hanging: set[tuple[str, str]] = set()
        self.wrong: set[str] = set()
        """Checks that do not pass."""
        self.rates = {"fp8": 80_000.0, "bf16": 50_000.0, "sentence-transformers": 20_000.0}
        self.factors: dict[str, float] = {}
        """By an option, how many times as fast it makes an engine."""
        self.missing: set[str] = set()
        """Options that cannot be had."""
        self.written: list[str] = []

    def start(self, name: str, device: str, path: Path | None) -> FakeProcess:
        self.paths.append((name, path))
        return FakeProcess(self, len(self.paths), name, FakeCalls(self, name, self.folder))

    def run(self, **options: Any) -> list[Line]:
        return run.run_gpu_bench(
            GpuOptions(**{"models": ("bge-en-icl",), **options}),
            self.written.append,
            circumstances={"command": "a | b"},
            start=self.start,
            clock=self.clock,
        )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def course(clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """Return a course with a GPU, and all packages as if they were installed."""
    monkeypatch.setattr(run, "list_gpus", lambda: [H200])
    monkeypatch.setattr(run, "PACKAGES", dict.fromkeys(run.PACKAGES, ()))
    monkeypatch.setattr(peers_block, "missing_of", lambda modules: [])
    return Course(clock, tmp_path)


@pytest.fixture
def find() -> Callable[..., list[Line]]:
    """Return a function that finds lines by their facts."""

    def find(lines: list[Line], **facts: Any) -> list[Line]:
        return [line for line in lines if all(line.get(key) == facts[key] for key in facts)]

    return find
