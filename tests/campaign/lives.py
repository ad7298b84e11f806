"""Loads that live for seconds: the next one must find rows of them.

A machine that restarts a load every few seconds must get to its end. So an endless load is killed
after five, as often as drawn, and a run that follows must find rows up to date. On a machine that
keeps the load's threads from computing nothing is said: the kernel tells how long they waited.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.campaign import loads
from tests.campaign.life import Life
from tests.campaign.verdict import Verdict, finding

LIFE_S: Final = 5.0
MOST_WAITED_S: Final = 2.0
"""Where a core was missing for longer, of these seconds, the load was kept from its work."""
BEFORE: Final = range(-1, 0)
"""Of the load that makes a local database: that takes seconds and is begun again after a kill."""
SPEEDS: Final = (20.0, 100.0, 1000.0)
"""Texts that the model embeds in a second."""
ENDLESS: Final = range(10**6)


def judge_lives(rng: random.Random, url: str, note: Path) -> Verdict:
    """Kill endless loads after five seconds, run a short one to its end, and compare the rows.

    Args:
        rng: draws how fast the model is, and how often the load is killed.
        url: the destination, which is empty.
        note: a file in which a load writes its last words.
    """
    batch_rows = rng.choice((20, 100, 1024))
    speed = rng.choice(SPEEDS)
    num_lives = rng.choice((1, 2))
    if url.startswith("pglocal:"):
        loads.load(loads.Source(BEFORE, 0, batch_rows), url)
    waited = []
    for _ in range(num_lives):
        end = loads.load(
            loads.Source(ENDLESS, 0, batch_rows, speed), url, life=Life(note, LIFE_S)
        ).verdict
        if end.kind != "killed":
            return end if end.is_finding else finding("ended early", f"{url}: {end.what}")
        waited.append(float(note.read_text()))
    short = loads.Source(range(200), 0, batch_rows)
    last = loads.load(short, url)
    what = (
        f"{url.partition(':')[0]}, {num_lives} lives, {speed:g} texts/s, waited {max(waited):.1f} s"
    )
    if last.verdict.kind != "done":
        return finding("the next run fails", f"{what}: {last.verdict.what}")
    compared = loads.compare(url, [short], what)
    if compared.is_finding or last.num_unchanged:
        return replace(compared, counts={f"kills of {url.partition(':')[0]}": num_lives})
    if max(waited) > MOST_WAITED_S:
        return Verdict("no progress on a busy machine", what)
    return finding("no progress", what)
