"""Integrations import what anybody may import, so a third-party sink can do all that ours do."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

INTEGRATIONS = Path(__file__).parents[2] / "integrations"
PUBLIC_ADDRESSES = (
    *("embedlib", "embedlib.config", "embedlib.errors", "embedlib.indexing"),
    *("embedlib.indexing.workers", "embedlib.serve", "embedlib.serve.fleet"),  # for clusters
    *("embedlib.checks", "embedlib.types"),
    *(
        "embedlib.packages.foreign_options",
        "embedlib.packages.installing",
        "embedlib.system.memory",
    ),
)
FILES = sorted(INTEGRATIONS.rglob("*.py"))


def private_imports(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if is_private(name.name, None)]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [
                f"{module}.{name.name}" for name in node.names if is_private(module, name.name)
            ]
    return found


def is_private(module: str, name: str | None) -> bool:
    if module.partition(".")[0] != "embedlib":
        return False
    if module not in PUBLIC_ADDRESSES:
        return True
    names = getattr(import_module(module), "__all__", None)  # a submodule is in none of them
    return name is not None and names is not None and name not in names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(INTEGRATIONS).as_posix())
def test_an_integration_imports_public_addresses_only(file: Path) -> None:
    assert private_imports(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from embedlib.indexing.rows import Row",
        "from embedlib.indexing import rows",
        "import embedlib.indexing.rows",
        "def f():\n    from embedlib.session.call import check_only",
        "from embedlib import embedder",
    ],
)
def test_the_rule_sees_a_private_import(source: str) -> None:
    assert len(private_imports(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import embedlib",
        "from embedlib import Embedder",
        "from embedlib.indexing import Row, Sink",
        "from embedlib.errors import SinkError",
        "import embedlib_qdrant.points",
    ],
)
def test_the_rule_accepts_a_public_import(source: str) -> None:
    assert private_imports(source) == []
