"""The tables of docs/models.md, docs/rerank.md and docs/model-list.md match the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from embedlib.models.families.table import FAMILIES
from embedlib.models.known_rerankers import template_names

SCRIPT = Path(__file__).parents[2] / "docs" / "make_models.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_that_the_script_writes(script: ModuleType) -> None:
    tables = script.tables()
    assert {name for names in script.PAGES.values() for name in names} == {*tables}
    for path in script.PAGES:
        stored = path.read_text(encoding="utf-8")
        assert script.page(path, tables) == stored, "run: python docs/make_models.py"
    assert all(f"| `{name}` | " in tables["families"] for name in FAMILIES)
    assert all(f"| `{name}` | " in tables["templates"] for name in template_names())
    assert "| Alibaba-NLP/gte-large-en-v1.5 | cls | 1024 | 8192 | " in tables["models"]
    assert "`Represent this sentence for searching relevant passages: `" in tables["prompts"]
