"""A change of model that is killed while a client searches.

The campaign's part `model_changes` does it in Postgres as well, and tests/acceptance for long.
"""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.model_change.places import open_plan
from tests.acceptance.model_change.run import ModelChanges


def test_a_client_searches_while_changes_of_model_are_killed(tmp_path: Path) -> None:
    numbers = {"kills": 1, "clients": 1, "seed": 0, "num_documents": 60}
    with open_plan("jsonl", tmp_path, texts_per_second=400, pause_s=0.02, **numbers) as plan:
        found = ModelChanges(plan).run()
    assert found.complaints == []
    assert found.kills.total() >= 1
    assert len(found.searches) >= 2, "searches were made with one model only"
