"""The docs have every public name and no option that is not there; plots are of stored results."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import click
import pytest

from embedlib.cli import main

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


SHAPES = re.compile(
    r"^\| (\S+), (Zen 4|Zen 5|Xeon with AMX) \| ([\d, ]+) \| ([\d., ]+) \|", re.MULTILINE
)
"""README's rows: model, machine, tokens/s with texts of 24, 88 and 400 tokens, times as fast."""
HEADINGS = {"Zen 4": "**Zen 4.**", "Zen 5": "**Zen 5.**", "Xeon with AMX": "### A CPU with AMX"}


def test_readme_has_the_rates_of_the_benchmarks() -> None:
    benchmarks = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = SHAPES.findall((DOCS.parent / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == 6
    for model, machine, rates, ratios in rows:
        table = benchmarks[benchmarks.index(HEADINGS[machine]) :]
        for tokens, rate, ratio in zip(
            (24, 88, 400), rates.split(", "), ratios.split(", "), strict=True
        ):
            row = next(
                line for line in table.splitlines() if line.startswith(f"| {model}, {tokens}")
            )
            first_ratio = re.search(r"\| (\d\.\d\d) \(", row)
            assert f"| {rate} |" in row, (model, machine, tokens)
            assert first_ratio is not None
            assert round(float(first_ratio[1]), 1) == float(ratio), (model, machine, tokens)


MEASURED = re.compile(r"docs/(measurements/[\w-]+\.md|benchmarks\.md)(?:, ([^.;()\"]+))?")


def test_measurements_that_the_source_names_are_there() -> None:
    found = 0
    for path in (DOCS.parent / "embedlib").rglob("*.py"):
        text = " ".join(path.read_text(encoding="utf-8").split())
        for page, section in MEASURED.findall(text):
            lines = (DOCS / page).read_text(encoding="utf-8").lower().splitlines()
            headings = [line.strip("# ").replace("`", "") for line in lines if line[:1] == "#"]
            named = section.strip().lower()
            assert any(heading.startswith(named) for heading in headings), (path, page, section)
            found += 1
    assert found > 30


PAGES = [DOCS.parent / "README.md", *(p for p in DOCS.rglob("*.md") if p.name != "changelog.md")]
BLOCK = re.compile(r"^ *```(bash|python)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> Iterator[str]:
    for found, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield textwrap.dedent(text)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `embedlib` in a block of shell."""
    for line in text.replace("\\\n", " ").splitlines():
        if not re.search(r"\bembedlib (?!import)", line):
            continue  # it may begin a string of several lines
        before = ""
        words = shlex.split(line, comments=True)
        for place, word in enumerate(words, 1):
            if word == "embedlib" and (before in ("", "|", "&&") or "=" in before):
                yield list(takewhile(lambda each: each not in ("|", ">", "&&"), words[place:]))
            before = word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_take_what_it_gives_them(page: Path) -> None:
    for text in blocks(page, "bash"):
        for name, *arguments in commands(text):
            # With its settings: click keeps the option --help that a command makes first.
            context = click.Context(main, **main.context_settings)
            command = main.get_command(context, name)
            assert command is not None, name
            command.make_parser(click.Context(command, context)).parse_args(list(arguments))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_is_python_and_imports_public_names(page: Path) -> None:
    for text in blocks(page, "python"):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        for node in ast.walk(compile(text, page.name, "exec", flags)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("embedlib"):
                assert node.module in REFERENCE
                names = {name.name for name in node.names}
                assert names <= public_names(import_module(node.module))
