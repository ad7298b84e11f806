"""What a load measures by itself, in processes of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.config import Config
from embedlib.errors import PassingBuildError
from embedlib.fidelity.preparing import prepare
from embedlib.fidelity.preparing_process import read_task
from embedlib.models.compiled.fidelity_report import FidelityReport
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Head
from embedlib.progress.phases import SHOWN, Progress
from embedlib.session import estimates, preparing
from embedlib.session.estimates import quick_texts_for
from embedlib.session.preparing import START, Task
from tests.conftest import HUB_COMMIT
from tests.waiting import WAIT_SECONDS

Open = Callable[..., Embedder]


@pytest.fixture
def open_model(tiny_folder: Callable[[str], Path], new_cache: Path) -> Open:
    def make(**options: Any) -> Embedder:
        given = {"engine": "openvino", "threads": 1, "engine_cache_dir": new_cache}
        return Embedder(tiny_folder("bert"), **{**given, **options})

    return make


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Return the processes that loads start."""
    processes: list[subprocess.Popen[str]] = []
    start = preparing._start

    def remember(task: preparing.Task) -> Any:
        process = start(task)
        assert process is not None
        processes.append(process)
        return process

    monkeypatch.setattr(preparing, "_start", remember)
    return processes


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a load wait as long as a busy machine needs."""
    monkeypatch.setenv("EMBEDLIB_PREPARE_SECONDS", "300")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "embedlib.session.preparing"]


@pytest.mark.usefixtures("prepares", "patient")
def test_the_first_load_measures_and_the_next_one_knows(
    open_model: Open, started: list[subprocess.Popen[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), open_model() as embedder:
        first = embedder.precision
        assert embedder.encode("text").shape == (embedder.get_embedding_dimension(),)
        later = started[1:]  # int8 failed, so layers to keep are searched for
        assert embedder.precision == first
    lines = told(caplog)
    assert lines[0] == f"preparing {embedder.model_name} for this machine, once: int8"
    assert lines[1].startswith(f"prepared {embedder.model_name}: int8 has a mean cosine of 0.9")
    assert all(process.poll() is not None for process in started), "closing ends what goes on"
    decided = [r.getMessage() for r in caplog.records if r.name.endswith(".precision")]
    assert any("mean cosine 0.9" in line for line in decided), "the log says why"
    assert (first == "float32") == bool(later)
    del started[:]
    with open_model() as embedder:
        assert embedder.precision == first
        assert len(started) == len(later), "what was measured is not measured again"


@pytest.mark.usefixtures("prepares", "patient", "terminal")
def test_a_command_shows_it_on_its_own_screen(
    open_model: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("embedlib.progress.phases.TICK_SECONDS", 0.01)
    monkeypatch.setattr(preparing, "START", "import time; time.sleep(0.1)")
    with open_model() as embedder:
        line = f"Preparing {embedder.model_name} for this machine, once"
    assert line[:40] in capsys.readouterr().err
    with Progress(None) as progress:
        phases: list[str] = []
        monkeypatch.setattr(progress, "watch", lambda line, *_: phases.append(line))
        token = SHOWN.set(progress)
        open_model().close()
        SHOWN.reset(token)
    assert phases == [line, "Loading"]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize("options", [{"prepare": False}, {"precision": "float32"}])
def test_a_load_that_is_told_not_to(
    options: dict[str, Any], open_model: Open, started: list[subprocess.Popen[str]]
) -> None:
    with open_model(**options) as embedder:
        assert embedder.precision == "float32"
    assert not started


@pytest.mark.usefixtures("prepares")
def test_what_the_other_process_is_told_of_a_hub_model(
    tiny_folder: Callable[[str], Path],
    put_on_hub: Callable[[str, Path], dict[str, Any]],
    new_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks: list[str] = []
    monkeypatch.setattr(preparing, "_start", lambda task: tasks.append(json.dumps(asdict(task))))
    hub = put_on_hub("someone/bert", tiny_folder("bert"))
    options = {"prompts": {"query": "find: "}, "max_seq_tokens": 16, "threads": 1}
    Embedder("someone/bert", token="secret", engine_cache_dir=new_cache, **hub, **options).close()
    now, later = map(read_task, tasks)
    assert "secret" not in tasks[0] + tasks[1]
    assert (now.is_background, later.is_background) == (False, True)
    assert (now.model, now.precisions) == ("someone/bert", ("int8",))
    assert now.options["revision"] == HUB_COMMIT
    assert now.options["local_files_only"] is True
    assert {name: now.options[name] for name in options} == options
    assert prepare(now).startswith("int8 has a mean cosine of "), "it is found without the hub"


@pytest.mark.usefixtures("prepares")
def test_a_cache_that_cannot_be_written(
    open_model: Open,
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    with (
        caplog.at_level(logging.INFO),
        open_model(engine_cache_dir=tmp_path / "file" / "cache") as embedder,
    ):
        assert embedder.precision == "float32"
        assert embedder.encode("text").any()
    assert not started
    assert told(caplog)[0].endswith("cannot be written: Not a directory")


@pytest.mark.usefixtures("prepares", "patient")
def test_a_cache_that_is_full(
    open_model: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    monkeypatch.setattr(preparing, "START", small + START)
    with caplog.at_level(logging.INFO), open_model() as embedder:
        assert embedder.precision == "float32"
        assert embedder.encode("text").any()
    assert "File too large" in told(caplog)[1]


@pytest.mark.usefixtures("prepares")
def test_a_process_that_takes_too_long_or_dies(
    open_model: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    for name, program, given, line in (
        ("slow", "import sys; sys.stdin.read()", 0.5, "takes longer than 0.5 s"),
        (
            "dead",
            "import os; os.kill(os.getpid(), 9)",
            WAIT_SECONDS,
            "the process that measures was killed by signal 9",
        ),
    ):
        caplog.clear()
        monkeypatch.setattr(preparing, "START", program)
        options = {"engine_cache_dir": tmp_path / name, "prepare_seconds": given}
        with caplog.at_level(logging.INFO), open_model(**options) as embedder:
            assert embedder.precision == "float32"
        assert line in " ".join(told(caplog))
        for seconds, waits in ((given, name == "dead"), (given + 0.1, True), (0, False)):
            caplog.clear()
            with (
                caplog.at_level(logging.INFO),
                open_model(**options | {"prepare_seconds": seconds}),
            ):
                is_waiting = any("for this machine, once" in line for line in told(caplog))
            assert is_waiting == waits, "no load waits a second time for as long in vain"


@pytest.mark.usefixtures("prepares")
def test_no_load_waits_for_a_coarser_form_of_what_it_runs_in(
    open_model: Open, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FidelityReport, "passes", lambda *_: True)
    tried = ("int8-g128", "int8", "float32")
    monkeypatch.setattr("embedlib.engines.select.worthwhile", lambda *_: tried)
    tasks: list[Task] = []
    monkeypatch.setattr(preparing, "_start", tasks.append)
    with open_model() as embedder:
        options = {"threads": 1, "engine_cache_dir": str(embedder.config.engine_cache_dir)}
    assert [task.precisions for task in tasks] == [tried[:2]] * 2, "now, and beside the work"
    folder = str(tiny_folder("bert"))
    prepare(Task(model=folder, precisions=("int8",), is_background=False, options=options))
    tasks.clear()
    with open_model() as embedder:
        assert embedder.precision == "int8"
    assert [(task.precisions, task.is_background) for task in tasks] == [(("int8-g128",), True)]


@pytest.mark.usefixtures("prepares")
def test_a_machine_without_another_process(
    open_model: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with open_model() as embedder:
        assert embedder.precision == "float32"
    monkeypatch.setattr(sys, "executable", "/usr/sbin/a-server")  # it would start itself again
    with open_model() as embedder:
        assert embedder.precision == "float32"


@pytest.mark.usefixtures("prepares")
def test_a_load_that_finds_no_thread_to_look_measures_nothing(
    open_model: Open,
    started: list[subprocess.Popen[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise PassingBuildError("no more threads can be started")

    monkeypatch.setattr(preparing, "GivingWay", fail)
    caplog.set_level(logging.INFO)
    with open_model(prepare_seconds=0) as embedder:
        assert embedder.encode("a").shape == (32,)
        assert started[-1].returncode is not None
    assert told(caplog)[-1] == "no faster precision is measured: no more threads can be started"


def test_the_process_ends_with_the_program(tmp_path: Path) -> None:
    """A program that is killed closes its end of the pipe, and nothing else."""
    marker = tmp_path / "started"
    program = START.replace("main(sys.stdin", f"open({str(marker)!r}, 'w').close(); main(sys.stdin")
    wait = (
        "import embedlib.fidelity.preparing_process as p, time; "
        "p.prepare = lambda task: time.sleep(600); "
    )
    head, tail = program.split("from embedlib", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", f"{head}{wait}from embedlib{tail}", *sys.path],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write('{"model": "", "precisions": [], "is_background": false, "options": {}}\n')
    process.stdin.close()
    assert process.wait(WAIT_SECONDS) == 1
    assert marker.exists()


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="the system has no sessions")
def test_ctrl_c_spares_the_process_and_its_priority_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a session of its own it would take as much of the machine as the program."""
    folder = tmp_path / "embedlib" / "fidelity"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "preparing_process.py").write_text(
        "import os\n"
        "def main(tasks, answers):\n"
        "    print(os.getsid(0), os.getpgid(0), os.getpid(), file=answers, flush=True)\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    task = Task(model="", precisions=(), is_background=True, options={})
    process = preparing._start(task)
    assert process is not None
    process.wait(WAIT_SECONDS)
    session, group, number = map(int, preparing._answer(process).split())
    preparing._end(process, *forgetting([]))
    assert session == os.getsid(0), "priorities count within a session"
    assert group == number, "a terminal's Ctrl-C goes to the program's group"


@pytest.mark.usefixtures("takes_int8")
def test_a_later_measurement_changes_no_embedder(
    open_model: Open, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FidelityReport, "passes", lambda *_: True)
    with open_model(precision="float32") as embedder:
        right = embedder.encode("text", output_value="token_embeddings")
    with open_model() as embedder:
        made_in = embedder.fingerprint
        task = Task(
            model=str(tiny_folder("bert")),
            precisions=("int8",),
            is_background=False,
            options={"threads": 1, "engine_cache_dir": str(embedder.config.engine_cache_dir)},
        )
        assert prepare(task).startswith("int8 has a mean cosine of")
        found = embedder.encode("text", output_value="token_embeddings")  # of a second engine
        assert (embedder.precision, embedder.fingerprint) == ("float32", made_in)
    np.testing.assert_array_equal(found, right)
    with open_model() as embedder:
        assert (embedder.precision, embedder.fingerprint) == ("int8", made_in)


def test_which_models_are_measured_while_a_load_waits(
    tiny_folder: Callable[[str], Path],
) -> None:
    spec = read_model_files(tiny_folder("bert")).spec

    def sized(hidden: int, inner: int, layers: int) -> Any:
        encoder = replace(
            spec.encoder,
            hidden_size=hidden,
            intermediate_size=inner,
            num_layers=layers,
            windows=(None,) * layers,
            num_heads=hidden // 32,
            num_kv_heads=hidden // 32,
            head_dim=32,
        )
        return replace(spec, encoder=encoder)

    minilm, bert_base = sized(384, 1536, 6), sized(768, 3072, 12)
    bert_large, billion = sized(1024, 4096, 24), sized(2048, 8192, 24)

    def longest(
        spec: Any, flop_per_second: float, num_precisions: int = 3, max_seconds: float = 15
    ) -> int | None:
        texts = quick_texts_for(spec, num_precisions, flop_per_second, max_seconds)
        return texts and texts.max_tokens

    two_cores = 1e11
    assert longest(minilm, two_cores) == 128
    assert longest(bert_base, two_cores) == 32, "a larger model is measured on shorter texts"
    assert longest(bert_base, 10 * two_cores) == 128
    assert longest(bert_large, two_cores) is None
    assert longest(bert_large, 5 * two_cores) == 32
    assert longest(bert_large, 3 * two_cores, num_precisions=1) == 32, "less is left to measure"
    assert longest(bert_large, 3 * two_cores) is None
    assert longest(bert_large, two_cores, max_seconds=60) == 32, "a patient program waits longer"
    assert longest(bert_large, 1e15) == 32, "its weights are read and written too"
    assert longest(billion, 8 * two_cores) is None
    reranker = replace(minilm, head=Head(labels=("score",), activation="identity"))
    assert longest(reranker, two_cores / 4) is None, "pairs are many more"
    assert longest(reranker, 2 * two_cores) == 32


def test_the_speed_of_the_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 9.0, 10.0, 12.0, 20.0, 25.0) * 2)  # the second one took 2 of them
    monkeypatch.setattr(estimates.time, "process_time", lambda: next(seconds))
    assert estimates.flop_per_second(1) == pytest.approx(0.7 * 512**3)
    assert estimates.flop_per_second(8) == pytest.approx(8 * 0.7 * 512**3)


@pytest.mark.usefixtures("prepares", "patient")
def test_two_programs_that_start_at_once(
    open_model: Open, tiny_folder: Callable[[str], Path], new_cache: Path
) -> None:
    """Both measure or one waits for the other; both get an answer."""
    program = (
        "import embedlib.engines.select as s\n"
        "s.worthwhile = lambda *_: ('int8', 'float32')\n"
        "from embedlib import Embedder\n"
        f"with Embedder({str(tiny_folder('bert'))!r}, engine='openvino', threads=1, "
        f"engine_cache_dir={str(new_cache)!r}) as e:\n"
        "    print(e.precision, e.encode('text').shape)\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(2)
    ]
    answers = {process.communicate(timeout=WAIT_SECONDS)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(answers) == 1
    assert list((new_cache / "compiled").glob("int8-*/fidelity.json"))


def forgetting(killed: list[int]) -> tuple[Any, Config]:
    """Return the plan of an engine that keeps which processes were killed."""
    kind = SimpleNamespace(forget_process=lambda process, _: killed.append(process))
    return SimpleNamespace(kind=kind), Config()


@pytest.mark.parametrize("has_ended", [False, True])
def test_the_engine_is_told_which_process_was_killed(has_ended: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.readline()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if has_ended:
        process.communicate("\n")
    killed: list[int] = []
    preparing._end(process, *forgetting(killed))
    assert set(killed) == (set() if has_ended else {process.pid})


def test_the_engine_is_told_before_another_process_can_take_the_place() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.readline()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    was_running: list[bool] = []
    kind = SimpleNamespace(forget_process=lambda *_: was_running.append(process.poll() is None))
    preparing._end(process, SimpleNamespace(kind=kind), Config())  # type: ignore[arg-type]
    assert was_running == [True, False]
