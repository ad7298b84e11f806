"""Kill points over every write of every local destination; then the load runs to its end.

A load is killed at a drawn call of the sink's thread, or at a drawn time, or one of its writes
fails. The rows of the run that ends must equal those of loads that were never disturbed. Some loads
live for five seconds, after which the next one must find rows of theirs.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.campaign import points
from tests.campaign.lives import judge_lives
from tests.campaign.loads import (
    Outcome,
    Source,
    compare,
    draw_history,
    load,
)
from tests.campaign.points import Points
from tests.campaign.stored import misfound
from tests.campaign.verdict import Judge, Verdict, finding

DESTINATIONS: Final = (
    *("jsonl", "jsonl", "npy", "parquet", "edge", "edge"),
    *("pglocal", "qdrant+local"),
)
"""Drawn from; a local database takes the longest."""
OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"pglocal": "?table=t", "qdrant+local": "?collection=c"}
)
LIVES: Final = 0.15
"""Share of the cases in which loads live for seconds."""
WITH_WORDS: Final = ("edge", "pglocal")
"""Destinations whose last load asks for a full-text index, also of the rows of the load before."""
FAIL_WRITES: Final = ("jsonl", "npy", "parquet")
"""Destinations that write files by Python, so that a call can fail."""
MOST_DOCUMENTS: Final = 150
LONGEST_S: Final = 1.5
NEVER: Final[frozenset[int]] = frozenset()


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge that remembers how many points the loads of a destination have."""
    num_points: defaultdict[tuple[str, bool], int] = defaultdict(lambda: 2000)

    def judge(rng: random.Random) -> Verdict:
        place = Path(tempfile.mkdtemp(dir=folder))
        place.chmod(0o755)  # Postgres runs as another user if this is root
        try:
            return judge_kills(rng, place, num_points)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    yield judge


def judge_kills(
    rng: random.Random, place: Path, num_points: defaultdict[tuple[str, bool], int]
) -> Verdict:
    """Disturb each load of a history some times, run it to its end, and compare the rows."""
    scheme = rng.choice(DESTINATIONS)
    url = f"{scheme}:{place}/rows{OPTIONS.get(scheme, '')}"
    if rng.random() < LIVES:
        return judge_lives(rng, url, place / "last-words")
    history = draw_history(rng, MOST_DOCUMENTS)
    if scheme in WITH_WORDS:
        history[-1] = replace(history[-1], full_text="simple")
    ends = []
    for source in history:
        for _ in range(rng.randrange(1, 4)):
            end = _disturb(rng, source, url, scheme, num_points)
            if end.is_finding:
                return end
            ends.append(end.kind)
        last = load(source, url, points=Points(points.every_call, points.kill, NEVER))
        if last.verdict.kind != "done":
            why = last.verdict.what
            return finding("the next run fails", f"{scheme} after {', '.join(ends)}: {why}")
        num_points[scheme, False] = last.num_points
    where = f"{scheme} after {', '.join(ends)}"
    compared = compare(url, history, where)
    if scheme in WITH_WORDS and not compared.is_finding:
        wrong = misfound(url)
        if wrong:
            return finding("words do not find the rows", f"{where}: {wrong}")
    return replace(compared, counts={f"kills of {scheme}": ends.count("killed")})


def _disturb(
    rng: random.Random,
    source: Source,
    url: str,
    scheme: str,
    num_points: defaultdict[tuple[str, bool], int],
) -> Verdict:
    """Start a load that something happens to."""
    if rng.random() < 0.3:
        return load(source, url, kill_after_s=rng.uniform(0.01, LONGEST_S)).verdict
    fails = scheme in FAIL_WRITES and rng.random() < 0.4
    drawn = frozenset({rng.randrange(num_points[scheme, fails])})
    if fails:
        end: Outcome = load(
            source, url, points=Points(points.writes_of_files, points.fail_write, drawn)
        )
        if end.num_points:
            num_points[scheme, fails] = max(end.num_points, 20)
        return end.verdict
    return load(source, url, points=Points(points.every_call, points.kill, drawn)).verdict
