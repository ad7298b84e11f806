"""Kills of loads into a real Qdrant server, and of the server; skipped where there is none."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.campaign.lives import judge_lives
from tests.campaign.qdrant_kills import run
from tests.campaign.verdict import Judge, Verdict, finding
from tests.integrations.qdrant.real_server import QdrantServer, find_binary

LIVES: Final = 0.25
"""Share of the cases in which loads live for seconds."""
TRIAL_SECONDS: Final = 30.0
"""After this a trial only loads to its end."""


@contextmanager
def open_judge(_folder: Path) -> Iterator[Judge]:
    yield judge_trial


def judge_trial(rng: random.Random) -> Verdict:
    """Judge the rows that trials of about half a minute left, or loads that lived for seconds."""
    if rng.random() < LIVES and (binary := find_binary()) is not None:
        with tempfile.TemporaryDirectory(prefix="embedlib-qdrant-lives-") as folder:
            server = QdrantServer(binary, Path(folder) / "server").start()
            try:
                return judge_lives(rng, f"{server.url}/lives", Path(folder) / "last-words")
            finally:
                server.kill()
    found = run(rng.randrange(2**32), TRIAL_SECONDS)
    if found.skipped is not None:
        return Verdict("skipped", found.skipped)
    what = f"{found.num_load_kills} loads and {found.num_server_kills} servers killed"
    kills = {"kills of qdrant": found.num_load_kills, "kills of servers": found.num_server_kills}
    if found.failures:
        return finding("other rows", f"{what}: {'; '.join(found.failures)}")
    return Verdict("equal", what, counts=kills)
