"""`embedlib chunks`: how documents are cut, by a tokenizer alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.indexing.pipeline import index
from embedlib.indexing.rows import Document
from embedlib.session.text_measure import TextMeasure
from embedlib.testing import FakeSink, FakeStore, write_tiny_model

Run = Callable[..., Result]

PAGE = """# the river

a small city. the quick brown fox.

## the end

the day is long, and the river runs
through the city. the fox sleeps.
"""


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> str:
    return str(tiny_folder("bert"))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text(PAGE)
    return "page.md"


def test_every_chunk_has_a_line_of_its_own(run: Run, model: str, page: str) -> None:
    done = run("chunks", page, "-m", model, "--chunk-tokens", 14)
    assert done.exit_code == 0, done.output
    head, *lines = done.stdout.splitlines()
    assert head.startswith("page.md: ")
    assert lines[0].startswith("    0  lines 1-3, ")
    assert lines[1].strip().startswith("# the river a small city.")
    assert any(line.endswith(" tokens  the river > the end") for line in lines)


@pytest.mark.parametrize(
    "options", [(), ("--with-headings",), ("--prefix", "{source}: "), ("--late-chunking",)]
)
def test_the_chunks_are_those_of_a_load(
    options: tuple[str, ...], run: Run, model: str, page: str
) -> None:
    done = run("chunks", page, "-m", model, "--chunk-tokens", 14, "--json", *options)
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    store = FakeStore()
    settings = {option.strip("-").replace("-", "_"): True for option in options[:1]}
    if "prefix" in settings:
        settings["prefix"] = options[1]  # type: ignore[assignment]
    with Embedder(model, threads=1) as embedder:
        source = [Document(id=page, text=PAGE, is_markdown=True)]
        index(source, FakeSink(store), embedder=embedder, chunk_tokens=14, **settings)
        measure = TextMeasure(model, Config())
        assert measure.count_room("document") == embedder.count_room("document")
    rows = sorted(store.rows.values(), key=lambda row: row.chunk)
    lines = PAGE.split("\n")
    for row, view in zip(rows, shown, strict=True):
        assert (view["source_id"], view["chunk"], view["text"]) == (page, row.chunk, row.text)
        assert PAGE[view["start_index"] : view["end_index"]] == row.text
        assert row.text in "\n".join(lines[view["first_line"] - 1 : view["last_line"]])
        assert view["headings"] == row.metadata.get("headings", [])
        count = len(measure.tokenizer.encode(row.text, add_special_tokens=False).ids)
        assert view["num_tokens"] == count <= 14
        if "--late-chunking" in options:
            assert (view["prefix"], view["num_prefix_tokens"]) == ("", 0)
        else:
            assert view["prefix"] + row.text == row.text_to_embed
            assert view["window"] is None
    windows = [view["window"] for view in shown]
    if "--late-chunking" in options:
        assert windows == sorted(windows)
        assert windows[0] == 0 < windows[-1]


def test_a_page_that_fits_is_embedded_in_one_window(run: Run, model: str, page: str) -> None:
    Path(page).write_text("# the river\n\na small city.\n")
    done = run("chunks", page, "-m", model, "--chunk-tokens", 4, "--late-chunking", "--json")
    views = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(views) > 1
    assert {view["window"] for view in views} == {0}


def test_no_weights_are_needed(run: Run, page: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])  # cut short: nobody can load them
    assert run("chunks", page, "-m", folder).exit_code == 0


def test_rows_and_bad_rows(run: Run, model: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "title": "t", "text": "the fox"}\n{"id": 2, "text": ""}\n')
    done = run("chunks", rows, "-m", model, "--prefix", "{title}: ")
    assert done.exit_code == 3
    assert "1: 1 chunk, 2 tokens\n    0  line 1, 2 + 2 tokens\n       the fox\n" in done.stdout
    assert "skipped: line 2 of" in done.stderr
    assert run("chunks", rows, "-m", model, "--limit", 1).exit_code == 0


def test_what_is_missing_is_named(
    run: Run, model: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "name a model with --model; EMBEDLIB_MODEL is not set" in run("chunks", page).stderr
    monkeypatch.setenv("EMBEDLIB_MODEL", model)
    assert run("chunks", page).exit_code == 0
    assert "prefix = '{'" in run("chunks", page, "--prefix", "{").stderr
    long = run("chunks", page, "--chunk-tokens", 99)
    assert "chunk_tokens = 99; the model has room for 22 tokens of text" in long.stderr
    assert "'x' is not one of 'auto'" in run("chunks", page, "--input-format", "x").stderr


def test_an_id_gives_a_terminal_no_orders(run: Run, model: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": "a\x1b[31m\n", "text": "a city"}))
    assert run("chunks", path, "-m", model, "-q").stdout.startswith("a\\x1b[31m\\n: 1 chunk")
