"""A model that fits into memory only in a precision that must be measured before."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.layerwise import LayerwiseEngine
from embedlib.engines.openvino.plans import memory
from embedlib.errors import EngineUnavailableError
from embedlib.fidelity.preparing import prepare
from embedlib.fidelity.remembered import RememberedVectors
from embedlib.models.compiled.fidelity_report import FidelityReport
from embedlib.models.compiled.report_cache import model_place
from embedlib.models.reading.files import read_model_files
from embedlib.session import preparing
from embedlib.session.preparing import Task
from embedlib.tuning import TuneOptions, tune

TOO_MUCH = 1 << 50
"""Bytes; no machine has so much memory."""


class OtherProcess:
    """Measures in this process, where a test can look on."""

    def __init__(self, task: Task) -> None:
        self.stdout = io.StringIO(prepare(task) + "\n")
        self.stdin = None
        self.returncode = 0

    def poll(self) -> int:
        return self.returncode

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        return self.returncode


@pytest.fixture(autouse=True)
def float32_does_not_fit(prepares: None, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_needs = memory.memory_needs

    def needs(files: Any, precision: Any, config: Any, *, is_widened: bool = False) -> Any:
        found = memory_needs(files, precision, config, is_widened=is_widened)
        is_too_large = precision.name == "float32"
        return replace(found, shared=TOO_MUCH, separate=TOO_MUCH) if is_too_large else found

    monkeypatch.setattr(memory, "memory_needs", needs)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Return what is measured."""
    found: list[Task] = []

    def start(task: Task) -> Any:
        found.append(task)
        return OtherProcess(task)

    monkeypatch.setattr(preparing, "_start", start)
    return found


@pytest.fixture
def load(tiny_folder: Callable[[str], Path], new_cache: Path) -> Callable[..., Embedder]:
    def make(**options: Any) -> Embedder:
        given = {"engine": "openvino", "threads": 1, "engine_cache_dir": new_cache}
        return Embedder(tiny_folder("bert"), **{**given, **options})

    return make


def passing(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    """Let every precision pass the gate, or none."""
    monkeypatch.setattr(FidelityReport, "passes", lambda *_: answer)


def test_it_is_measured_before_the_first_load(
    load: Callable[..., Embedder],
    tasks: list[Task],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    passing(monkeypatch, True)
    references: list[LayerwiseEngine] = []
    make = LayerwiseEngine.__init__

    def note(self: LayerwiseEngine, *args: Any) -> None:
        references.append(self)
        make(self, *args)

    monkeypatch.setattr(LayerwiseEngine, "__init__", note)
    with load() as embedder:
        assert embedder.precision == "int8"
        assert embedder.encode("text").any()
    assert len(references) == 1, "the reference is computed layer by layer"
    assert [task.is_needed for task in tasks] == [True]
    (told,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert told.endswith(", once, about 1 min: int8 must be measured before it is taken")
    with load() as embedder:
        assert embedder.precision == "int8"
    assert len(tasks) == 1, "it is known now"


def test_tune_waits_for_it_as_a_load_does(
    tasks: list[Task],
    tiny_folder: Callable[[str], Path],
    new_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing(monkeypatch, True)
    config = Config(engine="openvino", threads=1, engine_cache_dir=new_cache)
    tuned = tune(tiny_folder("bert"), TuneOptions(minutes=0.001, config=config))
    assert tuned.precision == "int8"
    assert [task.is_needed for task in tasks] == [True]


def test_what_does_not_pass_is_refused_with_what_was_found(
    load: Callable[..., Embedder], tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    passing(monkeypatch, False)
    message = (
        r"precision='int8' needs about \d.\d GiB; measured, and short of the gate "
        r"\(mean cosine 0.999, p1 0.998\): int8 mean cosine 0.99\d+, p1 0.99\d+ on 128 texts$"
    )
    for _ in range(2):
        with pytest.raises(EngineUnavailableError, match=message):
            load()
    assert len(tasks) == 1, "it is not measured again in vain"
    with load(precision="int8") as embedder:
        assert embedder.precision == "int8", "the remedy of the message"


def test_a_process_that_is_killed_is_told(
    load: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system ends it first where memory runs out."""
    monkeypatch.setattr(preparing, "START", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(EngineUnavailableError, match=r"the process that .* killed by signal 9$"):
        load()


def test_a_process_that_never_ends_is_told(
    load: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "START", "import sys; sys.stdin.read()")
    monkeypatch.setattr(preparing, "LONGEST_SECONDS", 0.06)
    with pytest.raises(EngineUnavailableError, match=r"; measuring takes longer than 0.001 min$"):
        load()


@pytest.mark.parametrize("options", [{"prepare": False}, {"engine_cache_dir": "/dev/null/cache"}])
def test_where_nothing_can_be_measured_it_is_refused(
    options: dict[str, Any], load: Callable[..., Embedder], tasks: list[Task]
) -> None:
    with pytest.raises(EngineUnavailableError, match="in float32, and this process can have"):
        load(**options)
    assert not tasks


def test_hours_are_not_waited_for(
    load: Callable[..., Embedder], tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "MOST_SECONDS", 0)
    with pytest.raises(EngineUnavailableError, match="in float32, and this process can have"):
        load()
    assert not tasks


def test_it_may_take_all_memory_and_goes_on_where_it_was_ended(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing(monkeypatch, True)
    folder = tiny_folder("bert")
    options = {"engine": "openvino", "threads": 1, "engine_cache_dir": str(tmp_path)}
    task = Task(model=str(folder), precisions=("int8",), is_background=False, options=options)
    kib = 600 * 1024  # enough for the tiny model and no second one
    short = Machine(read=lambda path: f"MemAvailable: {kib} kB\n" if "meminfo" in path else "")
    assert re.search(r"can have 0\.293 GiB", prepare(task, short)), "half of it beside a load"
    computed: list[str] = []
    get = RememberedVectors.get

    def count(self: RememberedVectors, precision: str, *args: Any) -> Any:
        *facts, compute = args

        def end_in_int8() -> Any:
            computed.append(precision)
            if computed == ["float32", "int8"]:
                raise KeyboardInterrupt
            return compute()

        return get(self, precision, *facts, end_in_int8)

    monkeypatch.setattr(RememberedVectors, "get", count)
    needed = replace(task, is_needed=True)
    with pytest.raises(KeyboardInterrupt):
        prepare(needed, short)
    assert prepare(needed, short).startswith("int8 has a mean cosine of")
    assert computed == ["float32", "int8", "int8"]
    place = model_place(read_model_files(folder), Config(engine_cache_dir=tmp_path))
    assert not list(place.glob("search-*")), "what is over is not kept"
