"""Requests drawn from `/openapi.json` by schemathesis: none may fail inside the server.

EMBEDLIB_FUZZ_EXAMPLES draws more of them for each route; docs/reliability.md has the long run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, Served

EXAMPLES = os.environ.get("EMBEDLIB_FUZZ_EXAMPLES", "5")
SEED = os.environ.get("EMBEDLIB_FUZZ_SEED", "1")


def test_no_request_of_our_description_fails(served: Served) -> None:
    pytest.importorskip("schemathesis")
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run"),
            *(f"{served.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}"),
            *("--max-examples", EXAMPLES, "--seed", SEED, "--phases", "coverage,fuzzing"),
            # A list may be empty, a model unknown, a text too long: no schema says so.
            *("--exclude-checks", "positive_data_acceptance", "--continue-on-failure"),
            *("--generation-database", "none", "--no-color"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    sys.stdout.write(done.stdout)  # the long run reads it
    assert done.returncode == 0, done.stdout[-20_000:]
    found = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert found is not None
    assert int(found.group(1)) == int(found.group(2)) > 500
