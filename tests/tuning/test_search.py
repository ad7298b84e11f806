"""The search for a profile, with fake models and a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from embedlib.engines.machine import Machine
from embedlib.engines.profile import Profile
from embedlib.errors import EngineOutOfMemoryError, EngineUnavailableError
from embedlib.tuning.search import BETTER, _share, race, search
from embedlib.tuning.steps import other_libraries, steps

RULE = Profile(max_batch_tokens=512, num_streams=2, shares_lanes=False, library="auto")


@dataclass
class Clock:
    now: float = 0.0


@dataclass
class FakeRunner:
    """Takes as long as it is told, and longer the later it is on a machine that slows down."""

    profile: Profile
    clock: Clock
    speed: float
    query_s: float
    log: list[Profile]
    drift: float = 0.0

    def bulk(self) -> float:
        self.log.append(self.profile)
        took = (1 + self.drift * self.clock.now) / self.speed
        self.clock.now += took
        return took

    def query(self) -> float:
        return self.query_s

    def beside(self) -> float:
        return 2 * self.query_s


@dataclass
class FakeRunners:
    speed: Callable[[Profile], float]
    query_s: Callable[[Profile], float] = lambda _: 0.01
    drift: float = 0.0
    clock: Clock = field(default_factory=Clock)
    log: list[Profile] = field(default_factory=list)
    kept: list[Profile] = field(default_factory=list)

    def open(self, profile: Profile) -> Any:
        if profile.num_streams == 99:
            raise EngineUnavailableError("no memory")
        speed, query_s = self.speed(profile), self.query_s(profile)
        return FakeRunner(profile, self.clock, speed, query_s, self.log, self.drift)

    def keep(self, profile: Profile) -> None:
        self.kept.append(profile)


def budgets(*tokens: int) -> Callable[[Profile], Sequence[Profile]]:
    return lambda best: [replace(best, max_batch_tokens=one) for one in tokens]


def always() -> bool:
    return True


def ignore(_: str) -> None:
    pass


def test_the_fastest_wins_and_the_rest_is_closed() -> None:
    runners = FakeRunners(
        lambda profile: {512: 1.0, 1024: 1.2, 2048: 1.5, 4096: 1.4}.get(
            profile.max_batch_tokens, 1.0
        )
    )
    best, rows = search(RULE, [budgets(1024, 2048, 4096)], runners, always, ignore)
    assert best.max_batch_tokens == 2048
    assert [row.verdict for row in rows] == [BETTER, BETTER, "no faster"]
    assert [row.bulk and round(row.bulk.median, 2) for row in rows] == [1.2, 1.25, 0.93]
    assert [one.max_batch_tokens for one in runners.kept] == [1024, 2048, 2048]


def test_a_step_varies_the_best_so_far() -> None:
    runners = FakeRunners(lambda profile: profile.max_batch_tokens * (3 - profile.num_streams))
    said: list[str] = []
    steps = [budgets(1024), lambda best: [replace(best, num_streams=1)]]
    best, _ = search(RULE, steps, runners, always, said.append)
    assert best == replace(RULE, max_batch_tokens=1024, num_streams=1)
    larger = replace(RULE, max_batch_tokens=1024).settings
    assert said == [f"{larger}; beside {RULE.settings}", f"{best.settings}; beside {larger}"]


def test_turns_alternate_so_that_a_slower_machine_is_no_reason() -> None:
    runners = FakeRunners(lambda _: 1.0, drift=0.05)
    row = race(replace(RULE, max_batch_tokens=9), RULE, runners)
    assert [one.max_batch_tokens for one in runners.log] == [512, 9, 512, 9, 512]
    assert row.bulk is not None
    assert row.bulk.median == pytest.approx(1, abs=0.01)
    assert row.verdict == "no faster"


def test_a_variation_without_hope_has_one_turn() -> None:
    runners = FakeRunners(lambda profile: 0.96 if profile.max_batch_tokens == 9 else 1.0)
    race(replace(RULE, max_batch_tokens=9), RULE, runners)
    assert [one.max_batch_tokens for one in runners.log] == [512, 9, 512]
    other, told = replace(RULE, max_batch_tokens=9), ToldRunner([0.5, 1.2, 0.5])
    row = race(other, RULE, ToldRunners({RULE: ToldRunner([1.0] * 4), other: told}), rounds=3)
    assert not told.bulk_s, "one that has won a turn has all of them"
    assert row.verdict == "no faster"


@dataclass
class ToldRunner:
    """Takes the times that it is told, one after the other."""

    bulk_s: list[float]
    query_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)

    def bulk(self) -> float:
        return self.bulk_s.pop(0)

    def query(self) -> float:
        return self.query_s.pop(0)

    def beside(self) -> float:
        return self.beside_s.pop(0)


@dataclass
class ToldRunners:
    by_profile: dict[Profile, ToldRunner]

    def open(self, profile: Profile) -> Any:
        return self.by_profile[profile]

    def keep(self, profile: Profile) -> None:
        raise AssertionError("a race closes nothing")


@pytest.mark.parametrize(
    ("took", "verdict"),
    [
        ([0.5, 1.01], "no faster"),  # in the mean, but not in every turn
        ([0.5, 1.0], "no faster"),
        ([0.98, 0.98], "no faster"),  # within what most machines drift
        ([0.96, 0.96], BETTER),
    ],
)
def test_a_gain_is_one_in_every_turn_and_more_than_drift(took: list[float], verdict: str) -> None:
    other = replace(RULE, max_batch_tokens=9)
    row = race(other, RULE, ToldRunners({RULE: ToldRunner([1.0] * 3), other: ToldRunner(took)}))
    assert (row.verdict, row.query, row.beside) == (verdict, None, None)


@pytest.mark.parametrize(
    ("query", "beside", "verdict"),
    [
        (1.6, 1.8, BETTER),  # theirs takes 1 before and 2 after
        (1.7, 1.8, "queries take longer"),
        (1.6, 1.9, "queries take longer"),
    ],
)
def test_a_query_is_compared_with_those_before_and_after(
    query: float, beside: float, verdict: str
) -> None:
    theirs = ToldRunner([1.0] * 3, [1.0, 2.0], [1.0, 2.0])
    ours = ToldRunner([0.5, 0.5], [query], [beside])
    other = replace(RULE, num_streams=1)
    row = race(other, RULE, ToldRunners({RULE: theirs, other: ours}))
    assert row.verdict == verdict
    assert (row.query, row.beside) == pytest.approx((query / 1.5, beside / 1.5))


def test_ours_is_timed_between_theirs() -> None:
    order: list[str] = []

    def timed(name: str) -> float:
        order.append(name)
        return 1.0

    assert _share(partial(timed, "theirs"), partial(timed, "ours")) == 1
    assert order == ["theirs", "ours", "theirs"]


def test_where_lanes_share_a_model_a_budget_is_judged_by_queries_beside_bulk_work() -> None:
    best = replace(RULE, num_streams=1, shares_lanes=True)
    other = replace(best, max_batch_tokens=9)
    theirs = ToldRunner([1.0] * 3, beside_s=[1.0, 1.0])
    row = race(other, best, ToldRunners({best: theirs, other: ToldRunner([0.5] * 2, [], [1.5])}))
    assert (row.verdict, row.query, row.beside) == ("queries take longer", None, 1.5)


def test_queries_do_not_pay_for_bulk() -> None:
    shared = replace(RULE, num_streams=1, shares_lanes=True)
    runners = FakeRunners(
        lambda profile: 2.0 if profile.shares_lanes else 1.0,
        lambda profile: 0.02 if profile.shares_lanes else 0.01,
    )
    row = race(shared, RULE, runners)
    assert (row.verdict, row.query, row.beside) == ("queries take longer", 2, 2)
    # A budget says nothing of a lone query, and they are not asked.
    assert race(replace(RULE, max_batch_tokens=9), RULE, runners).query is None


def test_what_cannot_be_loaded_is_a_row_with_its_reason() -> None:
    row = race(replace(RULE, num_streams=99), RULE, FakeRunners(lambda _: 1.0))
    assert (row.bulk, row.verdict) == (None, "failed: no memory")


@pytest.mark.parametrize("where", ["bulk", "query", "beside"])
def test_what_fails_in_its_turn_is_a_row_and_the_search_goes_on(where: str) -> None:
    class Failing(FakeRunners):
        def open(self, profile: Profile) -> Any:
            runner = super().open(profile)
            if profile.num_streams == 3:
                setattr(runner, where, fail)
            return runner

    def fail() -> float:
        raise EngineOutOfMemoryError("no memory")

    shared = [replace(RULE, num_streams=num, shares_lanes=True) for num in (3, 4)]
    runners = Failing(lambda profile: 2.0 if profile.shares_lanes else 1.0)
    best, rows = search(RULE, [lambda _: shared], runners, always, ignore)
    assert [row.verdict for row in rows] == ["failed: no memory", BETTER]
    assert best == shared[1]
    assert runners.kept == [RULE, best]


def test_the_search_ends_in_time() -> None:
    runners = FakeRunners(lambda _: 1.0)
    _, rows = search(RULE, [budgets(1, 2, 3, 4)], runners, lambda: runners.clock.now < 9, ignore)
    assert len(rows) == 2


def test_what_is_varied() -> None:
    def tried(best: Profile, threads: int = 2, **changes: object) -> list[list[str]]:
        facts: dict[str, object] = {
            "pass_tokens": 8192,
            "is_large": False,
            "others": ["onednn", "mlas"],
        }
        asked = steps(threads=threads, **{**facts, **changes})  # type: ignore[arg-type]
        return [[one.settings for one in step(best)] for step in asked]

    layouts, libraries, sizes = tried(RULE)
    assert layouts == [
        "512 tokens, 1 stream, a model for each lane, auto",
        "512 tokens, 1 stream, one model for both lanes, auto",
    ]
    assert libraries == [
        "512 tokens, 2 streams, a model for each lane, onednn",
        "512 tokens, 2 streams, a model for each lane, mlas",
    ]
    assert [size.split()[0] for size in sizes] == ["1024", "256", "2048", "128"]
    eight = replace(RULE, num_streams=8)
    assert [one.split()[2] for one in tried(eight, 8)[0]] == ["4", "1", "1"]
    assert tried(RULE, pass_tokens=1100)[2] == [sizes[1], sizes[3]]
    assert tried(RULE, is_large=True)[1] == []
    shared = replace(RULE, num_streams=1, shares_lanes=True)
    assert tried(replace(RULE, num_streams=1), 1)[0] == [layouts[1]], "one core has one stream"
    assert tried(shared)[0] == [], "two compiled models would take twice the memory"


@pytest.mark.parametrize(
    ("vendor", "flags", "precision", "others"),
    [
        ("GenuineIntel", "avx2 avx512f", "float32", ("any",)),
        ("GenuineIntel", "avx512f amx_bf16", "bf16", ()),  # oneDNN alone is safe
        ("AuthenticAMD", "avx2 avx512f", "float32", ("onednn", "mlas")),
        ("AuthenticAMD", "avx2", "float32", ("onednn", "any")),  # MLAS by default
        ("AuthenticAMD", "avx2", "int8", ("onednn", "mlas")),
    ],
)
def test_libraries_that_the_default_does_not_take(
    vendor: str, flags: str, precision: str, others: tuple[str, ...]
) -> None:
    machine = replace(Machine(), read=lambda _: f"vendor_id: {vendor}\nflags: {flags}\n")
    assert other_libraries(machine, precision) == others
