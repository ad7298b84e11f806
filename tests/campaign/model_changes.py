"""Changes of model that are killed at drawn instants while two clients search."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.acceptance.model_change.places import open_plan
from tests.acceptance.model_change.run import ModelChanges
from tests.campaign.verdict import Judge, Verdict, finding

KINDS: Final = ("jsonl", "postgres")
"""Destinations; a Qdrant server is tried by `python -m tests.acceptance.model_change qdrant`."""


@contextmanager
def open_judge(_folder: Path) -> Iterator[Judge]:
    yield judge_changes


def judge_changes(rng: random.Random) -> Verdict:
    """Judge all searches, and the rows that each change left."""
    kind = rng.choice(KINDS)
    # A short path, which the system user of a Postgres started by root may enter.
    with tempfile.TemporaryDirectory(prefix="embedlib-change-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        numbers = {"kills": 3, "clients": 2, "seed": rng.randrange(2**32)}
        more = {"num_documents": 300, "texts_per_second": 600, "pause_s": 0.02}
        with open_plan(kind, folder, **numbers, **more) as plan:
            found = ModelChanges(plan).run()
    what = f"{found.kills.total()} kills of changes in {kind}"
    if found.complaints:
        return finding("other rows", f"{what}: {'; '.join(found.complaints[:3])}")
    counts = {f"changes of {kind} killed": found.kills.total()}
    return Verdict("equal", what, counts=counts)
