"""Change the model of a destination while clients search, and kill that at drawn instants.

    python -m tests.acceptance.model_change postgres
    python -m tests.acceptance.model_change qdrant --kills 20 --clients 4 --seed 1
    python -m tests.acceptance.model_change jsonl

`postgres` starts a server of its own, and so does `qdrant` with the program that
tests/integrations/qdrant/real_server.py finds. No search may fail, none may find rows of another
model than its own, and after each change the rows must be those of a load that nothing happened to.
The exit code is 1 if one of these was broken.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tests.acceptance.model_change.places import open_plan
from tests.acceptance.model_change.run import Findings, ModelChanges


def show(found: Findings) -> None:
    """Print what was done and what was wrong."""
    kills = ", ".join(f"{number} {stage}" for stage, number in found.kills.most_common())
    print(f"{found.kills.total()} kills ({kills}) in {found.num_changes} changes of model")
    print(f"{found.num_refused} loads were run again, since the kill was not noticed yet")
    total = sum(number for name, number in found.searches.items() if name.startswith("m"))
    others = {name: n for name, n in found.searches.items() if not name.startswith("m")}
    print(f"{total:,} searches, {len(found.complaints)} complaints {others or ''}")
    for line in found.told:
        print(f"    {line}")
    for complaint in found.complaints[:20]:
        print(f"  {complaint}")


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=["postgres", "qdrant", "jsonl"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # A short path, which the system user of a Postgres started by root may enter.
    with tempfile.TemporaryDirectory(prefix="embedlib-change-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        numbers = {"kills": given.kills, "clients": given.clients, "seed": given.seed}
        more = {"num_documents": given.documents, "texts_per_second": 1500, "pause_s": 0.005}
        with open_plan(given.kind, folder, **numbers, **more) as plan:
            found = ModelChanges(plan).run()
    show(found)
    return 1 if found.complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
