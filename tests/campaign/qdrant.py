"""Kills of loads into a real Qdrant server, and of the server; skipped where there is none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.campaign.qdrant_kills import run
from tests.campaign.verdict import Judge, Verdict, finding

TRIAL_SECONDS: Final = 30.0
"""After this a trial only loads to its end."""


@contextmanager
def open_judge(_folder: Path) -> Iterator[Judge]:
    yield judge_trial


def judge_trial(rng: random.Random) -> Verdict:
    """Judge the rows that trials of about half a minute left."""
    found = run(rng.randrange(2**32), TRIAL_SECONDS)
    if found.skipped is not None:
        return Verdict("skipped", found.skipped)
    what = f"{found.num_load_kills} loads and {found.num_server_kills} servers killed"
    if found.failures:
        return finding("other rows", f"{what}: {'; '.join(found.failures)}")
    return Verdict("equal", what)
