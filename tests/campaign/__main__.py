"""`python -m tests.campaign`: draw cases, judge them, and print a table and what was found.

    python -m tests.campaign --minutes 60
    python -m tests.campaign --budget ci
    python -m tests.campaign --only calls --seed 123 --count 1

It ends with exit code 1 if there is a finding; each has a line that draws it again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from tests.campaign.child import run
from tests.campaign.table import PARTS, Part, part_named
from tests.campaign.verdict import Verdict

MOST_PRINTED = 3
"""Findings of one kind and one callable that are printed; all are counted."""


@dataclass
class Result:
    """The cases of one part."""

    part: Part
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, Verdict]] = field(default_factory=list)
    places: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, seed: int, verdict: Verdict) -> None:
        self.kinds[verdict.kind] += 1
        self.counts.update(verdict.counts)
        if verdict.is_finding:
            self.findings.append((seed, verdict))

    def is_news(self, verdict: Verdict) -> bool:
        """Whether few findings of this kind came from this place: a common one fills screens."""
        place = verdict.kind, verdict.what.partition("(")[0]
        self.places[place] += 1
        return self.places[place] <= MOST_PRINTED

    def row(self) -> str:
        drawn = self.kinds.total()
        kinds = ", ".join(f"{kind} {number}" for kind, number in self.kinds.most_common())
        if self.counts:
            kinds += "; " + ", ".join(f"{what} {n}" for what, n in sorted(self.counts.items()))
        passed = drawn - len(self.findings)
        return f"| {self.part.name} | {drawn} | {passed} | {self.seconds:.0f} s | {kinds} |"


def run_part(part: Part, seeds: Iterable[int]) -> Result:
    """Judge the cases of a part; print each finding, and what is told besides, as it comes."""
    result = Result(part)
    start = time.monotonic()
    with closing(run(part, seeds)) as verdicts:
        for seed, verdict in verdicts:
            result.add(seed, verdict)
            if (verdict.is_finding or verdict.is_told) and result.is_news(verdict):
                print(f"{part.name}: {verdict.kind}: {verdict.what}")
                print(f"    python -m tests.campaign --only {part.name} --seed {seed} --count 1")
                sys.stdout.flush()
            if verdict.kind == "skipped":  # as all others would be
                break
    result.seconds = time.monotonic() - start
    return result


def until(seconds: float, seeds: Iterator[int]) -> Iterator[int]:
    """Yield seeds for so many seconds, at least one."""
    end = time.monotonic() + seconds
    yield next(seeds)
    while time.monotonic() < end:
        yield next(seeds)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign and return the exit code."""
    given = _parse(arguments)
    parts = [part_named(given.only)] if given.only else PARTS
    total = sum(part.share for part in parts)
    results = []
    for part in parts:
        seeds: Iterator[int] = itertools.count(given.seed)
        if given.minutes is not None:
            seeds = until(given.minutes * 60 * part.share / total, seeds)
        else:
            seeds = itertools.islice(seeds, given.count or part.ci_count)
        results.append(run_part(part, seeds))
        print(f"{part.name} is done: {results[-1].kinds.total()} drawn", flush=True)
    print("\n| part | drawn | passed | time | verdicts |\n|---|---:|---:|---:|---|")
    for result in results:
        print(result.row())
    return 1 if any(result.findings for result in results) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="the whole run's time, shared by the parts")
    length.add_argument("--count", type=int, help="cases of each part")
    length.add_argument("--budget", choices=["ci"], default="ci", help="the fixed small number")
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--only", choices=names, help="; ".join(f"{p.name}: {p.what}" for p in PARTS)
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first case; then it counts up")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
