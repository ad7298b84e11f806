"""Files, folders and standard input as sources."""

from __future__ import annotations

import errno
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
from embedlib.indexing.sources.file_ids import forms_of
from embedlib.indexing.sources.opening import open_documents
from embedlib.indexing.sources.overwriting import check_not_input
from embedlib.testing.check_sink import TARGET, make_rows, make_vectors
from tests.indexing.sources.reading import Told, documents, not_utf8, read, refusal, summary, write


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


def test_a_path_that_leads_back_out_of_a_link_is_that_of_its_file() -> None:
    write("real/docs/b.md", "text")
    write("real/a.md", "of the folder that the link leads to")
    write("a.md", "of this one")
    Path("link").symlink_to("real/docs")
    found = documents("a.md", "link/../a.md", "link/..", "link/../docs")
    assert [(document.id, document.text[:10]) for document in found] == [
        ("a.md", "of this on"),
        ("real/a.md", "of the fol"),
        ("real/docs/b.md", "text"),
    ]


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
    write("own.csv", "")
    asked.clear()
    source = open_source(["own.csv"], SourceOptions(), print)
    source.keep_ids(lambda ids: asked.extend(ids) or 0)
    assert asked == []


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
    for code in (errno.ENOENT, errno.ENOTDIR):  # removed meanwhile
        refused = {"sub": (code, os.strerror(code))}
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
    assert "'a.json': JSON must have one object on each line: jq -c '.[]' c" in refusal("a.json")
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
    names = [f"docs/a/long/path/to/a/file-{number:03}.md" for number in range(500)]
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
