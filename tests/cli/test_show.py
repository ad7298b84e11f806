"""`embedlib search --show`: the lines of the source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import Result

from embedlib.indexing.searches.source_lines import LineFinder, SourceLines
from embedlib.indexing.sinks.protocol import Hit

Run = Callable[..., Result]

PAGE = "# the river\r\n\r\na small city.\r\n\r\n## the end\r\n\r\nthe day.\r\nthe fox sleeps.\r\n"


@pytest.fixture
def loaded(
    run: Run, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_bytes(PAGE.encode())
    model = tiny_folder("bert")
    done = run("index", "page.md", "-m", model, "--to", "jsonl:out.jsonl", "--chunk-tokens", 20)
    assert done.exit_code == 0, done.output
    return "jsonl:out.jsonl"


def test_lines_of_the_file_are_shown(run: Run, loaded: str) -> None:
    question = ("search", "the fox sleeps", "--to", loaded, "--show", "--where", "chunk = 1")
    done = run(*question)
    head, *lines = done.stdout.splitlines()
    assert head.split("  ")[1:] == ["page.md:5-8", "the river"]
    assert lines == [
        "      5  ## the end",
        "      6  ",
        "      7  the day.",
        "      8  the fox sleeps.",
        "",
    ]
    [hit] = map(json.loads, run(*question, "--json").stdout.splitlines())
    assert (hit["first_line"], hit["lines"][0], len(hit["lines"])) == (5, "## the end", 4)
    Path("page.md").write_text("\n" + PAGE)  # the text is there, but at another place
    changed = run(*question)
    assert changed.stdout.splitlines()[1] == "         ## the end"
    assert " page.md [" in changed.stdout
    [hit] = map(json.loads, run(*question, "--json").stdout.splitlines())
    assert "lines" not in hit


def hit(source_id: str, text: str, **metadata: Any) -> Hit:
    return Hit(score=1, id=uuid4(), source_id=source_id, chunk=0, text=text, metadata=metadata)


def test_what_a_file_has_at_a_place(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffone two\nthree\nfour".encode())
    find = LineFinder()
    path = str(file)
    assert find(hit(path, "two\nthree", start_index=4)) == SourceLines(
        path=path, first_line=1, lines=("one two", "three")
    )
    assert find(hit(path, "four")) == SourceLines(path=path, first_line=3, lines=("four",))
    whole = tmp_path / "whole.txt"
    whole.write_bytes(b"one\r\ntwo\r\n")
    found = find(hit(str(whole), "one\r\ntwo\r\n"))  # a document that is not cut
    assert found == SourceLines(path=str(whole), first_line=1, lines=("one", "two"))
    for text, start in (("two", 5), ("two", -14), ("two", 500), ("five", None), ("", 0)):
        assert find(hit(path, text, **({} if start is None else {"start_index": start}))) is None


@pytest.mark.parametrize(
    "name", ["none.txt", "large.txt", "a\0b", "/dev/null", "", "x.pdf#1", "\udcff", "b.txt.gz"]
)
def test_what_is_no_text_file_has_no_lines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.indexing.searches.source_lines.MAX_TEXT_BYTES", 3)
    monkeypatch.chdir(tmp_path)
    Path("b.txt.gz").write_bytes(b"no gzip")
    Path("c.txt").write_bytes(b"\xff")
    Path("large.txt").write_bytes(b"x\nyz")
    assert LineFinder()(hit(name, "x")) is None
    assert LineFinder()(hit("c.txt", "x")) is None


@pytest.mark.parametrize("options", [(), ("--show",)])
def test_a_terminal_obeys_no_stored_text(
    run: Run, tmp_path: Path, tiny_folder: Callable[[str], Path], options: tuple[str, ...]
) -> None:
    text = "one\x1b]0;owned\x07 two\x9b2J\b three"
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"id": "a\x1bc\nd\te", "text": text}) + "\n", encoding="utf-8")
    url = f"jsonl:{tmp_path / 'out.jsonl'}"
    model = str(tiny_folder("bert"))
    assert run("index", str(source), "--to", url, "--model", model, "-q").exit_code == 0
    found = run("search", "two", "--to", url, *options)
    assert found.exit_code == 0
    assert not [letter for letter in found.stdout if ord(letter) < 32 and letter not in "\n\t"]
    assert "one\\x1b]0;owned\\x07 two\\x9b2J\\x08 three" in found.stdout
    assert "  a\\x1bc\\nd\\te" in found.stdout


def test_a_question_that_is_too_long_may_be_an_error(
    run: Run, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a city")
    url = f"jsonl:{tmp_path / 'out.jsonl'}"
    assert run("index", source, "--to", url, "--model", tiny_folder("bert"), "-q").exit_code == 0
    found = run("search", "city " * 600, "--to", url, "--on-truncate", "error")
    assert found.exit_code == 1
    assert "too long" in found.stderr
