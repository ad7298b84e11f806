"""`embedlib tune` from the command line to the next load."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import chain, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.cli import main
from embedlib.config import Config
from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda.kind import KIND as CUDA
from embedlib.engines.kind import ChosenPrecision, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.profile import Profile
from embedlib.errors import (
    ClosedError,
    ConfigError,
    EngineBuildError,
    EngineRunError,
    EngineUnavailableError,
    EngineUnsupportedError,
)
from embedlib.measuring.spread import Spread
from embedlib.measuring.texts import QUERIES
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import model_fingerprint
from embedlib.models.compiled.fidelity_report import write_report
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec
from embedlib.tuning import Tuned, TuneOptions, tune
from embedlib.tuning import runners as running
from embedlib.tuning.runners import EmbeddingRunner, EmbeddingRunners, Planned
from embedlib.tuning.search import BETTER, Row, Step
from tests.fidelity_reports import make_report
from tests.waiting import WAIT_SECONDS

tuning = import_module("embedlib.tuning.tune")


def many(number: int) -> str:
    """Lines that all differ."""
    return "".join(f"a text {'x' * place}\n" for place in range(number))


def test_a_profile_is_written_and_used(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder, texts = tiny_folder("bert"), tmp_path / "texts.txt"
    texts.write_text(many(40), encoding="utf-8")
    options = ["--minutes", "0.001", "--texts", str(texts), "--threads", "2"]
    options += ["--engine-cache-dir", str(tmp_path), "--precision", "float32"]
    result = CliRunner().invoke(main, ["tune", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert "From now on: tuned: 512 tokens" in result.output
    (path,) = (tmp_path / "profiles").iterdir()
    assert str(path) in result.output
    assert json.loads(path.read_text(encoding="utf-8"))["measured"]["num_texts"] == 32
    assert {entry.name for entry in tmp_path.iterdir()} == {"profiles", "texts.txt"}
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with Embedder(folder, config=config) as embedder:
        assert embedder.stats().profile.startswith("tuned: ")


def test_what_was_tried_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(max_batch_tokens=1024, num_streams=2, shares_lanes=True, library="auto")
    rows = (
        Row(profile=profile, verdict="better", bulk=Spread.of([1.1, 1.2, 1.3]), query=0.5),
        Row(profile=profile, verdict="not tried: no memory"),
    )
    found = Tuned(
        default=profile,
        profile=profile,
        rows=rows,
        num_texts=32,
        num_tokens=900,
        tokens_per_s=12345.6,
        precision="float32",
        path=Path("p.json"),
    )
    monkeypatch.setattr(import_module("embedlib.tuning"), "tune", lambda *_, **__: found)
    result = CliRunner().invoke(main, ["tune", "m"])
    cells = [
        [cell.strip() for cell in line.split("|")[6:-1]] for line in result.output.splitlines()
    ]
    assert cells[2:4] == [
        ["1.20x (1.10 to 1.30)", "0.50x", "", "better"],
        ["", "", "", "not tried: no memory"],
    ]
    assert "| one model |" in result.output
    content = json.loads(CliRunner().invoke(main, ["tune", "m", "--json"]).stdout)
    assert content["profile"]["max_batch_tokens"] == 1024
    assert [row["verdict"] for row in content["rows"]] == ["better", "not tried: no memory"]
    assert (content["tokens_per_s"], content["path"]) == (12345.6, "p.json")


def test_what_is_compiled_only_now_has_its_profile_at_the_next_load(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # Its matrices are stored in 16 bits, those of its engine directory are not.
    folder = tiny_folder("mistral")
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="int8", engine="openvino")
    tune(folder, TuneOptions(minutes=0.001, config=config))
    for _ in range(2):  # of two loads the second would find what the first had compiled
        with Embedder(folder, config=config) as embedder:
            assert embedder.stats().profile.startswith("tuned: ")


def test_auto_is_tuned_in_the_precision_that_loads_take(
    takes_int8: None,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(threads=2, engine_cache_dir=tmp_path, engine="openvino")

    def prepare(opened: OpenedModel, files: ModelFiles, plan: EnginePlan) -> bool:
        assert plan.precision.name == "float32"
        made = compile_model(files, "int8", (), opened.config)
        write_report(made, make_report(fingerprint=model_fingerprint(files)))
        return True

    with monkeypatch.context() as patched:
        patched.setattr(import_module("embedlib.session.loading"), "prepare_now", prepare)
        tuned = tune(tiny_folder("bert"), TuneOptions(minutes=0.001, config=config))
    assert tuned.precision == "int8"
    with Embedder(tiny_folder("bert"), config=config) as embedder:
        assert embedder.stats().profile.startswith("tuned: ")


def test_a_file_with_too_few_texts_is_refused_before_the_model_is_looked_for(
    tmp_path: Path,
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(many(31) + "a text x\n" * 9)
    with pytest.raises(ConfigError, match=r"has 31 different texts, and a pass has at least 32;"):
        tune(tmp_path / "no model", TuneOptions(texts_path=texts))


def test_a_text_that_is_there_twice_counts_once(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n" * 40 + many(31))  # 32 of them differ, the least of a pass
    options: Any = {"threads": 2, "engine_cache_dir": tmp_path, "precision": "float32"}
    config = Config(**options, max_seq_tokens=4)
    tuned = tune(tiny_folder("bert"), TuneOptions(minutes=0.001, texts_path=texts, config=config))
    assert (tuned.num_texts, tuned.num_tokens) == (32, 32 * 4)


def test_a_query_that_fails_beside_bulk_is_not_taken_for_a_quick_one() -> None:
    class Failing:
        """Answers the first query, and no other; a bulk pass ends when the second was asked."""

        def __init__(self) -> None:
            self.num_asked = 0
            self.is_asked = threading.Event()

        def encode(self, texts: object, **_: object) -> None:
            if isinstance(texts, list):
                assert self.is_asked.wait(WAIT_SECONDS)
                return
            self.num_asked += 1
            if self.num_asked == 2:
                self.is_asked.set()
                raise EngineRunError("no answer")

    runner = EmbeddingRunner(Failing(), ["a text"])  # type: ignore[arg-type] # what is called
    with pytest.raises(EngineRunError, match="no answer"):
        runner.beside()


class Fake(FakeEngine):
    def compute(self, batch: Batch) -> NDArray[np.float32]:
        return self.submit(batch, lambda: None).result()


def test_profiles_of_one_layout_share_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made, profiles = list[Fake](), list[Profile | None]()
    has_memory = True

    def make(plan: EnginePlan, *_: object) -> Fake:
        profiles.append(plan.profile)
        made.append(Fake(max_batch_tokens=7))
        return made[-1]

    def again(plan: EnginePlan, *_: object) -> EnginePlan:
        if not has_memory:
            raise EngineUnavailableError("no memory")
        return plan

    monkeypatch.setattr(running, "make_engine", make)
    monkeypatch.setattr(running, "plan_again", again)
    files: Any = SimpleNamespace(spec=fake_spec(16))
    plan = EnginePlan(
        kind=KIND, devices=("cpu",), hardware="", precision=ChosenPrecision(name="float32")
    )
    config = Config(threads=1)
    opened = EmbeddingRunners(
        Planned(files=files, tokenizer=byte_tokenizer(), plan=plan, config=config)
    )
    opened.texts = ["12345678", "abcdefgh", "a text that is longer than the limit"]
    first = Profile(max_batch_tokens=99, num_streams=2, shares_lanes=False, library="auto")
    second, other = replace(first, max_batch_tokens=8), replace(first, num_streams=1)
    runner = opened.open(first)
    assert opened.open(first) is runner
    opened.open(second)
    [shared] = made
    lanes = [batch for batch in shared.batches if batch.lane is Lane.BULK]
    assert [batch.num_seqs for batch in lanes] == [3, 1, 1, 1], (
        "a runner has embedded its texts when it is opened"
    )
    assert len(shared.batches) - len(lanes) >= 2 * len(QUERIES), "and each query"
    opened.open(other)
    assert profiles == [first, other], "engines compute as they are to be measured"
    opened.keep(second)
    assert [engine.is_closed for engine in made] == [False, True]
    with pytest.raises(ClosedError):
        runner.bulk()
    kept = opened.open(second)
    assert kept.query() > 0
    has_memory = False
    with pytest.raises(EngineUnavailableError):
        opened.open(other)
    assert len(made) == 2, "there is no memory for another one"
    opened.close()
    assert all(engine.is_closed for engine in made)
    with pytest.raises(ClosedError):
        kept.bulk()


def test_times_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timed:
        """Takes the times that it is told; a bulk pass ends when so many queries were asked."""

        def __init__(self, first: float, *others: float, num_beside: int = 0) -> None:
            self.now, self.asked, self.num_beside = 5.0, list[str](), num_beside
            self.num_passes = 0
            self.took = chain([first], cycle(others))
            self.is_over = threading.Event()

        def encode(self, texts: Any, *, show_progress_bar: bool) -> None:
            assert not show_progress_bar
            if isinstance(texts, list):
                self.num_passes += 1
                if self.num_beside:
                    assert self.is_over.wait(WAIT_SECONDS)
                else:
                    self.now += 7
                return
            self.asked.append(texts)
            self.now += next(self.took)
            if len(self.asked) == self.num_beside:
                self.is_over.set()

    def timed(fake: Any) -> EmbeddingRunner:
        monkeypatch.setattr(running, "perf_counter", lambda: fake.now)
        return EmbeddingRunner(fake, ["a text"])

    fake = Timed(100, 1, 1, 50)
    assert timed(fake).query() == 1
    assert fake.asked[1:] == list(QUERIES), "the first one, which is not counted, may be slow"
    assert timed(Timed(0, 1)).bulk() == 7
    assert timed(Timed(0, 2)).beside() == 2, "of one query behind a bulk pass that is too short"
    monkeypatch.setattr(running, "MIN_INTERVAL_SECONDS", 0)
    fake = Timed(0, 1, 3, num_beside=9)
    assert timed(fake).beside() == 3
    assert fake.num_passes == 1
    assert fake.asked[1:9] == [QUERIES[index % len(QUERIES)] for index in range(8)]


@pytest.mark.parametrize(("verdict", "budget"), [(BETTER, 96), ("no faster", 512)])
def test_what_was_found_races_the_default_at_last(
    verdict: str,
    budget: int,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    races: list[tuple[int, int, int]] = []
    passes: list[int] = []

    bulk = EmbeddingRunner.bulk

    def counted(runner: EmbeddingRunner) -> float:
        passes.append(len(runner.texts))
        return bulk(runner)

    now = 0.0

    def search(
        first: Profile, _steps: object, _runners: object, has_time: Callable[[], bool], _: object
    ) -> Any:
        nonlocal now
        now = 50 * 60
        assert has_time()
        now = 52 * 60
        assert not has_time(), "the rest is for the last race"
        return replace(first, max_batch_tokens=96), []

    def race(profile: Profile, best: Profile, runners: object, rounds: int) -> Row:
        races.append((profile.max_batch_tokens, best.max_batch_tokens, rounds))
        return Row(profile=profile, verdict=verdict)

    closed: list[EmbeddingRunners] = []
    close = EmbeddingRunners.close

    def noted(runners: EmbeddingRunners) -> None:
        closed.append(runners)
        close(runners)

    monkeypatch.setattr(EmbeddingRunners, "close", noted)
    monkeypatch.setattr(EmbeddingRunner, "bulk", counted)
    monkeypatch.setattr(tuning, "monotonic", lambda: now)
    monkeypatch.setattr(tuning, "search", search)
    monkeypatch.setattr(tuning, "race", race)
    texts = tmp_path / "texts.txt"
    texts.write_text(many(40) + "long " * 100)
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32", engine="openvino")
    tuned = tune(tiny_folder("bert"), TuneOptions(minutes=60, texts_path=texts, config=config))
    assert len(closed) == 1
    assert races == [(96, 512, 3)]
    assert passes == [16, 16, 41], "it races warm"
    assert tuned.num_texts == 41, "as many as the file has"
    assert tuned.num_tokens <= 41 * 24, "texts are truncated"
    assert (tuned.profile.max_batch_tokens, tuned.profile.is_tuned) == (budget, True)
    stored = json.loads(tuned.path.read_text(encoding="utf-8"))
    assert stored["settings"]["max_batch_tokens"] == budget


@pytest.mark.parametrize("is_large", [False, True])
def test_a_large_model_keeps_its_library(is_large: bool) -> None:
    profile = Profile(max_batch_tokens=512, num_streams=2, shares_lanes=False, library="auto")
    precision = ChosenPrecision(name="int8")
    kind = SimpleNamespace(choose_profile=lambda _plan, _files, _config, found: found)
    needs = SimpleNamespace(is_large=is_large)
    plan = SimpleNamespace(needs=needs, precision=precision, kind=kind)
    machine = replace(Machine(), read=lambda _: "vendor_id: AuthenticAMD\nflags: avx2\n")
    planned = SimpleNamespace(plan=plan, files=None, config=None)
    options = TuneOptions(config=Config(threads=2))
    _, libraries, _ = tuning._Tuning(None, planned, options, None, profile, machine)._steps(8192)
    assert bool(libraries(profile)) is not is_large


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_what_a_load_would_not_take_is_not_tried(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """Batches that need more memory; of a DeBERTa also those with too many distances."""
    seen: list[list[int]] = []

    def search(first: Profile, steps: Sequence[Step], *_: object) -> tuple[Profile, list[Row]]:
        seen.append([profile.max_batch_tokens for profile in steps[-1](first)])
        return first, []

    def fits(plan: object, files: object, config: object, profile: Profile) -> bool:
        return profile.max_batch_tokens <= 1024

    monkeypatch.setattr(tuning, "search", search)
    monkeypatch.setattr("embedlib.engines.openvino.plans.planning._fits", fits)
    monkeypatch.setattr(
        "embedlib.engines.openvino.graphs.distances.most_batch_tokens", lambda _: 300
    )
    monkeypatch.setattr(EmbeddingRunner, "bulk", lambda _: 1e-6)
    monkeypatch.setattr(tuning, "MAX_TEXTS", 1000)
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32", engine="openvino")
    tuned = tune(tiny_folder(name), TuneOptions(minutes=60, config=config))
    assert tuned.num_texts == 1000
    [budgets] = seen
    assert max(budgets) == (1024 if name == "bert" else 256)
    assert "not used" not in caplog.text


def test_a_cache_that_cannot_be_written_is_told_before_measuring(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "profiles").touch()
    said: list[str] = []
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with pytest.raises(EngineBuildError, match=f"^cannot write {tmp_path}/profiles/"):
        tune(tiny_folder("bert"), TuneOptions(config=config), report=said.append)
    assert not said


def test_an_engine_with_nothing_to_vary_is_refused(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "prepared_plan", lambda *_: SimpleNamespace(kind=CUDA))
    with pytest.raises(EngineUnsupportedError, match="engine cuda has nothing to tune; engine="):
        tune(tiny_folder("bert"))


def test_a_damaged_engine_directory_is_refused(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    config = Config(engine_cache_dir=tmp_path / "cache", precision="int8")
    out = compile_model(
        read_model_files(tiny_folder("bert")), "int8", (), config, out=tmp_path / "out"
    )
    [weights] = out.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(EngineBuildError, match="is damaged"):
        tune(out, TuneOptions(config=Config(engine_cache_dir=tmp_path / "cache")))


def test_a_model_of_scores_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="computes scores; give an embedding model"):
        tune(tiny_folder("bert-reranker"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0}, "minutes = 0"),
        ({"minutes": float("nan")}, "minutes = nan"),
        ({"minutes": 1441}, "minutes = 1441"),
        ({"text_tokens": 0}, "text_tokens = 0"),
        ({"text_tokens": 5, "texts_path": Path("x")}, "leave out texts_path"),
        ({"config": Config(max_batch_tokens=5)}, "max_batch_tokens is what tune looks for"),
        ({"config": Config(device="cpu,cpu")}, "device = 'cpu,cpu': tune measures one;"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TuneOptions(**options)  # type: ignore[arg-type]


def test_texts_too_long_for_a_pass_are_refused(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.measuring.texts._blocks", lambda: iter(["a b c d"] * 9))
    config = Config(threads=2, engine_cache_dir=tmp_path, precision="float32")
    with pytest.raises(ConfigError, match=r"^text_tokens = 900: embedlib's texts make 0 of"):
        tune(tiny_folder("bert"), TuneOptions(text_tokens=900, config=config))
    assert not list((tmp_path / "profiles").iterdir())


def test_texts_of_a_length_are_as_many_as_a_pass_has() -> None:
    planned: Any = SimpleNamespace(tokenizer=byte_tokenizer())
    options = TuneOptions(text_tokens=20)
    run = tuning._Tuning(None, planned, options, None, None, Machine())
    for count in (16, 40):
        lengths = [len(text) for text in run._texts(count)]
        assert len(lengths) == count
        assert 15 < np.mean(lengths) < 25
