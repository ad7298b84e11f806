"""Folders of the part `families`, drawn by hypothesis, which makes one that fails small.

The drawing is that of `families`. hypothesis stands in for its random numbers, so it can draw a
folder again with fewer changes, and what a finding names is the smallest folder that still fails.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.campaign import families
from tests.campaign.verdict import Judge, Verdict

FOLDERS: Final = 6
"""Of a case: the seed of the case is that of all of them."""


class FoundError(Exception):
    """A folder with a finding; hypothesis looks for a smaller one that raises this."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge of six folders at a time."""
    with families.open_judge(folder) as judge:
        yield lambda rng: judge_many(judge, rng)


def judge_many(judge: Judge, rng: random.Random, num_folders: int = FOLDERS) -> Verdict:
    """Judge folders until one fails; then return the verdict of the smallest that fails, too."""
    kinds: Counter[str] = Counter()
    told: list[Verdict] = []

    @seed(rng.getrandbits(64))
    @settings(
        max_examples=num_folders,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def each(drawn: random.Random) -> None:
        verdict = judge(drawn)
        if verdict.is_finding:
            raise FoundError(verdict)
        kinds[f"folders {verdict.kind}"] += 1
        if verdict.is_told:
            told.append(verdict)

    try:
        each()
    except FoundError as error:
        return error.verdict
    return replace(told[0] if told else Verdict("passed", f"{num_folders} folders"), counts=kinds)
