"""The list of published models fits the tables that it names."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import embedlib
from embedlib.models.catalog import catalog
from embedlib.models.families.table import ROWS
from embedlib.models.known_models import read_entries
from embedlib.models.known_rerankers import known_reranker, template_names
from tests.waiting import WAIT_SECONDS

ENTRIES = list(catalog())


def test_names_are_unique_and_families_exist() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names) > 200
    assert [
        entry.name for entry in sorted(ENTRIES, key=lambda e: (e.kind, e.name.lower()))
    ] == names
    for entry in ENTRIES:
        assert entry.family in ROWS or (entry.family, entry.model_type) == ("static", None)
        assert entry.dim is None or entry.kind in ("embedder", "late-interaction")
        assert entry.millions is None or entry.millions > 0


def test_prompts_and_templates_are_those_of_the_other_tables() -> None:
    # Of models with `role_names`, only the names of the folder's own prompts are known.
    known = {
        name for entry in read_entries() if "role_names" not in entry for name in entry["models"]
    }
    for entry in ENTRIES:
        assert bool(entry.prompts) == (entry.name in known and entry.kind == "embedder")
    with_template = {name for key in template_names() for name in known_reranker(key).names}
    assert {entry.name for entry in ENTRIES if entry.template} <= with_template


def test_words_narrow_the_list() -> None:
    found = {entry.name for entry in ENTRIES if entry.matches("QWEN3 apache embedder")}
    assert "Qwen/Qwen3-Embedding-0.6B" in found
    assert found < {entry.name for entry in ENTRIES if entry.matches("qwen3")}
    assert not [entry for entry in ENTRIES if entry.matches("qwen3 no-such-word")]
    assert not [entry for entry in ENTRIES if entry.matches("none")]  # no word of ours for nothing


def test_kinds_have_the_names_that_other_libraries_give_them() -> None:
    for kind, name in {
        "late-interaction": "ColBERT",
        "reranker": "cross-encoder",
        "sparse": "SPLADE",
    }.items():
        of_kind = {entry.name for entry in ENTRIES if entry.kind == kind}
        assert of_kind
        assert of_kind <= {entry.name for entry in ENTRIES if entry.matches(name)}


COUNTS = """
from embedlib.models import catalog, known_models, known_rerankers
assert ".zip" in catalog.__file__
tables = catalog.catalog(), known_models.read_entries(), known_rerankers.template_names()
print([len([*table]) for table in tables])
"""


def test_the_tables_are_read_from_a_zip_file_too(tmp_path: Path) -> None:
    """Clusters put the wheels and zip files that they are given on the path as they are."""
    packed, package = tmp_path / "packed.zip", Path(embedlib.__file__).parent
    with zipfile.ZipFile(packed, "w") as archive:
        for file in package.rglob("*"):
            if file.suffix in (".py", ".json"):
                archive.write(file, file.relative_to(package.parent))
    environment = {**os.environ, "PYTHONPATH": str(packed)}
    done = subprocess.run(
        [sys.executable, "-c", COUNTS],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=WAIT_SECONDS,
    )
    counts = [len([*table]) for table in (catalog(), read_entries(), template_names())]
    assert (done.stderr, done.stdout) == ("", f"{counts}\n")
