"""The docs have every public name, and their plots are those of the stored results."""

from __future__ import annotations

import importlib.util
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"
REFERENCE = {"embedlib", "embedlib.engines", "embedlib.errors", "embedlib.indexing"} | {
    *("embedlib.testing", "embedlib.types", "embedlib.serve", "langchain_embedlib"),
    *("embedlib.fidelity", "embedlib.tuning", "embedlib_pgvector", "embedlib_qdrant"),
    "embedlib_ray",
}
"""Modules whose public names the reference has; mteb_embedlib's needs mteb."""


def public_names(module: ModuleType) -> set[str]:
    named = getattr(module, "__all__", None)
    if named is not None:
        return set(named)
    own = inspect.getmembers(module, inspect.isclass)
    return {
        name for name, kind in own if kind.__module__ == module.__name__ and kind.__name__ == name
    }


@pytest.fixture(scope="module")
def documented() -> list[str]:
    pages = (DOCS / "reference").glob("*.md")
    return [
        name
        for page in pages
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


@pytest.mark.parametrize("module", sorted(REFERENCE))
def test_the_reference_has_every_public_name(module: str, documented: list[str]) -> None:
    found = import_module(module)
    short = {name.rpartition(".")[2] for name in documented if name.startswith("embedlib.")}
    here = {name.removeprefix(f"{module}.") for name in documented if name.startswith(module)}
    modules = {"__version__", "errors"}  # of `embedlib` itself; errors has a page
    assert public_names(found) - here - short - modules == set()


def test_every_name_of_the_reference_exists_and_is_there_once(documented: list[str]) -> None:
    assert len(documented) == len({*documented})
    for name in documented:
        module, _, attribute = name.rpartition(".")
        if not module.startswith(("mteb", "embedlib_ray")):  # they need mteb, and Ray
            assert hasattr(import_module(module), attribute), name


def test_the_plots_are_those_of_the_stored_results() -> None:
    spec = importlib.util.spec_from_file_location("make_plots", DOCS / "make_plots.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, content in script.pictures().items():
        stored = (DOCS / "images" / name).read_text(encoding="utf-8")
        assert stored == content, f"{name}: run python docs/make_plots.py"
