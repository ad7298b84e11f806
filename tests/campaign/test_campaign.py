"""The campaign itself: its judges pass what is right, and each of them can fail."""

from __future__ import annotations

import asyncio
import inspect
import random
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Classifier, Embedder, Reranker
from embedlib.errors import ConfigError
from embedlib.testing import FakeSink, FakeStore, write_tiny_model
from embedlib.testing.models.table import SCORING_VARIANTS
from tests.campaign import (
    calls,
    child,
    damaged,
    kills,
    lives,
    loads,
    oracle,
    points,
    scoring_folders,
    stored,
    table,
)
from tests.campaign.__main__ import main
from tests.campaign.calls import Target, judge_call
from tests.campaign.hints import conforms
from tests.campaign.life import Life
from tests.campaign.verdict import CallersError, Verdict, judge_error


def test_each_part_has_a_module_that_opens_a_judge() -> None:
    names = [part.name for part in table.PARTS]
    assert len(set(names)) == len(names)
    for name in names:
        assert (Path(__file__).with_name(f"{name}.py")).is_file()


# Errors.


class EndlessError(ConfigError):
    def __str__(self) -> str:
        return "x" * 100_000


@pytest.mark.parametrize(
    ("error", "kind", "is_finding"),
    [
        (ConfigError("k = 'x'; it must be a number"), "refused", False),
        (ConfigError("two\nlines"), "message of 2 lines", True),
        (ConfigError("a line\u2028and another"), "message of 2 lines", True),
        (EndlessError(), "message too long", True),
        (ConfigError(""), "message of 0 lines", True),
        (CallersError("__iter__"), "caller's own exception", False),
        (ValueError("ambiguous"), "foreign exception", True),
        (RecursionError(), "foreign exception", True),
    ],
)
def test_errors_are_judged(error: Exception, kind: str, is_finding: bool) -> None:
    verdict = judge_error(error, "a call")
    assert (verdict.kind, verdict.is_finding) == (kind, is_finding)


# Calls.


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (True, bool, True),
        (np.bool_(True), bool, True),
        ("false", bool, False),
        (1, bool, False),
        (True, int, False),
        (np.int64(3), int | None, True),
        (np.array(3), int, False),
        (float("nan"), float, False),
        (None, str | None, True),
        (b"a", str | None, False),
        (["a", 1], list[str], False),
        ("*.md", tuple[str, ...], False),
        ({"a": 1}, dict[str, str], False),
        (object(), Any, True),
    ],
)
def test_annotations_are_read(value: Any, hint: Any, expected: bool) -> None:
    assert conforms(value, hint) is expected


def target(call: Callable[..., Any], **hints: Any) -> Target:
    return Target("double", call, hints, tuple(hints), lambda arguments, result: str(result or ""))


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        (lambda is_on: None, {"taken in silence", "right"}),
        (lambda is_on: "another vector", {"taken in silence", "wrong result"}),
        (lambda is_on: [][0], {"foreign exception"}),
    ],
)
def test_a_broken_call_is_found(call: Callable[..., Any], kinds: set[str]) -> None:
    verdicts = [judge_call(target(call, is_on=bool), random.Random(seed)) for seed in range(60)]
    assert {verdict.kind for verdict in verdicts} == kinds
    assert any(verdict.is_finding for verdict in verdicts)


def test_a_call_that_refuses_every_wrong_type_passes() -> None:
    def checks(is_on: Any) -> None:
        if not isinstance(is_on, bool | np.bool_):
            raise ConfigError("is_on must be True or False")

    verdicts = [judge_call(target(checks, is_on=bool), random.Random(seed)) for seed in range(60)]
    assert {verdict.kind for verdict in verdicts} == {"refused", "right"}


def test_every_public_method_is_called() -> None:
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        names = {target.name for target in calls.make_targets(stack, loop)}
    assert {"index", "search", "Config", "SourceOptions", "Embedder.max_seq_length = "} <= names
    for kind in (Embedder, Reranker, Classifier):
        methods = inspect.getmembers(kind, inspect.isfunction)
        public = {f"{kind.__name__}.{name}" for name, _ in methods if not name.startswith("_")}
        assert public <= names


def test_calls_are_judged_in_a_child() -> None:
    verdicts = [verdict for _, verdict in child.run(table.part_named("calls"), range(30))]
    kinds = {verdict.kind for verdict in verdicts}
    assert {"refused", "right"} <= kinds
    assert not {"judge failed", "hang", "crash"} & kinds


def test_a_wrong_vector_is_seen() -> None:
    arguments = {"inputs": ["one", "two"], "prompt_name": "query"}
    with oracle.make_session(Embedder) as embedder:
        vectors = embedder.encode(**arguments)
    assert oracle.judge_vectors(arguments, vectors) == ""
    assert "row 0" in oracle.judge_vectors(arguments, vectors[::-1])
    assert "row 0" in oracle.judge_vectors({**arguments, "prompt_name": None}, vectors)
    assert "1 vectors" in oracle.judge_vectors(arguments, vectors[:1])


# Loads.

SOURCE = loads.Source(range(30), 0, 3)


def test_a_load_that_is_killed_or_fails_is_completed(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path}/rows"
    killed = points.Points(points.every_call, points.kill, frozenset({900}))
    assert loads.load(SOURCE, url, points=killed).verdict.kind == "killed"
    failing = points.Points(points.writes_of_files, points.fail_write, frozenset({12}))
    assert loads.load(SOURCE, url, points=failing).verdict.kind in ("refused", "foreign exception")
    assert loads.load(SOURCE, url).verdict.kind == "done"
    assert loads.compare(url, [SOURCE], "").kind == "equal"


def test_a_full_disk_is_refused_in_one_line(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path}/rows"
    assert loads.load(SOURCE, url, largest_file=8192).verdict.kind == "refused"
    assert loads.load(SOURCE, url).verdict.kind == "done"


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM row WHERE number = 3",
        "UPDATE row SET text = 'another' WHERE number = 3",
        "UPDATE row SET metadata = '{}' WHERE number = 3",
        "UPDATE row SET vector = zeroblob(24) WHERE number = 3",
    ],
)
def test_a_row_that_a_sink_lost_is_found(tmp_path: Path, change: str) -> None:
    url = f"jsonl:{tmp_path}/rows"
    assert loads.load(SOURCE, url).verdict.kind == "done"
    with sqlite3.connect(tmp_path / "rows.embedlib" / "rows.sqlite") as database:
        database.execute(change)
        database.execute("DELETE FROM load WHERE key = 'written'")
    assert loads.load(SOURCE, url).verdict.kind == "done"
    expected = "equal" if change.startswith("DELETE") else "other rows"  # its digest is the old one
    assert loads.compare(url, [SOURCE], "").kind == expected


def test_rows_of_another_load_differ() -> None:
    stores = FakeStore(), FakeStore()
    for store, edition in zip(stores, (0, 1), strict=True):
        loads.Source(range(6), edition, 3).load(FakeSink(store))
    one, other = map(stored.read_fake, stores)
    assert stored.difference(one, one) == ""
    assert "is" in stored.difference(one, other)


def test_a_history_of_kills_ends_with_equal_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "DESTINATIONS", ("jsonl",))
    with kills.open_judge(tmp_path) as judge:
        assert judge(random.Random(0)).kind == "equal"


@pytest.mark.parametrize(
    ("num_unchanged", "waited", "kind"),
    [
        (3, "0.1", "equal"),
        (0, "0.1", "no progress"),
        (0, "4.5", "no progress on a busy machine"),
    ],
)
def test_a_load_that_leaves_nothing_after_seconds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_unchanged: int, waited: str, kind: str
) -> None:
    note = tmp_path / "note"

    def load(source: loads.Source, url: str, life: Any = None) -> loads.Outcome:
        note.write_text(waited)
        ended = "done" if life is None else "killed"
        return loads.Outcome(Verdict(ended, ""), num_unchanged=num_unchanged)

    monkeypatch.setattr(loads, "load", load)
    monkeypatch.setattr(loads, "compare", lambda url, history, what: Verdict("equal", what))
    verdict = lives.judge_lives(random.Random(0), "jsonl:rows", note)
    assert (verdict.kind, verdict.is_finding) == (kind, kind == "no progress")


def test_a_life_ends_and_leaves_rows(tmp_path: Path) -> None:
    url, note = f"jsonl:{tmp_path}/rows", tmp_path / "note"
    endless = loads.Source(lives.ENDLESS, 0, 20, 1000.0)
    assert loads.load(endless, url, life=Life(note, 1.0)).verdict.kind == "killed"
    assert float(note.read_text()) >= 0


# Folders.


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_another_score_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    rows = {"bert-classifier": SCORING_VARIANTS["bert-classifier"]}
    monkeypatch.setattr(scoring_folders, "SCORING_VARIANTS", rows)
    monkeypatch.setattr("tests.campaign.reference.is_installed", lambda: True)

    def scores(place: Path, texts: list[str], *_others: Any) -> Any:
        with Classifier(place, precision="float32", on_truncate="ignore") as classifier:
            return classifier.predict_scores(texts) + change

    monkeypatch.setattr("tests.campaign.reference.class_scores", scores)
    seed = next(seed for seed in range(99) if _draws_classifier(seed))
    verdict = scoring_folders.judge_scoring_folder(random.Random(seed), tmp_path / "model")
    assert verdict.kind == ("different" if change else "same")


def _draws_classifier(seed: int) -> bool:
    rng = random.Random(seed)
    scoring_folders.draw_scoring_row(rng)
    return rng.random() >= 0.5


# Damage.


@pytest.mark.filterwarnings("ignore::embedlib.errors.PromptWarning")
@pytest.mark.parametrize(
    ("hurt", "kind"),
    [
        (lambda place: None, "as undamaged"),
        (lambda place: (place / "0_Transformer/config.json").unlink(), "refused"),
        (lambda place: (place / "modules.json").write_text("[" * 10), "refused"),
    ],
)
def test_damage_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurt: Callable[[Path], Any], kind: str
) -> None:
    monkeypatch.setattr(damaged, "BASES", ("bert-cls-dense",))
    monkeypatch.setattr(damaged, "damage", lambda rng, place: hurt(place))
    monkeypatch.setattr("tests.campaign.reference.is_installed", lambda: False)
    with damaged.open_judge(tmp_path) as judge:
        assert judge(random.Random(0)).kind == kind


def test_vectors_that_are_not_finite_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tiny_model(tmp_path / "model", "bert-cls-dense")
    vectors = np.full((5, 20), np.nan, np.float32)
    monkeypatch.setattr(damaged, "damage", lambda rng, place: "nothing")
    monkeypatch.setattr(damaged, "_compute", lambda place, base: vectors)
    verdict = damaged.judge_damage(random.Random(0), place, "bert-cls-dense", vectors)
    assert verdict.is_finding


# The child, and the whole.


def part(name: str, **bounds: Any) -> table.Part:
    given: dict[str, Any] = {"case_seconds": 20, "memory_gib": 10, "ci_count": 1, "share": 1}
    return table.Part(name=name, what="", **{**given, **bounds})


def test_a_crash_a_hang_and_a_demand_for_memory_are_found() -> None:
    hurt = part("hurt", case_seconds=1, memory_gib=2)
    verdicts = [verdict for _, verdict in child.run(hurt, range(5))]
    assert [verdict.kind for verdict in verdicts] == [
        *("right", "crash", "hang", "judge failed", "right"),
    ]
    assert "MemoryError" in verdicts[3].what


def test_a_part_that_cannot_be_prepared_is_a_finding() -> None:
    [(_, verdict)] = child.run(part("nowhere"), range(1))
    assert verdict.is_finding
    assert "No module named" in verdict.what


def test_a_finding_is_printed_with_the_line_that_draws_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(part: table.Part, seeds: Any) -> Any:
        for seed in seeds:
            kind = "wrong result" if seed == 8 else "right"
            yield seed, Verdict(kind, "a", seed == 8, {"kills of a": 2}, is_told=seed == 0)

    monkeypatch.setattr("tests.campaign.__main__.run", run)
    assert main(["--only", "calls", "--seed", "7", "--count", "3"]) == 1
    printed = capsys.readouterr().out
    assert "python -m tests.campaign --only calls --seed 8 --count 1" in printed
    assert "| calls | 3 | 2 |" in printed
    assert "right 2, wrong result 1; kills of a 6 |" in printed
    assert main(["--only", "calls", "--count", "3"]) == 0
    printed = capsys.readouterr().out  # what is told besides is no finding
    assert printed.count("--count 1") == printed.count("--only calls --seed 0 --count 1") == 1
