"""The search for a profile: one thing is varied at a time, and races the best so far.

Turns alternate, the best first and last, so that a machine that gets slower cancels out. A
variation wins if its bulk rate is higher in every turn, and queries do not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from embedlib.engines.profile import Profile
from embedlib.errors import EngineError
from embedlib.measuring.spread import Spread, aba_ratios
from embedlib.tuning.runners import EmbeddingRunners

MIN_GAIN: Final = 1.03
"""Of the bulk rate: less is within what most machines drift."""
MAX_QUERY_SHARE: Final = 1.1
"""Of the time of a lone query, over that of the best so far."""
MAX_BESIDE_SHARE: Final = 1.25
"""The same beside bulk work, where times spread more."""
ROUNDS: Final = 2
HOPELESS: Final = 0.97
"""Of the bulk rate, after the first round: the second is saved."""


Step = Callable[[Profile], Sequence[Profile]]
"""Returns the variations of a profile to try."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variation beside the best so far."""

    profile: Profile
    verdict: str
    bulk: Spread | None = None
    """Its bulk rate over that of the best so far; None: it was not measured."""
    query: float | None = None
    """The time of a lone query over that with the best so far; None: it cannot differ, or there is
    nothing to gain."""
    beside: float | None = None
    """The same beside bulk work."""


def search(
    first: Profile,
    steps: Sequence[Step],
    runners: EmbeddingRunners,
    has_time: Callable[[], bool],
    report: Callable[[str], None],
) -> tuple[Profile, list[Row]]:
    """Return the best profile and what was tried.

    Args:
        first: where the search begins.
        steps: what is varied, one after the other.
        runners: open the model.
        has_time: whether there is time for another race.
        report: called with a line for each race.
    """
    best, rows = first, list[Row]()
    for step in steps:
        for profile in step(best):
            if not has_time():
                return best, rows
            report(f"{profile.settings}; beside {best.settings}")
            row = race(profile, best, runners)
            rows.append(row)
            if row.verdict == BETTER:
                best = profile
            runners.keep(best)
    return best, rows


BETTER: Final = "better"


def race(profile: Profile, best: Profile, runners: EmbeddingRunners, rounds: int = ROUNDS) -> Row:
    """Let a profile take turns with the best so far."""
    try:
        return _race(profile, best, runners, rounds)
    except EngineError as error:  # another one may have the memory
        return Row(profile=profile, verdict=f"failed: {error}")


def _race(profile: Profile, best: Profile, runners: EmbeddingRunners, rounds: int) -> Row:
    theirs, ours = runners.open(best), runners.open(profile)
    before, times = [theirs.bulk()], list[float]()
    ratios = list[float]()
    for _ in range(rounds):
        times.append(ours.bulk())
        before.append(theirs.bulk())
        ratios = [1 / ratio for ratio in aba_ratios(_rates(before), _rates(times))]
        if max(ratios) < HOPELESS:
            break
    bulk = Spread.of(ratios)
    if bulk.median < MIN_GAIN or bulk.min <= 1:
        return Row(profile=profile, bulk=bulk, verdict="no faster")
    query = beside = None
    if profile.layout != best.layout:
        query = _share(theirs.query, ours.query)
    if query is not None or profile.shares_lanes:  # else a query waits for no batch
        beside = _share(theirs.beside, ours.beside)
    is_dear = (query or 0) > MAX_QUERY_SHARE or (beside or 0) > MAX_BESIDE_SHARE
    verdict = "queries take longer" if is_dear else BETTER
    return Row(profile=profile, bulk=bulk, query=query, beside=beside, verdict=verdict)


def _rates(seconds: Sequence[float]) -> list[float]:
    return [1 / each for each in seconds]


def _share(theirs: Callable[[], float], ours: Callable[[], float]) -> float:
    """Return our time over theirs, theirs being measured before and after."""
    before, mine, after = theirs(), ours(), theirs()
    return mine * 2 / (before + after)
