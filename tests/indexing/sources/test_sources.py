"""Files, folders and standard input as sources."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib.errors import ConfigError, SourceError
from embedlib.indexing import SourceOptions, open_source
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.opening import open_sink
from embedlib.indexing.sources import file_formats
from embedlib.indexing.sources.file_bytes import BrokenFileError, open_bytes
from embedlib.indexing.sources.file_formats import read_rows, read_text
from embedlib.indexing.sources.file_ids import forms_of
from embedlib.indexing.sources.opening import open_documents
from embedlib.indexing.sources.overwriting import check_not_input
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors


class Told(list[str]):
    """What the user was told."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, content: str | bytes) -> str:
    """Write a file; a name with .gz gets compressed content."""
    data = content.encode() if isinstance(content, str) else content
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(gzip.compress(data) if path.lower().endswith(".gz") else data)
    return path


def read(*inputs: str, told: Told | None = None, **options: Any) -> list[Document | BadRow]:
    tell = [].append if told is None else told.append
    return list(open_source(inputs, SourceOptions(**options), tell))


def documents(*inputs: str, **options: Any) -> list[Document]:
    rows = read(*inputs, **options)
    assert [row for row in rows if isinstance(row, BadRow)] == []
    return [row for row in rows if isinstance(row, Document)]


def summary(rows: list[Document | BadRow]) -> list[tuple[str | None, str]]:
    """Id and text, or id and reason."""
    return [(row.id, row.text if isinstance(row, Document) else row.reason) for row in rows]


def refusal(*inputs: str, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read(*inputs, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- whole files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.text", "a.RST", "a.TXT.GZ"])
def test_a_text_file_is_one_document(name: str) -> None:
    write(name, "\ufeffOne.\r\n\r\nTwo. é\n")
    assert documents(name) == [
        Document(id=name, text="One.\r\n\r\nTwo. é\n", place=repr(name), is_markdown=False)
    ]


@pytest.mark.parametrize("name", ["a.md", "a.markdown", "a.md.gz"])
def test_a_markdown_file_is_marked_as_one(name: str) -> None:
    write(name, "# One")
    assert [document.is_markdown for document in documents(name)] == [True]


@pytest.mark.parametrize("given", ["docs", "docs/", "./docs", "./docs/a.md", "docs/../docs//a.md"])
def test_the_id_of_a_file_is_its_path_from_here(given: str, tmp_path: Path) -> None:
    write("docs/a.md", "text")
    for path in (given, str(tmp_path / given)):
        assert [document.id for document in documents(path)] == ["docs/a.md"]


def test_the_id_of_a_file_elsewhere_is_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("docs/a.md", "text")
    write("other/b.md", "text")
    monkeypatch.chdir("docs")
    for path in (".", "../docs", str(tmp_path / "docs")):
        assert [document.id for document in documents(path)] == ["a.md"]
    for path in ("../other", str(tmp_path / "other")):
        assert [document.id for document in documents(path)] == [f"{tmp_path}/other/b.md"]


def test_the_current_folder_may_be_known_by_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("real/docs/a.md", "text")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "also").symlink_to("docs")
    monkeypatch.chdir("link")
    assert [document.id for document in documents(str(tmp_path / "link/docs"))] == ["docs/a.md"]
    for path in ("also", str(tmp_path / "link/also")):
        assert [document.id for document in documents(path)] == ["also/a.md"]


def test_paths_in_ids_may_be_counted_from_another_folder(tmp_path: Path) -> None:
    write("app/docs/a.md", "text")
    write("app/rows.csv", "text\none\n")
    for root in ("app", str(tmp_path / "app"), Path("app")):
        found = documents("app/docs", str(tmp_path / "app/rows.csv"), id_root=root)
        assert [document.id for document in found] == ["docs/a.md", "rows.csv#1"]
    assert refusal("app", id_root="app/docs") == "'app' is not in the folder id_root = 'app/docs'"
    with pytest.raises(ConfigError, match="id_root = 'none'; it must be a folder"):
        SourceOptions(id_root="none")


@pytest.mark.parametrize("number", range(2))
def test_a_destination_keeps_the_names_it_has(number: int, tmp_path: Path) -> None:
    """Earlier versions took a path as it was written."""
    for name in ("docs/a.md", "docs/sub/b.md", "docs/new.md"):
        write(name, "text")
    write("rows.csv", "id,text\n1,one\n2,two\n")
    prefix = ("", f"{tmp_path}/")[number]
    stored = {f"{prefix}docs/a.md", f"{prefix}docs/sub/b.md", f"{prefix}rows.csv#2"}
    for given in ("", f"{tmp_path}/"):
        source: Any = open_source(
            (f"{given}docs", f"{given}rows.csv"), SourceOptions(id_prefix="file"), print
        )
        source.keep_ids(lambda ids: len(stored.intersection(ids)))
        assert [document.id for document in source] == [
            f"{prefix}{name}"
            for name in ("docs/a.md", "docs/new.md", "docs/sub/b.md", "rows.csv#1", "rows.csv#2")
        ]


@pytest.mark.parametrize("stored", ["../docs/a.md", "../other/b.md"])
def test_a_destination_keeps_names_that_lead_out_of_the_folder(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path as it was written, and one that is counted from here."""
    write("docs/a.md", "text")
    write("other/b.md", "text")
    monkeypatch.chdir("docs")
    inputs = ["../docs", str(tmp_path / "other")]
    source: Any = open_source(inputs, SourceOptions(), print)
    source.keep_ids(lambda ids: len({stored}.intersection(ids)))
    assert stored in {document.id for document in source}


def test_only_some_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlib.indexing.sources.files._SAMPLE_FILES", 2)
    for number in range(6):
        write(f"docs/{number}.md", "text")
    write("own.csv", "id,text\n1,one\n")
    asked: list[str] = []
    source: Any = open_source(["docs", "own.csv"], SourceOptions(), print)
    source.keep_ids(lambda ids: asked.extend(ids) or 0)
    assert len(asked) == 2 * 2
    write("own.csv", "id,text\n,no id\n1,one\n")
    asked.clear()
    source = open_source(["own.csv"], SourceOptions(id_prefix="file"), print)
    source.keep_ids(lambda ids: asked.extend(ids) or 0)
    assert asked == ["own.csv#1", f"{Path.cwd()}/own.csv#1"]


def test_ids_of_rows_may_begin_with_their_file() -> None:
    write("a.csv", "id,text\n1,one\n")
    write("b.csv", "id,text\n1,two\n")
    found = documents("a.csv", "b.csv", id_prefix="file")
    assert [document.id for document in found] == ["a.csv#1", "b.csv#1"]
    with pytest.raises(ConfigError, match="id_prefix = 'path'; it must be 'file' or None"):
        SourceOptions(id_prefix="path")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["id_prefix", "input_format"])
def test_an_array_is_no_option(name: str) -> None:
    options: dict[str, Any] = {name: np.ones(2)}
    with pytest.raises(ConfigError, match=f"{name} = array"):
        SourceOptions(**options)


def test_a_file_that_is_named_twice_is_read_once() -> None:
    write("docs/a.md", "text")
    assert [document.id for document in documents("docs/a.md", "docs", "./docs")] == ["docs/a.md"]


def not_utf8(byte: int) -> str:
    return (
        f"is not UTF-8 (byte {byte} of the line is 0xe4); convert the input, for example with iconv"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"line\nb\xe4d", f"line 2 {not_utf8(2)}"),
        (b"\xef\xbb\xbfa\nb\xe4d", f"line 2 {not_utf8(2)}"),
        (b" \n\t", "is empty"),
        (b"", "is empty"),
        (b"a\0b", "has NUL (U+0000) at character 1, which databases do not store"),
    ],
)
def test_a_text_that_is_none_is_a_bad_row(content: bytes, reason: str) -> None:
    write("a.txt", content)
    write("b.txt", "good")
    assert read("a.txt", "b.txt") == [
        BadRow(place="'a.txt'", reason=reason, id="a.txt"),
        Document(id="b.txt", text="good", place="'b.txt'"),
    ]


# --- folders --------------------------------------------------------------------------------------


def test_a_folder_is_read_in_order(told: Told) -> None:
    names = ("b.md", "a.txt", "sub/c.md", "sub/deep/d.rst", "more/f.md", "other/g.md")
    for name in (*names, ".hidden.md", ".git/e.md"):
        write(f"docs/{name}", name)
    ids = [document.id.removeprefix("docs/") for document in documents("docs", told=told)]
    assert ids == ["a.txt", "b.md", "more/f.md", "other/g.md", "sub/c.md", "sub/deep/d.rst"]
    assert told == []


def test_other_files_are_skipped_and_some_of_their_kinds_are_told(told: Told) -> None:
    for name in ("Makefile", "a.gz", "a.md", "b.x1", "c.x2", "d.x3", "g.py", "h.py"):
        write(f"docs/{name}", "text")
    documents("docs", told=told)
    assert told == [
        "docs/: 7 files of other kinds were skipped: .py, Makefile, .gz, .x1, .x2 and 1 more "
        "kinds; name them with glob (--glob)"
    ]


def test_a_glob_chooses_files(told: Told) -> None:
    for name in ("a.md", "b.py", "sub/c.py", "sub/d.txt"):
        write(f"docs/{name}", name)
    rows = documents("docs", glob=("*.py", "sub/*.txt"), told=told)
    assert [(row.id, row.is_markdown) for row in rows] == [
        ("docs/b.py", False),
        ("docs/sub/c.py", False),
        ("docs/sub/d.txt", False),
    ]
    assert told == []
    assert "has no file that fits *.rs" in refusal("docs", glob=("*.rs",), input_format="csv")


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("**/*.md", "a.md sub.md sub/b.md sub/deep/c.md"),
        ("**/**/*.md", "a.md sub.md sub/b.md sub/deep/c.md"),
        ("sub/**/*.md", "sub/b.md sub/deep/c.md"),
        ("sub/**/deep/**/c.md", "sub/deep/c.md"),
        ("**/b.md", "sub/b.md"),
        ("**/deep/*", "sub/deep/c.md"),
        ("su**/b.md", "sub/b.md"),
    ],
)
def test_two_stars_are_also_no_folder(pattern: str, chosen: str) -> None:
    for name in ("a.md", "sub.md", "sub/b.md", "sub/deep/c.md"):
        write(f"docs/{name}", name)
    assert " ".join(row.text for row in documents("docs", glob=(pattern,))) == chosen


def test_lock_files_of_word_are_hidden() -> None:
    write("docs/a.docx", b"no Word file")
    write("docs/sub/~$a.docx", b"user")
    rows = read("docs", glob=("*.docx",), input_format="text")
    assert [row.id for row in rows] == ["docs/a.docx"]


def test_fields_that_no_file_has_are_told(told: Told) -> None:
    write("docs/a.md", "text")
    write("docs/b.csv", "key,text\n1,one\n")
    documents("docs", told=told, id_field="key", text_field="text")
    assert told[1] == (
        "not used: id_field (--id-field), text_field (--text-field); no file is a table or JSON "
        "Lines, so none has fields, and ids are made of paths"
    )
    told.clear()
    documents("docs", told=told, glob=("*.md", "*.csv"), id_field="key", text_field="text")
    documents("docs", told=told, glob=("*.md",))
    assert told == []
    documents("docs", told=told, input_format="lines", id_field="key")
    assert "not used: id_field (--id-field); no file" in told[-1]


def test_a_text_file_that_is_too_large_is_a_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    write("docs/a.txt", "x" * (1 << 20))
    write("docs/b.txt.gz", "y" * (1 << 21))
    monkeypatch.setattr(file_formats, "MAX_TEXT_BYTES", 1 << 20)
    good, bad = read("docs")
    assert (good.id, type(good)) == ("docs/a.txt", Document)
    assert isinstance(bad, BadRow)
    assert (bad.id, bad.reason) == ("docs/b.txt.gz", "has more than 1 MiB; divide it")


def test_rows_of_files_in_a_folder(told: Told) -> None:
    for name in "ab":
        write(f"data/{name}.jsonl", json.dumps({"id": name, "text": "t"}))
    write("data/a.txt", "other")
    for options in ({"glob": ("*.jsonl",)}, {"input_format": "jsonl"}):
        assert [row.id for row in documents("data", told=told, **options)] == ["a", "b"]
    assert told[0] == (
        "data/a.jsonl and 1 more: text is the field 'text', id is the field 'id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    )


@pytest.mark.parametrize("scheme", ["jsonl", "npy"])
def test_what_was_exported_into_a_folder_is_not_read_from_it(scheme: str) -> None:
    write("data/a.jsonl", json.dumps({"id": "a", "text": "t"}))
    sink = open_sink(f"{scheme}:data/out.jsonl")
    sink.begin(TARGET, print)
    rows = make_rows(2)
    sink.write(rows, make_vectors(rows))
    sink.finish()
    sink.close()
    told: list[str] = []
    assert [row.id for row in read("data", input_format="jsonl", told=told)] == ["a"]
    assert len(told) == 1  # of the fields; no file was skipped
    if scheme == "jsonl":
        assert len(read("data/out.jsonl")) == 2  # it may be named


def test_a_folder_with_nothing_to_read_is_refused() -> None:
    write("docs/a.csv", "text\na")
    assert refusal("docs") == (
        "docs/: has no text or Markdown file; 1 file of another kind was skipped: .csv; name them "
        "with glob (--glob)"
    )
    Path("empty").mkdir()
    assert refusal("empty") == "empty/: has no text or Markdown file"


def test_a_table_of_a_folder_that_gets_odd_rows_after_a_look_at_it_is_a_bad_row() -> None:
    write("data/a.csv", "")
    write("data/b.csv", "id,text\n1,one\n")
    source = open_source(["data"], SourceOptions(input_format="csv"), [].append)
    write("data/a.csv", "id,n,m\n1,2,3\n")
    bad, good = source
    assert good.id == "1"
    assert isinstance(bad, BadRow)
    assert bad.place == "the rest of 'data/a.csv'"
    assert bad.reason.startswith("no field has the name of a text")


def test_links_to_folders_are_not_followed(told: Told) -> None:
    write("docs/sub/a.md", "text")
    write("elsewhere/b.md", "text")
    Path("docs/sub/loop").symlink_to(Path("docs").absolute())
    Path("docs/link.md").symlink_to(Path("elsewhere/b.md").absolute())
    assert [row.id for row in documents("docs", told=told)] == ["docs/link.md", "docs/sub/a.md"]
    assert told == [
        "docs/: links to folders are not followed: 'docs/sub/loop'; name them as inputs to read "
        "them"
    ]


def test_links_that_lead_nowhere_are_told_as_such(told: Told) -> None:
    write("docs/a.md", "text")
    Path("docs/loop").symlink_to("loop")
    Path("docs/gone").symlink_to("nowhere")
    assert [row.id for row in documents("docs", told=told)] == ["docs/a.md"]
    assert told == ["docs/: links that lead nowhere were skipped: 'docs/gone' and 1 more"]


def test_empty_files_of_a_folder_are_skipped_and_told(told: Told) -> None:
    for name, content in (("a.md", ""), ("b.md", "text"), ("c.txt", " \n"), ("d.txt", "\ufeff")):
        write(f"docs/{name}", content)
    assert [row.id for row in documents("docs", told=told)] == ["docs/b.md"]
    assert told == ["empty files were skipped: 'docs/a.md' and 2 more"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", ""), ("a.csv", "id,text\n"), ("a.jsonl", "\n\n"), ("a.jsonl", "")],
)
def test_files_without_rows_are_told(name: str, content: str, told: Told) -> None:
    write(name, content)
    write("b.csv", "id,text\n1,one\n")
    assert [row.id for row in documents(name, "b.csv", told=told)] == ["1"]
    assert f"empty files were skipped: '{name}'" in told


def test_a_name_that_is_not_utf8_is_named_as_the_cause() -> None:
    Path("docs").mkdir()
    for name in (b"docs/caf\xe9.txt", b"docs/rows\xe9.csv", b"docs/ids\xe9.csv"):
        Path(os.fsdecode(name)).write_text("id,text\n1,one\n" if b"ids" in name else "text\none\n")
    reason = "has a name that is not UTF-8, and the name is its id; rename it"
    rows = read("docs", glob=("*",))
    assert [(row.id, getattr(row, "reason", "")) for row in rows] == [
        (r"docs/caf\xe9.txt", reason),
        ("1", ""),
        (r"docs/rows\xe9.csv", reason),
    ]


def test_a_name_that_is_not_utf8_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(b"caf\xe9"))
    (folder / "here").mkdir(parents=True)
    write(f"{folder}/docs/a.md", "text")
    monkeypatch.chdir(folder / "here")
    for path in ("../docs", str(Path.cwd().parent / "docs")):
        source: Any = open_source([path], SourceOptions(), print)
        source.keep_ids(lambda ids: len([id_.encode() for id_ in ids]))
        assert [type(row) for row in source] == [BadRow]


def test_what_cannot_be_opened_in_a_folder_is_a_bad_row() -> None:
    Path("docs").mkdir()
    Path("docs/a.md").symlink_to("nowhere")
    write("docs/b.md", "good")
    os.mkfifo("docs/pipe.md")  # opening it would block for ever
    assert read("docs") == [
        BadRow(place="'docs/a.md'", reason="No such file or directory", id="docs/a.md"),
        Document(id="docs/b.md", text="good", place="'docs/b.md'", is_markdown=True),
    ]


def test_a_file_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    write("docs/a.md", "text")
    monkeypatch.setattr("embedlib.indexing.sources.file_bytes.open", refuse, raising=False)
    assert read("docs") == [BadRow(place="'docs/a.md'", reason="Permission denied", id="docs/a.md")]
    assert refusal("docs/a.md") == "cannot read 'docs/a.md': Permission denied"


def test_a_folder_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> Any:
        if os.path.basename(path) in refused:
            raise OSError(*refused[os.path.basename(path)], path)
        return listed(path)

    listed = os.scandir
    write("docs/a.md", "text")
    write("docs/sub/b.md", "text")
    monkeypatch.setattr(os, "scandir", refuse)
    refused = {"sub": (errno.EACCES, "Permission denied")}
    good, bad = read("docs")
    assert good.id == "docs/a.md"
    # Without an id: any stored row may be of the folder.
    assert bad == BadRow(
        place="'docs/sub'", reason="the folder cannot be read: Permission denied", id=None
    )
    refused = {"sub": (errno.ENOENT, "No such file or directory")}  # removed meanwhile
    assert [row.id for row in read("docs")] == ["docs/a.md"]
    refused = {"docs": (errno.EACCES, "Permission denied")}
    assert refusal("docs") == "cannot read the folder 'docs': Permission denied"
    refused = {"sub": (errno.EIO, "Input/output error")}
    assert refusal("docs") == "cannot read the folder 'docs/sub': Input/output error"


def test_an_input_in_a_folder_without_permission(forbid: Callable[[str | Path], None]) -> None:
    forbid("secret/a.md")
    assert refusal("secret/a.md") == "cannot read 'secret/a.md': Permission denied"
    with pytest.raises(SourceError, match=r"^cannot read 'secret/a\.md': Permission denied$"):
        open_documents("secret/a.md", SourceOptions(), [].append)


def test_a_broken_table_in_a_folder_is_a_bad_row() -> None:
    write("data/a.jsonl", '{"id": 1, "text": "a"}')
    Path("data/b.jsonl.gz").write_bytes(b"no gzip")
    rows = read("data", glob=("*.jsonl", "*.gz"))
    assert summary(rows[:1]) == [("1", "a")]
    assert rows[1] == BadRow(
        place="the rest of 'data/b.jsonl.gz'", reason="Not a gzipped file (b'no')"
    )
    assert len(rows) == 2
    assert refusal("data/b.jsonl.gz") == (
        "cannot read 'data/b.jsonl.gz': Not a gzipped file (b'no')"
    )


def test_what_is_written_is_compared_with_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "text")
    for stdin in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdin", stdin)
        check_not_input("a.txt", ["absent.txt", "-"], "errors_file")
    with open("a.txt") as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(SourceError, match=r"errors_file 'a\.txt' is also an input"):
            check_not_input("a.txt", ["-"], "errors_file")


# --- what is refused before any work --------------------------------------------------------------


def test_inputs_that_do_not_exist_are_refused() -> None:
    write("a.txt", "text")
    assert "cannot read 'b.txt': no such file" in refusal("a.txt", "b.txt")
    assert "no such file or folder; a pattern is given as glob (--glob, " in refusal("docs/*.md")
    assert "no input was given" in refusal()
    assert "cannot read 'a\\x00b': no such file" in refusal("a\0b")
    assert "a database URL needs --sql" in refusal("postgresql://host/db?x=*")
    with pytest.raises(SourceError, match="a database URL needs --sql"):
        open_documents("sqlite:a.db", SourceOptions(), print)
    with os.scandir(b".") as entries, pytest.raises(ConfigError, match="a path must be a str or a"):
        open_documents([*entries], SourceOptions(), print)  # type: ignore[list-item]


@pytest.mark.parametrize(
    "name", ["a.py", "README", "a.gz", "a.pdf.gz", "a.docx.gz", "a.parquet.gz"]
)
def test_a_format_that_cannot_be_known_is_refused(name: str) -> None:
    write(name, "text")
    assert "choose one with input_format (--input-format)" in refusal(name)


def test_where_a_format_is_to_be_told_the_way_is_named() -> None:
    write("shop.db", "")
    assert "a database needs a query; write sqlite:shop.db, and add --sql" in refusal("shop.db")
    write("a.json", "[]")
    assert "'a.json': JSON must have one object on each line, and jq -c '.[]' c" in refusal(
        "a.json"
    )
    assert refusal("-").startswith(
        "standard input: it has no name that shows its format; choose on"
    )


def test_a_format_is_for_every_input() -> None:
    write("a.log", "one\n\ntwo\n")
    assert [row.text for row in documents("a.log", input_format="lines")] == ["one", "two"]
    assert [row.text for row in documents("a.log", input_format="text")] == ["one\n\ntwo\n"]
    assert documents("a.log", input_format="markdown")[0].is_markdown
    write("docs/a.md", "# one")
    assert [row.is_markdown for row in documents("docs", input_format="text")] == [False]


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="must be one of auto, text"):
        SourceOptions(input_format="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="both 'a'"):
        SourceOptions(id_field="a", text_field="a")
    with pytest.raises(ConfigError, match=r"glob = '\*\.md'; it must be a tuple of str"):
        SourceOptions(glob="*.md")  # type: ignore[arg-type]


# --- lines ----------------------------------------------------------------------------------------


def test_lines_are_known_by_their_number(told: Told) -> None:
    write("a.txt", b"\xef\xbb\xbfone\r\n\n  \ntwo \xe2\x80\xa8 still\nb\xe4d\nnul\0\nlast \t")
    assert read("./a.txt", input_format="lines", told=told) == [
        Document(id="a.txt#1", text="one", place="line 1 of './a.txt'"),
        Document(id="a.txt#4", text="two \u2028 still", place="line 4 of './a.txt'"),
        BadRow(
            place="line 5 of './a.txt'",
            reason=not_utf8(2),
            id="a.txt#5",
        ),
        BadRow(
            place="line 6 of './a.txt'",
            reason="the field 'text' has NUL (U+0000) at character 3, which databases do not store",
            id="a.txt#6",
        ),
        Document(id="a.txt#7", text="last \t", place="line 7 of './a.txt'"),
    ]
    assert told == ["a.txt: every line is a document, with its number as id"]
    write("b.txt", "one\n\ufefftwo")
    assert [row.text for row in documents("b.txt", input_format="lines")] == ["one", "\ufefftwo"]


def test_what_can_be_read_only_once_is_not_looked_into() -> None:
    out, into = os.pipe()
    os.write(into, b'{"id": 1, "text": "a"}\n')
    os.close(into)
    assert [row.id for row in read(f"/dev/fd/{out}", input_format="jsonl")] == ["1"]
    os.close(out)
    terminal, follower = os.openpty()
    os.write(terminal, b"words\n\x04")
    assert [row.text for row in documents(os.ttyname(follower), input_format="lines")] == ["words"]
    os.close(follower)
    os.close(terminal)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'{"id": 7, "body": "one"}\n{"id": 8, "body": "two"}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    source = open_source(["-"], SourceOptions(input_format="jsonl"), told.append)
    assert told == []  # nothing was read yet
    assert list(source) == [
        Document(id="7", text="one", place="line 1 of standard input"),
        Document(id="8", text="two", place="line 2 of standard input"),
    ]
    assert told == [
        "-: text is the field 'body', id is the field 'id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]
    assert "cannot be read from standard input" in refusal("-", input_format="parquet")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 7, "n": 1}\n')))
    assert refusal("-", input_format="jsonl").startswith("-: no field has the name of a text")
    told.clear()
    assert read("-", input_format="jsonl", told=told) == told == []  # nothing is left
    Path("other").mkdir()
    assert read("-", input_format="jsonl", id_root="other") == []
    assert list(open_documents("-", SourceOptions(input_format="jsonl"), print)) == []
    monkeypatch.setattr(sys, "stdin", None)
    assert refusal("-", input_format="lines").startswith("cannot read standard input: it is closed")


# --- csv ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("input_format", ["lines", "jsonl", "csv"])
def test_a_line_longer_than_any_text_ends_the_reading(
    input_format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_formats, "_MAX_LINE_BYTES", 12)
    write("rows", '{"text": 1}\n' + "x" * 13)
    with pytest.raises(BrokenFileError, match="line 2 has more than 12 bytes; a line holds one"):
        list(read_rows("rows", input_format))
    write("rows", '{"text": 1}\n' + "x" * 11)
    assert list(read_rows("rows", input_format))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_without_an_end_is_not_read(path: str) -> None:
    for read in (lambda: list(read_rows(path, "lines")), lambda: read_text(path)):
        with pytest.raises(BrokenFileError, match="it is a device, which may have no end"):
            read()
    assert list(read_rows("/dev/null", "lines")) == []


def test_csv(told: Told) -> None:
    write("a.csv", '\ufeffid,Text,n\r\n1,"one, ""two""\nthree",4\r\n\r\n2,é,\r\n')
    assert documents("a.csv", told=told) == [
        Document(id="1", text='one, "two"\nthree', metadata={"n": "4"}, place="line 2 of 'a.csv'"),
        Document(id="2", text="é", metadata={"n": ""}, place="line 5 of 'a.csv'"),
    ]
    assert told == [
        "a.csv: text is the field 'Text', id is the field 'id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tsv(name: str) -> None:
    write(name, "key\tbody\n1\ta, b\n")
    assert summary(read(name)) == [("1", "a, b")]


TWICE = '; a value that begins with " ends with one, write others twice'


def test_bad_rows_of_csv_do_not_end_it() -> None:
    content = b'id,text\n1,a,b\n2\n,no id\n4,\n5,b\xe4d\n6,"b"ad\n7,"line\nb\xe4d"\n8,good\n'
    write("a.csv", content)
    rows = read("a.csv")
    assert summary(rows) == [
        (None, "has 3 fields, and the header has 2"),
        (None, "has 1 fields, and the header has 2"),
        (None, "the field 'id' has no id"),
        ("4", "the text in the field 'text' is empty"),
        (None, not_utf8(4)),
        (None, f"is not CSV: ',' expected after '\"'{TWICE}"),
        (None, not_utf8(2)),
        ("8", "good"),
    ]
    assert [row.place for row in rows][-2:] == ["line 8 of 'a.csv'", "line 10 of 'a.csv'"]


def test_csv_with_the_line_ends_of_an_old_mac() -> None:
    write("a.csv", b"id,text\r1,a\r2,b\r")
    with pytest.raises(SourceError, match=r"a\.csv': its header has a CR without LF; .* '\\n'$"):
        read("a.csv")


def test_a_quote_that_is_never_closed() -> None:
    write("a.csv", 'id,text\n1,a\n2,"b\n3,c\n')
    assert summary(read("a.csv")) == [
        ("1", "a"),
        (
            None,
            f"is not CSV: unexpected end of data; because of a quote it goes on to line 4{TWICE}",
        ),
    ]
    write("a.tsv", 'id\ttext\n1\t"a\tb"\n2\t"c" d\n')
    assert summary(read("a.tsv")) == [
        ("1", "a\tb"),
        (None, f"is not CSV: '\t' expected after '\"'{TWICE}"),
    ]


def test_rows_of_csv_without_values_are_left_out() -> None:
    write("a.csv", "text,x\none,1\n,\n  ,\ntwo,2\n,,\n")
    assert summary(read("a.csv")) == [("a.csv#1", "one"), ("a.csv#4", "two")]
    write("b.csv", 'text\none\n""\n')
    assert summary(read("b.csv"))[1][1] == "the text in the field 'text' is empty"


def test_a_field_of_csv_may_be_long() -> None:
    write("a.csv", f"id,text\n1,{'x' * 200_000}\n")
    before = csv.field_size_limit(1 << 30)
    try:
        assert len(documents("a.csv")[0].text) == 200_000
        assert csv.field_size_limit() == 1 << 30  # of the whole process, which may need it
    finally:
        csv.field_size_limit(before)


def test_rows_without_an_id_are_known_by_their_number(told: Told) -> None:
    write("a.csv", "text,n\none,1\n\n,2\nthree,3\n")
    assert summary(read("a.csv", told=told)) == [
        ("a.csv#1", "one"),
        ("a.csv#2", "the text in the field 'text' is empty"),
        ("a.csv#3", "three"),
    ]
    assert told == [
        "a.csv: text is the field 'text', no field has the name of an id, so rows are identified "
        "by their number; set with text_field (--text-field) and id_field (--id-field)"
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,a\n1,2\n", "more than one column named 'a'"),
        (b"a,b\xe4d\n1,2\n", "its header is not UTF-8"),
        (b"id;body\n1;a\n", "separate fields by commas"),
        (b"id,text\n1\n", "none of the first 1 rows can be read"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(content: bytes, reason: str) -> None:
    write("a.csv", content)
    assert reason in refusal("a.csv")


def test_a_table_with_other_separators_says_so_also_of_a_field_that_is_named() -> None:
    write("a.csv", "id;body;lang\n1;a;en\n")
    assert refusal("a.csv", text_field="body").endswith(
        "there is no field 'body'; the fields are 'id;body;lang'; csv files separate fields by "
        "commas and tsv files by tabs: convert the file"
    )


# --- which field is what --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "guessed"),
    [
        ("id,text", ("id", "text")),
        ("body,content", (None, "content")),  # the first in the list of names, not in the file
        ("_ID,Body", ("_ID", "Body")),
        ("uuid,key,title,abstract", ("uuid", "abstract")),
        ("id,question", ("id", "question")),  # the only one left
        ("question", (None, "question")),
        ("document,document_id", ("document_id", "document")),
        ("id,a;b", ("id", "a;b")),
    ],
)
def test_fields_are_guessed(header: str, guessed: tuple[str | None, str]) -> None:
    columns = header.split(",")
    write("a.csv", f"{header}\n{','.join(columns)}\n")
    [row] = documents("a.csv")
    assert (None if "#" in row.id else row.id, row.text) == guessed
    assert set(row.metadata) == {*columns} - {*guessed}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("id,title,question", "the fields are 'id', 'title', 'question'"),
        (
            "id,Text,text",
            "has the fields 'Text', 'text'; choose one with text_field (--text-field)",
        ),
        ("id,ID,text", "has the fields 'id', 'ID'; choose one with id_field (--id-field)"),
        ("id", "none of the others holds strings"),
    ],
)
def test_no_single_best_guess_is_refused(header: str, message: str) -> None:
    write("a.csv", f"{header}\n{header}\n")
    assert message in refusal("a.csv")


def test_fields_that_are_named_are_used(told: Told) -> None:
    write("a.csv", "id,text,title,n\n1,a,b,2\n")
    options = {"id_field": "n", "text_field": "title", "metadata_fields": ("id",)}
    assert documents("a.csv", told=told, **options) == [
        Document(id="2", text="b", metadata={"id": "1"}, place="line 2 of 'a.csv'")
    ]
    assert told == []
    assert documents("a.csv", metadata_fields=())[0].metadata == {}
    write("b.csv", "id,key\n1,k\n")
    assert documents("b.csv", text_field="id")[0].id == "k"
    documents("a.csv", text_field="title", told=told)
    assert told == ["a.csv: id is the field 'id'; set with id_field (--id-field)"]


@pytest.mark.parametrize(
    "options", [{"id_field": "x"}, {"text_field": "x"}, {"metadata_fields": ("id", "x")}]
)
def test_fields_that_do_not_exist_are_refused(options: dict[str, Any]) -> None:
    write("a.csv", "id,text\n1,a\n")
    assert refusal("a.csv", **options) == (
        "a.csv: there is no field 'x'; the fields are 'id', 'text'"
    )


# --- json lines -----------------------------------------------------------------------------------


def test_several_fields_are_one_text(told: Told) -> None:
    lines = [
        '{"id": 1, "subject": "s", "body": "b"}',
        '{"id": 2, "subject": null, "body": "b", "n": 1}',
        '{"id": 3, "subject": " ", "body": ""}',
        '{"id": 4, "subject": null}',
        '{"id": 5, "subject": 5, "body": "b"}',
    ]
    write("a.jsonl", "\n".join(lines))
    fields = ("subject", "body")
    assert summary(read("a.jsonl", text_field=fields, id_field="id", told=told)) == [
        ("1", "s\n\nb"),
        ("2", "b"),
        ("3", "the text in the fields 'subject', 'body' is empty"),
        ("4", "the fields 'subject', 'body' have no text"),
        ("5", "the field 'subject' has the type int; a string is needed for a text"),
    ]
    assert told == []
    assert summary(read("a.jsonl", text_field=["body", "subject"]))[0] == ("1", "b\n\ns")
    rows = read("a.jsonl", text_field=fields)
    assert [row.metadata for row in rows if isinstance(row, Document)] == [{}, {"n": 1}]
    assert "there is no field 'x'" in refusal("a.jsonl", text_field=("body", "x"))
    with pytest.raises(ConfigError, match="both 'body'"):
        SourceOptions(id_field="body", text_field=fields)
    with pytest.raises(ConfigError, match=r"text_field = \(\)"):
        SourceOptions(text_field=())


def test_jsonl(told: Told) -> None:
    write("a.jsonl", '{"n": {"a": [1, null, true]}, "body": "one", "_id": 3, "f": NaN}\n\n')
    assert documents("a.jsonl", told=told) == [
        Document(
            id="3",
            text="one",
            metadata={"n": {"a": [1, None, True]}, "f": None},
            place="line 1 of 'a.jsonl'",
        )
    ]
    assert told == [
        "a.jsonl: text is the field 'body', id is the field '_id'; set with "
        "text_field (--text-field) and id_field (--id-field)"
    ]


def test_a_long_line_of_json_is_hardly_copied() -> None:
    size = 4 << 20
    write("a.jsonl", json.dumps({"id": 1, "text": "word " * (size // 5)}) + "\r\n")
    tracemalloc.start()
    try:
        assert [row.id for row in read("a.jsonl")] == ["1"]
        assert tracemalloc.get_traced_memory()[1] < 3.5 * size  # the line, its text and the value
    finally:
        tracemalloc.stop()


def test_the_guess_looks_at_types_and_at_many_rows() -> None:
    write("a.ndjson", '{"content": {"a": 1}, "q": "one"}\nbroken\n{"q": "two", "k": "v"}\n')
    assert "hold strings" in refusal("a.ndjson")
    write("b.ndjson", '{"content": {"a": 1}, "q": "one"}\nbroken\n{"id": "x", "q": "two"}\n')
    assert [row.id for row in read("b.ndjson")] == [None, None, "x"]
    write("many.ndjson", '{"id": 1, "q": "one"}\n' * 100 + '{"id": 2, "text": "late"}\n')
    assert summary(read("many.ndjson"))[99:] == [
        *(("1", "one"), ("2", "the field 'q' has no text")),
    ]
    write("c.ndjson", '{"id": 1.5, "q": "one"}\n{"id": 2, "q": 5}\n')
    assert [row.id for row in read("c.ndjson")] == ["1.5", "2"]


@pytest.mark.parametrize(
    ("line", "document_id", "reason"),
    [
        ('{"id": "a"', None, "is not JSON: Expecting ',' delimiter at character 11"),
        ("[1]", None, "is a JSON list; an object is needed"),
        ("[" * 100_000, None, "nested too deeply"),
        ('{"id": "a"}', "a", "the field 'text' has no text"),
        ('{"id": "a", "text": null}', "a", "the field 'text' has no text"),
        ('{"id": "a", "text": "  "}', "a", "the text in the field 'text' is empty"),
        ('{"id": "a", "text": 5}', "a", "the field 'text' has the type int; a string is needed"),
        ('{"text": "b"}', None, "the field 'id' has no id"),
        ('{"id": null, "text": "b"}', None, "the field 'id' has no id"),
        ('{"id": "", "text": "b"}', None, "the field 'id' has no id"),
        ('{"id": true, "text": "b"}', None, "the id in the field 'id' has the type bool"),
        ('{"id": [1], "text": "b"}', None, "the id in the field 'id' has the type list"),
        ('{"id": "a\\u0000", "text": "b"}', None, "the field 'id' has NUL"),
        ('{"id": "a", "text": "b\\u0000"}', "a", "the field 'text' has NUL (U+0000)"),
        ('{"id": "a", "text": "b\\ud800"}', "a", "lone surrogate '\\ud800' at character 1, which"),
        ('{"id": "a", "text": "b", "m": ["\\ud800"]}', "a", "the field 'm' has the lone"),
        ('{"id": "a", "text": "b", "m": {"\\u0000": 1}}', "a", "the field 'm' has NUL"),
        ('{"id": "a", "text": "b", "\\u0000": 1}', "a", "has NUL"),
        ('{"id": "a", "text": "b", "m": 1' + "0" * 5000 + "}", None, "is not JSON: Exceeds"),
        ("b\udce4d", None, not_utf8(2)),
    ],
)
def test_bad_rows_of_jsonl(line: str, document_id: str | None, reason: str) -> None:
    good = b'{"id": "good", "text": "good"}'
    write("a.jsonl", b"\n".join([good, line.encode("utf-8", "surrogateescape"), good]))
    first, bad, last = read("a.jsonl")
    assert isinstance(bad, BadRow)
    assert reason in bad.reason
    assert "\n" not in bad.reason
    assert "line 1" not in bad.reason  # that is in its place
    assert (bad.id, bad.place) == (document_id, "line 2 of 'a.jsonl'")
    assert (first.id, last.id) == ("good", "good")


def test_a_rare_field_may_be_asked_for() -> None:
    write("a.jsonl", '{"id": 1, "text": "a"}\n')
    assert documents("a.jsonl", metadata_fields=("rare",))[0].metadata == {}


# --- gzip -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_broken_gzip_file_ends_with_a_bad_row(damage: str) -> None:
    # Numbers that do not repeat, so that the file has more than one block.
    rows = [{"id": number, "text": str(number**9)} for number in range(30_000)]
    data = bytearray(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    if damage == "cut":
        del data[len(data) * 3 // 4 :]
    else:
        data[len(data) * 3 // 4] ^= 255
    Path("a.jsonl.gz").write_bytes(data)
    write("b.jsonl", '{"id": "last", "text": "t"}')
    *good, bad, last = read("a.jsonl.gz", "b.jsonl")
    assert 1000 < len(good) < 30_000
    assert isinstance(bad, BadRow)
    assert bad.id is None
    assert bad.place.startswith("the rest of 'a.jsonl.gz', after line ")
    assert last.id == "last"


@pytest.mark.parametrize("is_text", [False, True])
def test_a_file_that_is_cut_while_it_is_read_has_no_end(is_text: bool) -> None:
    """Somebody writes it anew: rows that are not there yet are not removed ones."""
    path = write("a.txt" if is_text else "a.jsonl", '{"id": 1, "text": "words"}\n' * 5000)
    rows = iter(read_rows(path, "lines" if is_text else "jsonl"))
    next(rows)
    os.truncate(path, 100)
    with pytest.raises(BrokenFileError, match="was cut while it was read; load it again when"):
        list(rows)


def test_a_named_file_without_a_row_that_can_be_read_is_refused_before_the_load() -> None:
    Path("a.csv").write_text("id,text,text\n1,a,b\n")
    with pytest.raises(SourceError, match=r"^cannot read 'a.csv': has more than one column"):
        open_source(["a.csv"], SourceOptions(), print)


def test_a_file_that_is_emptied_before_it_is_read_is_not_empty() -> None:
    path = write("a.txt", "words")

    def read_emptied() -> bytes:
        with open_bytes(path) as file:
            os.truncate(path, 0)
            return file.read()

    with pytest.raises(BrokenFileError, match="was cut while it was read"):
        read_emptied()


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end() -> None:
    path = write("a.jsonl", '{"id": 1, "text": "words"}\n' * 5000)
    rows = iter(read_rows(path, "jsonl"))
    next(rows)
    with open(path, "a") as file:
        file.write('{"id": 2, "text": "words"}\n')
    assert [row.fields["id"] for row in rows][-1] == 2


def test_a_gzip_file_that_breaks_early() -> None:
    data = gzip.compress(b'{"id": 1, "text": "a"}\n' * 5)[:-4]
    Path("a.jsonl.gz").write_bytes(data)
    assert [row.id for row in read("a.jsonl.gz")] == ["1"] * 5 + [None]


def test_a_gzip_file_with_a_broken_block() -> None:
    good = gzip.compress(b'{"id": 1, "text": "a"}\n')
    Path("a.jsonl.gz").write_bytes(good + good[:10] + b"\xff" * 20)  # a kind that does not exist
    assert [row.id for row in read("a.jsonl.gz")] == ["1", None]


# --- size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt", "a.jsonl.gz"])
def test_memory_does_not_grow_with_rows(name: str) -> None:
    def peak_bytes(num_rows: int) -> int:
        lines = [f'{{"id": {row}, "text": "row {row}"}}' for row in range(num_rows)]
        if name == "a.csv":
            lines = ["id,text", *(f"{row},row {row}" for row in range(num_rows))]
        write(name, "\n".join(lines))
        del lines
        options = SourceOptions(input_format="lines" if name == "a.txt" else "auto")
        source = open_source([name], options, [].append)
        tracemalloc.start()
        try:
            assert sum(isinstance(row, Document) for row in source) == num_rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(8_000) < peak_bytes(2_000) + 90_000  # of a row: 15 bytes


def test_a_file_of_a_folder_takes_little_memory_and_is_opened_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be millions of them."""
    names = [f"docs/a/long/path/to/a/file-{number:04}.md" for number in range(2000)]
    for name in names:
        write(name, "text")
    opened: list[str] = []

    def count(path: str, mode: str) -> Any:
        opened.append(path)
        return open(path, mode)

    monkeypatch.setattr("embedlib.indexing.sources.file_bytes.open", count, raising=False)

    def measure() -> tuple[int, int]:
        tracemalloc.start()
        try:
            source = open_source(["docs"], SourceOptions(), [].append)
            held = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert opened == []
        assert len(list(source)) == len(names)
        assert opened == names
        opened.clear()
        return held

    # The first one imports what it needs; a thread of another test may take some meanwhile.
    held, most = map(min, zip(*(measure() for _ in range(4)), strict=True))
    assert held < 250 * len(names)
    assert most < 400 * len(names)


def test_a_source_knows_its_length_where_that_is_cheap() -> None:
    write("docs/a.md", "a")
    write("docs/b.md", "b")
    write("c.jsonl", '{"text": "c"}')
    tell = [].append
    source = open_source(["docs"], SourceOptions(), tell)
    assert length_hint(source, -1) == 2
    source.narrow(["docs/b.md"])
    assert length_hint(source, -1) == 1
    assert length_hint(open_source(["docs", "c.jsonl"], SourceOptions(), tell), -1) == -1


def test_a_source_can_be_read_again() -> None:
    write("a.jsonl", '{"text": "a"}')
    source = open_source(["a.jsonl"], SourceOptions(), [].append)
    assert list(source) == list(source)


def test_a_named_file_that_vanishes_is_an_error() -> None:
    write("a.jsonl", '{"text": "a"}')
    source = open_source(["a.jsonl"], SourceOptions(), [].append)
    Path("a.jsonl").unlink()
    with pytest.raises(SourceError, match=r"cannot read 'a\.jsonl': No such file"):
        list(source)


@pytest.mark.parametrize("password", ["secret", "a secret"])
def test_a_url_named_as_a_file_keeps_its_password(password: str) -> None:
    with pytest.raises(SourceError, match="a database URL needs --sql") as caught:
        open_source([f"postgresql://me:{password}@host/db"], SourceOptions(), [].append)
    assert "secret" not in str(caught.value)


def test_an_absolute_path_needs_no_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    path = str(tmp_path / "a.txt")
    assert forms_of(path, None) == (path,)
